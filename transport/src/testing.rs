//! The in-memory twin of the wire, and a guest to put at its other end.
//!
//! A [`Switch`] stands where the kernel programs and the veth pair stand: it hands tagged frames to the daemon's
//! [`SwitchWire`] and answers to the guest whose slot and generation they carry, with seeded loss, duplication and
//! delay. A [`Nic`] is a guest: its own smoltcp, its own ARP question, connections that a hyper client can use. All
//! time is tokio's, so a test may pause it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use pve_imds_bpf::{Epoch, METADATA_MAC, Tag};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use tokio::time::{Instant, Sleep};

use crate::driver::Seat;
use crate::ether::{METADATA_IP, METADATA_PORT};
use crate::stream::{read, write};
use crate::wire::{ETHERNET_HEADER, MTU, Wire};

/// What the way between guest and daemon does to frames.
#[derive(Clone, Copy, Debug)]
pub struct Impairment {
    /// Each frame arrives this much later.
    pub delay: Duration,
    /// Of 1000 frames, this many are lost.
    pub loss: u32,
    /// Of 1000 frames, this many arrive twice.
    pub duplicate: u32,
    /// Where the dice start.
    pub seed: u64,
    /// The daemon's wire takes this many frames between two flushes.
    pub room: usize,
}

impl Default for Impairment {
    fn default() -> Self {
        Self { delay: Duration::ZERO, loss: 0, duplicate: 0, seed: 1, room: QUEUE }
    }
}

/// How many frames fit the way to the daemon and the way to each guest; a tap's queue holds 1000.
const QUEUE: usize = 1000;

#[derive(Default)]
struct Line {
    frames: VecDeque<(Instant, Vec<u8>)>,
    reader: Option<Waker>,
}

impl Line {
    fn pop(&mut self) -> Option<Vec<u8>> {
        let due = self.frames.front().is_some_and(|(due, _)| *due <= Instant::now());
        if due { self.frames.pop_front().map(|(_, frame)| frame) } else { None }
    }

    /// Ready when a frame is due.
    fn poll(&mut self, cx: &mut Context<'_>, sleep: &mut Pin<Box<Sleep>>) -> Poll<()> {
        self.reader = Some(cx.waker().clone());
        let Some((due, _)) = self.frames.front() else { return Poll::Pending };
        sleep.as_mut().reset(*due);
        sleep.as_mut().poll(cx)
    }
}

struct Inner {
    impairment: Impairment,
    dice: u64,
    daemon: Line,
    guests: HashMap<u16, (Seat, Line)>,
    lost: u64,
    astray: u64,
}

impl Inner {
    /// Of 1000, true this often (xorshift64).
    fn happens(&mut self, per_mille: u32) -> bool {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % 1000 < u64::from(per_mille)
    }

    fn copies(&mut self) -> usize {
        let Impairment { loss, duplicate, .. } = self.impairment;
        if self.happens(loss) {
            self.lost += 1;
            return 0;
        }
        1 + usize::from(self.happens(duplicate))
    }

    fn put(&mut self, to: Option<u16>, frame: &[u8]) {
        let due = Instant::now() + self.impairment.delay;
        for _ in 0..self.copies() {
            let line = match to {
                None => Some(&mut self.daemon),
                Some(slot) => self.guests.get_mut(&slot).map(|(_, line)| line),
            };
            if let Some(line) = line.filter(|line| line.frames.len() < QUEUE) {
                line.frames.push_back((due, frame.to_vec()));
                if let Some(reader) = line.reader.take() {
                    reader.wake();
                }
            }
        }
    }
}

