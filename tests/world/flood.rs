//! A guest that sends as much as it can, of what costs others most.
//!
//! Frames are written into the guest's tap as QEMU would; connections go through the guest's own kernel. A flood runs
//! on a thread of its own until it is stopped, and counts what it sent.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, connect, recv, send, shutdown, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::frames::{ACK, GUEST, SYN, pseudo, segment};
use super::wire::{Virtio, Wire};
use super::{Guest, Namespace};

/// What a guest floods with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Segments of 66 bytes of no connection.
    Segments,
    /// 64 KiB frames of 45 segments, to be cut by the kernel (GSO), with half-made checksums.
    Supers,
    /// Handshakes that are never finished, from random addresses and ports.
    Syns,
    /// 10,000 connections that send one byte of a request and then nothing.
    Slow,
    /// Requests whose header fields never end.
    Headers,
    /// 1,000 connections that are closed on the guest's side at once and kept so.
    HalfClosed,
}

impl Flood {
    pub const ALL: [Self; 6] = [Self::Segments, Self::Supers, Self::Syns, Self::Slow, Self::Headers, Self::HalfClosed];

    /// The word for it in figures.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Segments => "segments",
            Self::Supers => "supers",
            Self::Syns => "syns",
            Self::Slow => "slow",
            Self::Headers => "headers",
            Self::HalfClosed => "half_closed",
        }
    }

    /// Begins, towards this port of the metadata address. At another one than 80 the guard drops every frame: the same
    /// work for the guest, none for the daemon.
    pub fn start(self, guest: &Guest, port: u16) -> Flooding {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let run = Run { stop: stop.clone(), sent: sent.clone(), port };
        let (wire, namespace) = (guest.link(), &guest.namespace);
        let thread = match self {
            Self::Segments => frames(run, wire, [0; 10], vec![small(port)]),
            Self::Supers => frames(run, wire, SUPER, vec![super_frame(port)]),
            Self::Syns => frames(run, wire, [0; 10], random_syns(port)),
            Self::Slow => peers(run, namespace, 10_000, slow),
            Self::Headers => peers(run, namespace, 32, endless),
            Self::HalfClosed => peers(run, namespace, 1000, half_close),
        };
        Flooding { stop, sent, thread: Some(thread) }
    }
}

/// A flood that is going on.
#[derive(Debug)]
pub struct Flooding {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flooding {
    /// Frames, or peers that did what they came for, so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends it; what was sent.
    pub fn stop(mut self) -> u64 {
        self.end();
        self.sent()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Flooding {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a flood's thread works with.
struct Run {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    port: u16,
}

impl Run {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }
}

// --- frames

fn frames(run: Run, wire: Wire, header: Virtio, frames: Vec<Vec<u8>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for frame in frames.iter().cycle().take_while(|_| run.goes_on()) {
            if wire.send_as(&header, frame) {
                run.count();
            }
        }
    })
}

/// Two paddings and a timestamp (RFC 7323), as Linux sends them.
const TIMESTAMP: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];

fn small(port: u16) -> Vec<u8> {
    let frame = segment(GUEST, (40_000, port), ACK, &TIMESTAMP, &[]);
    assert_eq!(frame.len(), 66);
    frame
}

