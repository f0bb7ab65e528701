//! A guest: its own smoltcp, its own ARP question, connections that a hyper client can use.
//!
//! It checks what a kernel would: an answer is addressed to it, comes from the metadata address' MAC and on its own VLAN.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use pve_imds_bpf::{METADATA_MAC, Tag};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use tokio::time::Instant;

use super::Switch;
use crate::ether::{METADATA_IP, METADATA_PORT};
use crate::stream::{read, write};
use crate::wire::{ETHERNET_HEADER, MTU};

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
    /// The time to live of every packet that came.
    hops: Vec<u8>,
    resolved: bool,
    asked: Option<Instant>,
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").finish_non_exhaustive()
    }
}

impl Nic {
    pub(super) fn new(switch: Switch, tag: Tag, mac: [u8; 6], ip: Ipv4Addr) -> Self {
        Self { stack: Arc::new(Mutex::new(Guest::new(switch, tag, mac, ip))) }
    }

    fn lock(&self) -> MutexGuard<'_, Guest> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time to live of every packet that came since this was last asked.
    #[must_use]
    pub fn hops(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().port.hops)
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
    pub(super) async fn run(self) {
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
                let Some(arrived) = switch.poll_next(slot, cx, &mut sleep) else { return Poll::Ready(()) };
                let due = wait.is_some_and(|wait| {
                    timer.as_mut().reset(Instant::now() + wait);
                    timer.as_mut().poll(cx).is_ready()
                });
                if arrived.is_pending() && !due {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }
}

impl Guest {
    fn new(switch: Switch, tag: Tag, mac: [u8; 6], ip: Ipv4Addr) -> Self {
        let mut port =
            Port { switch, tag, mac, ip, inbound: VecDeque::new(), hops: Vec::new(), resolved: false, asked: None };
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
            let Some(mut frame) = self.switch.next(self.tag.slot.number()) else { return };
            let vlan = frame.split_off(frame.len() - 2);
            let vlan = Some(u16::from_be_bytes([vlan[0], vlan[1]])).filter(|vlan| *vlan != 0);
            assert_eq!(frame[..6], self.mac, "an answer for this guest is addressed to it");
            assert_eq!(frame[6..12], METADATA_MAC, "an answer comes from our address");
            assert_eq!(vlan, self.tag.vlan, "an answer comes where the question came from");
            match frame[12..14] {
                [0x08, 0x06] => self.resolved |= frame[22..28] == METADATA_MAC,
                _ => {
                    self.hops.push(frame[ETHERNET_HEADER + 8]);
                    self.inbound.push_back(frame.split_off(ETHERNET_HEADER));
                }
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
    /// Sends these bytes and reads until the other side closes.
    ///
    /// # Errors
    /// The connection ended before everything was sent.
    pub async fn exchange(mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.send(bytes).await?;
        self.read_to_end().await
    }

    /// Sends these bytes.
    ///
    /// # Errors
    /// The connection ended before everything was sent.
    pub async fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = poll_fn(|cx| Pin::new(&mut *self).poll_write(cx, bytes)).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Reads until the other side closes.
    ///
    /// # Errors
    /// None today: an end is an end, by whatever means.
    pub async fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        loop {
            let mut space = [0; 1024];
            let mut buffer = ReadBuf::new(&mut space);
            poll_fn(|cx| Pin::new(&mut *self).poll_read(cx, buffer.unfilled())).await?;
            if buffer.filled().is_empty() {
                return Ok(answer);
            }
            answer.extend_from_slice(buffer.filled());
        }
    }

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