/// The place of the kernel programs.
#[derive(Clone)]
pub struct Switch {
    inner: Arc<Mutex<Inner>>,
    epoch: Epoch,
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Switch {
    /// A switch without guests.
    #[must_use]
    pub fn new(epoch: Epoch, impairment: Impairment) -> Self {
        let dice = impairment.seed.max(1);
        let inner = Inner { impairment, dice, daemon: Line::default(), guests: HashMap::new(), lost: 0, astray: 0 };
        Self { inner: Arc::new(Mutex::new(inner)), epoch }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The daemon's end.
    #[must_use]
    pub fn wire(&self) -> SwitchWire {
        SwitchWire { switch: self.clone(), sent: 0, sleep: Box::pin(tokio::time::sleep(Duration::ZERO)) }
    }

    /// Plugs a guest in and runs it as a task. `vlan` is the tag the guest puts on its frames.
    #[must_use]
    pub fn plug(&self, seat: Seat, mac: [u8; 6], ip: Ipv4Addr, vlan: Option<u16>) -> Nic {
        self.lock().guests.insert(seat.slot.number(), (seat, Line::default()));
        let tag = Tag { epoch: self.epoch, vlan, generation: seat.generation, slot: seat.slot };
        let nic = Nic { stack: Arc::new(Mutex::new(Guest::new(self.clone(), tag, mac, ip))) };
        tokio::spawn(nic.clone().run());
        nic
    }

    /// Frames the dice took.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Answers whose tag named nobody: `return` drops them.
    #[must_use]
    pub fn astray(&self) -> u64 {
        self.lock().astray
    }

    /// Puts a frame on the way to the daemon as it is, tag and all.
    pub fn inject(&self, frame: &[u8]) {
        self.lock().put(None, frame);
    }

    /// What `return` does: tag off, our address on, out to the guest it names.
    fn deliver(&self, mut frame: Vec<u8>) {
        let mut inner = self.lock();
        let tag = frame[6..12].first_chunk().and_then(Tag::decode).filter(|tag| tag.epoch == self.epoch);
        let seat = tag.map(|tag| Seat { slot: tag.slot, generation: tag.generation });
        let known = seat.filter(|seat| inner.guests.get(&seat.slot.number()).is_some_and(|(known, _)| known == seat));
        match known {
            Some(seat) => {
                // Where `return` pushes the VLAN tag back, the twin keeps it in the place of our address' last bytes.
                let vlan = tag.and_then(|tag| tag.vlan).unwrap_or(0);
                frame[6..12].copy_from_slice(&METADATA_MAC);
                frame.extend_from_slice(&vlan.to_be_bytes());
                inner.put(Some(seat.slot.number()), &frame);
            }
            None => inner.astray += 1,
        }
    }
}

/// The daemon's end of a [`Switch`].
#[derive(Debug)]
pub struct SwitchWire {
    switch: Switch,
    /// Since the last flush.
    sent: usize,
    sleep: Pin<Box<Sleep>>,
}

impl Wire for SwitchWire {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.switch.lock().daemon.poll(cx, &mut self.sleep).map(Ok)
    }

    fn recv(&mut self, frame: &mut Vec<u8>) -> bool {
        let Some(next) = self.switch.lock().daemon.pop() else { return false };
        *frame = next;
        true
    }

    fn room(&mut self) -> usize {
        let room = self.switch.lock().impairment.room;
        room.saturating_sub(self.sent)
    }

    fn send<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        assert!(self.room() > 0, "only with room left");
        self.sent += 1;
        let mut frame = vec![0; length];
        let result = fill(&mut frame);
        self.switch.deliver(frame);
        result
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.sent = 0;
        Ok(true)
    }
}

/// A guest's network interface with a TCP client behind it.
#[derive(Clone)]
pub struct Nic {
    stack: Arc<Mutex<Guest>>,
}

struct Guest {
    interface: Interface,
    sockets: SocketSet<'static>,
    port: Port,
    next: u16,
    started: Instant,
    task: Option<Waker>,
}

/// The guest's side of the cable.
struct Port {
    switch: Switch,
    tag: Tag,
    mac: [u8; 6],
    ip: Ipv4Addr,
    inbound: VecDeque<Vec<u8>>,
    resolved: bool,
    asked: Option<Instant>,
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").finish_non_exhaustive()
    }
}

impl Nic {
    fn lock(&self) -> MutexGuard<'_, Guest> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection to the metadata address.
    ///
    /// # Errors
    /// `ConnectionRefused` on a reset, `TimedOut` when nobody answers.
    pub async fn connect(&self) -> io::Result<GuestStream> {
        let stream = {
            let mut guest = self.lock();
            let receive = SocketBuffer::new(vec![0; 256 << 10]);
            let send = SocketBuffer::new(vec![0; 256 << 10]);
            let mut socket = Socket::new(receive, send);
            socket.set_timeout(Some(smoltcp::time::Duration::from_secs(60)));
            guest.next = guest.next.checked_add(1).unwrap_or(49_152);
            let local = guest.next;
            let Guest { interface, sockets, .. } = &mut *guest;
            socket
                .connect(interface.context(), (IpAddress::Ipv4(METADATA_IP), METADATA_PORT), local)
                .map_err(|error| io::Error::other(error.to_string()))?;
            let handle = sockets.add(socket);
            guest.wake();
            GuestStream { nic: self.clone(), handle }
        };
        poll_fn(|cx| {
            let mut guest = stream.nic.lock();
            let socket = guest.socket(stream.handle);
            socket.register_send_waker(cx.waker());
            socket.register_recv_waker(cx.waker());
            match socket.state() {
                State::SynSent | State::SynReceived => Poll::Pending,
                State::Closed => Poll::Ready(Err(io::Error::from(io::ErrorKind::ConnectionRefused))),
                _ => Poll::Ready(Ok(())),
            }
        })
        .await?;
        Ok(stream)
    }

