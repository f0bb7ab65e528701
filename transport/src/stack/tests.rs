//! One guest's stack, packet by packet: every frame by hand, every turn when the test says so.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use hyper::rt::{Read, ReadBuf, Write};
use pve_imds_bpf::{Epoch, Generation, Slot};

use super::*;
use crate::stream::{Kick, Shared, TapStream};
use crate::testing::{Raw, Spoken};
use crate::wire::{Account, ETHERNET_HEADER};

mod ending;
mod hops;
mod moving;
mod replacing;
mod sharing;

/// A wire that keeps what is sent.
struct Recorder {
    sent: Vec<Vec<u8>>,
    room: usize,
}

impl Wire for Recorder {
    type Frame = Vec<u8>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }

    fn next(&mut self) -> Option<(Option<Tag>, Vec<u8>)> {
        None
    }

    fn read(&mut self, frame: Vec<u8>, into: &mut Vec<u8>) {
        *into = frame;
    }

    fn lent(&self, _: Account) -> i32 {
        0
    }

    fn returned(&self, _: Account) -> u32 {
        0
    }

    fn give_back(&mut self, _: Account, _: i32) {}

    fn reclaim(&mut self) {}

    fn room(&mut self) -> usize {
        self.room - self.sent.len()
    }

    fn send<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frame = vec![0; length];
        let result = fill(&mut frame);
        self.sent.push(frame);
        result
    }

    fn flush(&mut self) -> std::io::Result<bool> {
        Ok(true)
    }
}

/// How often a task was woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A guest, its stack and the clock.
struct Bench {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    wire: Recorder,
    now: Instant,
}

const TAG: Tag =
    Tag { epoch: Epoch::new(5).unwrap(), vlan: None, generation: Generation::new(0), slot: Slot::new(1).unwrap() };
const STATION: Station = Station { mac: [2, 0, 0, 0, 0, 1], vlan: None };

impl Bench {
    fn new(seed: u64) -> Self {
        let (pool, now) = (Arc::<Pool>::default(), Instant::from_secs(100));
        let stack = Stack::new(seed, pool.clone(), now);
        let shared = Arc::new(Shared::new(stack, Arc::<Kick>::default(), 1));
        Self { shared, pool, wire: Recorder { sent: Vec::new(), room: 1000 }, now }
    }

    fn hear(&mut self, packet: &[u8]) -> Arrival {
        self.shared.lock().arrive(self.now, packet, STATION, TAG, &mut self.wire)
    }

    fn say(&mut self, segment: Raw<'_>) -> Arrival {
        self.hear(&segment.packet())
    }

    /// What is sent now.
    fn turn(&mut self) -> Vec<Spoken> {
        while self.shared.lock().depart(self.now, TAG, &mut self.wire) == Departure::More {}
        self.wire.sent.drain(..).filter_map(|frame| Spoken::parse(&frame[ETHERNET_HEADER..])).collect()
    }

    fn ended(&self) -> Vec<Ended> {
        self.shared.lock().ended().collect()
    }

    /// Lets time pass, looking whenever the stack wants to.
    fn pass(&mut self, seconds: u64) -> Vec<Spoken> {
        let until = self.now + smoltcp::time::Duration::from_secs(seconds);
        let mut spoken = self.turn();
        loop {
            let due = self.shared.lock().due();
            match due.filter(|due| *due <= until) {
                Some(due) => self.now = self.now.max(due),
                None => break,
            }
            spoken.append(&mut self.turn());
        }
        self.now = until;
        spoken
    }

    /// Sends a SYN; the number that ours answers with.
    fn begin(&mut self, port: u16, sequence: u32) -> u32 {
        assert!(matches!(self.say(Raw { port, sequence, syn: true, ..Raw::default() }), Arrival::Absorbed));
        let spoken = self.turn();
        let mut answers = spoken.iter().filter(|answer| answer.port == port);
        let answer = answers.next().unwrap();
        assert!(answer.syn && !answer.rst && answer.ack == sequence.wrapping_add(1), "{answer:?}");
        assert_eq!(answers.next(), None, "one answer");
        answer.sequence
    }

    /// A whole handshake from sequence number 999 on. The stream, and the next number of ours.
    fn open(&mut self, port: u16) -> (TapStream, u32) {
        let ours = self.begin(port, 999).wrapping_add(1);
        let arrival = self.say(Raw { port, sequence: 1000, ack: Some(ours), ..Raw::default() });
        let Arrival::Established(connection) = arrival else { panic!("{arrival:?}") };
        (TapStream::new(self.shared.clone(), connection), ours)
    }

    fn connections(&self) -> usize {
        self.shared.lock().holdings().connections
    }
}

fn read(stream: &mut TapStream, waker: &Waker) -> Poll<std::io::Result<Vec<u8>>> {
    let mut space = [0; 2048];
    let mut buffer = ReadBuf::new(&mut space);
    let result = Pin::new(stream).poll_read(&mut Context::from_waker(waker), buffer.unfilled());
    result.map_ok(|()| buffer.filled().to_vec())
}

fn write(stream: &mut TapStream, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
    Pin::new(stream).poll_write(&mut Context::from_waker(Waker::noop()), bytes)
}

fn shut(stream: &mut TapStream) {
    let _ = Pin::new(stream).poll_shutdown(&mut Context::from_waker(Waker::noop()));
}

fn assert_reset(stream: &mut TapStream) {
    let reset = |kind| kind == std::io::ErrorKind::ConnectionReset;
    assert!(matches!(read(stream, Waker::noop()), Poll::Ready(Err(error)) if reset(error.kind())));
    assert!(matches!(write(stream, b"x"), Poll::Ready(Err(error)) if reset(error.kind())));
}

fn ports(from: u16, count: usize) -> impl Iterator<Item = u16> {
    (from..).take(count)
}

/// Brings a fresh connection from port 7, with ours as the next number, to the stage that a row is about.
type Bring = fn(&mut Bench, &mut TapStream, u32);