/// Data bytes in each segment that the kernel is to cut.
const CUT: u16 = 1448;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`, `VIRTIO_NET_HDR_GSO_TCPV4`, 66 bytes of headers; the checksum begins at byte 34 and
/// goes to byte 50 (linux/virtio_net.h; fields in the machine's byte order).
const SUPER: Virtio = {
    let (header, cut) = (66_u16.to_ne_bytes(), CUT.to_ne_bytes());
    let (start, offset) = (34_u16.to_ne_bytes(), 16_u16.to_ne_bytes());
    [1, 1, header[0], header[1], cut[0], cut[1], start[0], start[1], offset[0], offset[1]]
};

fn super_frame(port: u16) -> Vec<u8> {
    let mut frame = segment(GUEST, (40_000, port), ACK, &TIMESTAMP, &vec![b'x'; 45 * usize::from(CUT)]);
    assert_eq!(frame.len(), 65_226);
    let partial = pseudo(GUEST, frame.len() - 34, &[]);
    frame[50..52].copy_from_slice(&partial.to_be_bytes());
    frame
}

fn random_syns(port: u16) -> Vec<Vec<u8>> {
    // Any generator will do, and the same numbers each time are welcome.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    };
    (0..16_384)
        .map(|_| {
            let random = next();
            let from = u16::from_be_bytes([random[3], random[4]]).max(1024);
            segment(Ipv4Addr::new(10, random[0], random[1], random[2]), (from, port), SYN, &[2, 4, 5, 0xb4], &[])
        })
        .collect()
}

// --- connections

/// What a peer did when its turn came.
enum Turn {
    /// All it came for; now it only holds on.
    Done,
    /// Something, and there is more.
    More,
    /// Nothing: there is no room.
    Blocked,
    /// Its connection is gone.
    Gone,
}

/// A connection of the flooder.
struct Held {
    socket: OwnedFd,
    /// Turns it has had.
    turns: u64,
    /// It did all it came for.
    done: bool,
}

impl Held {
    /// Begins a handshake. `None` when there is no port left for it.
    fn dial(address: SocketAddr) -> Option<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        let begun = matches!(connect(&socket, &address), Ok(()) | Err(Errno::INPROGRESS));
        begun.then_some(Self { socket, turns: 0, done: false })
    }

    fn waits_for(&self) -> PollFlags {
        if self.done { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Takes what arrived; whether the other side is done.
    fn has_ended(&self) -> bool {
        let mut bytes = [0_u8; 4096];
        !matches!(recv(&self.socket, &mut bytes[..], RecvFlags::empty()), Ok((_, 1..)) | Err(Errno::AGAIN))
    }
}

/// Keeps this many connections; one that ends is replaced.
fn peers(run: Run, namespace: &Namespace, many: usize, act: fn(&Held) -> Turn) -> JoinHandle<()> {
    let enter = namespace.door();
    allow_descriptors(many as u64 + 1000);
    std::thread::spawn(move || {
        enter();
        let address = SocketAddr::from(([169, 254, 169, 254], run.port));
        let mut held: Vec<Held> = Vec::with_capacity(many);
        let moment = Duration::from_millis(10).try_into().unwrap();
        while run.goes_on() {
            // So many a round that those there are get their turn meanwhile.
            let missing = (many - held.len()).min(200);
            held.extend((0..missing).filter_map(|_| Held::dial(address)));
            let mut polled: Vec<PollFd> = held.iter().map(|peer| PollFd::new(&peer.socket, peer.waits_for())).collect();
            let _ = poll(&mut polled, Some(&moment));
            let ready: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
            let mut ready = ready.into_iter();
            held.retain_mut(|peer| turn(&run, peer, ready.next().unwrap_or(PollFlags::empty()), act));
        }
    })
}

/// Gives a peer its turn if it is ready; whether it still has a connection.
fn turn(run: &Run, peer: &mut Held, ready: PollFlags, act: fn(&Held) -> Turn) -> bool {
    if ready.intersects(PollFlags::ERR | PollFlags::HUP) {
        return false;
    }
    if peer.done || ready.is_empty() {
        return ready.is_empty() || !peer.has_ended();
    }
    let turn = act(peer);
    if matches!(turn, Turn::Done | Turn::More) {
        run.count();
        peer.turns += 1;
    }
    peer.done = matches!(turn, Turn::Done);
    !matches!(turn, Turn::Gone)
}

fn put(peer: &Held, bytes: &[u8]) -> Turn {
    match send(&peer.socket, bytes, SendFlags::NOSIGNAL) {
        Ok(_) => Turn::More,
        Err(Errno::AGAIN) => Turn::Blocked,
        Err(_) => Turn::Gone,
    }
}

fn slow(peer: &Held) -> Turn {
    match put(peer, b"G") {
        Turn::More => Turn::Done,
        other => other,
    }
}

fn endless(peer: &Held) -> Turn {
    put(peer, if peer.turns == 0 { b"GET / HTTP/1.1\r\n" } else { b"x-field: and so on\r\n" })
}

fn half_close(peer: &Held) -> Turn {
    match shutdown(&peer.socket, Shutdown::Write) {
        Ok(()) => Turn::Done,
        Err(_) => Turn::Gone,
    }
}

/// Raises our limit of open files to at least this.
fn allow_descriptors(many: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < many) {
        let maximum = limit.maximum.map(|maximum| maximum.max(many));
        setrlimit(Resource::Nofile, Rlimit { current: Some(many), maximum }).unwrap();
    }
}