    /// Moves frames for as long as anyone holds the guest.
    async fn run(self) {
        let weak = Arc::downgrade(&self.stack);
        drop(self);
        let mut sleep = Box::pin(tokio::time::sleep(Duration::ZERO));
        let mut timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        poll_fn(|cx| {
            let Some(stack) = weak.upgrade() else { return Poll::Ready(()) };
            let mut guest = stack.lock().unwrap_or_else(PoisonError::into_inner);
            guest.task = Some(cx.waker().clone());
            loop {
                let wait = guest.turn();
                let switch = guest.port.switch.clone();
                let slot = guest.port.tag.slot.number();
                let mut inner = switch.lock();
                let Some((_, line)) = inner.guests.get_mut(&slot) else { return Poll::Ready(()) };
                let arrived = line.poll(cx, &mut sleep).is_ready();
                drop(inner);
                let due = wait.is_some_and(|wait| {
                    timer.as_mut().reset(Instant::now() + wait);
                    timer.as_mut().poll(cx).is_ready()
                });
                if !arrived && !due {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }
}

impl Guest {
    fn new(switch: Switch, tag: Tag, mac: [u8; 6], ip: Ipv4Addr) -> Self {
        let mut port = Port { switch, tag, mac, ip, inbound: VecDeque::new(), resolved: false, asked: None };
        let started = Instant::now();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from_be_bytes([7, 7, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]]);
        let mut interface = Interface::new(config, &mut port, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let full = addresses.push(IpCidr::new(IpAddress::Ipv4(ip), 0));
            debug_assert!(full.is_ok(), "an interface has room for its first address");
        });
        let next = 49_152 + u16::from(mac[5]);
        Self { interface, sockets: SocketSet::new(Vec::new()), port, next, started, task: None }
    }

    fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    fn wake(&mut self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// Receives and sends; how long until that is needed again.
    fn turn(&mut self) -> Option<Duration> {
        self.port.receive_frames();
        let now = Instant::now();
        let micros = now.saturating_duration_since(self.started).as_micros();
        let clock = smoltcp::time::Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
        self.interface.poll(clock, &mut self.port, &mut self.sockets);
        let wait =
            self.interface.poll_delay(clock, &self.sockets).map(|wait| Duration::from_micros(wait.total_micros()));
        match (self.port.resolved, self.port.asked) {
            (false, Some(asked)) => Some((asked + ARP_PATIENCE).saturating_duration_since(now)),
            _ => wait,
        }
    }
}

/// A Linux guest asks again after a second.
const ARP_PATIENCE: Duration = Duration::from_secs(1);

impl Port {
    fn receive_frames(&mut self) {
        loop {
            let frame = {
                let mut inner = self.switch.lock();
                inner.guests.get_mut(&self.tag.slot.number()).and_then(|(_, line)| line.pop())
            };
            let Some(mut frame) = frame else { return };
            let vlan = frame.split_off(frame.len() - 2);
            let vlan = Some(u16::from_be_bytes([vlan[0], vlan[1]])).filter(|vlan| *vlan != 0);
            assert_eq!(frame[..6], self.mac, "an answer for this guest is addressed to it");
            assert_eq!(frame[6..12], METADATA_MAC, "an answer comes from our address");
            assert_eq!(vlan, self.tag.vlan, "an answer comes where the question came from");
            match frame[12..14] {
                [0x08, 0x06] => self.resolved |= frame[22..28] == METADATA_MAC,
                _ => self.inbound.push_back(frame.split_off(ETHERNET_HEADER)),
            }
        }
    }

    fn put(&self, kind: [u8; 2], payload: &[u8]) {
        let frame = [&self.tag.encode()[..], &self.mac, &kind, payload].concat();
        self.switch.inject(&frame);
    }

    /// Like a kernel: nothing is sent before the hardware address is known.
    fn resolve(&mut self) -> bool {
        let now = Instant::now();
        if !self.resolved && self.asked.is_none_or(|asked| now >= asked + ARP_PATIENCE) {
            self.asked = Some(now);
            let question =
                [&[0, 1, 0x08, 0x00, 6, 4, 0, 1][..], &self.mac, &self.ip.octets(), &[0; 6], &METADATA_IP.octets()];
            self.put([0x08, 0x06], &question.concat());
        }
        self.resolved
    }
}

impl Device for Port {
    type RxToken<'a> = Packet;
    type TxToken<'a> = Slip<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Packet, Slip<'_>)> {
        self.inbound.pop_front().map(|packet| (Packet(packet), Slip(self)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Slip<'_>> {
        if self.resolve() { Some(Slip(self)) } else { None }
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

/// A received packet.
#[derive(Debug)]
pub struct Packet(Vec<u8>);

impl RxToken for Packet {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

/// A chance to send.
struct Slip<'a>(&'a mut Port);

impl TxToken for Slip<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut packet = vec![0; length];
        let result = f(&mut packet);
        self.0.put([0x08, 0x00], &packet);
        result
    }
}

/// A guest's connection, for a hyper client.
#[derive(Debug)]
pub struct GuestStream {
    nic: Nic,
    handle: SocketHandle,
}

impl GuestStream {
    /// Ends the connection with a reset.
    pub fn abort(self) {
        self.nic.lock().socket(self.handle).abort();
    }
}

impl Read for GuestStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let mut guest = self.nic.lock();
        let result = read(guest.socket(self.handle), cx, buffer);
        guest.wake();
        result
    }
}

impl Write for GuestStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut guest = self.nic.lock();
        let result = write(guest.socket(self.handle), cx, bytes);
        guest.wake();
        result
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut guest = self.nic.lock();
        guest.socket(self.handle).close();
        guest.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for GuestStream {
    fn drop(&mut self) {
        let mut guest = self.nic.lock();
        guest.socket(self.handle).close();
        guest.wake();
    }
}
