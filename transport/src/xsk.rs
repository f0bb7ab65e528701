//! The one AF_XDP socket and the kernel's rings behind it. All `unsafe` of this room is here.
//!
//! In come the chunks of frames that `funnel` redirected (several for a large one, `XDP_USE_SG`); out go frames of at
//! most one chunk, in copy mode. See the kernel's Documentation/networking/af_xdp.rst.
//!
//! # Who owns which memory
//!
//! The UMEM is one anonymous mapping of chunks of [`CHUNK`] bytes. The first [`RECEIVE`] chunks receive: each is either
//! in the fill ring (the kernel's), in the receive ring (ours), or a [`Chunk`], which is the proof that it is ours and is
//! given up to put it back. The other [`SEND`] chunks send: each is in `free` (ours), or in the transmit ring or under
//! way (the kernel's) until the completion ring returns it. A ring has as many entries as there are chunks that can be in it, so
//! a ring of ours is never full. The socket and its mappings live and die with [`Socket`]; the kernel keeps
//! pages alive that it still uses.
//!
//! Each ring has one producer and one consumer: the kernel at one end, `&mut Socket` at the other. An index is published
//! with release and read with acquire ordering, after and before the entries it covers.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions, XdpRingOffset, XdpStatistics, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with, sockopt};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes of a chunk. The kernel keeps 256 of them as headroom when it fills one.
const CHUNK: u32 = 2048;

/// Chunks that receive: 4 MiB. What all guests together can have on the way to us; 4096 brought nothing over 2048.
const RECEIVE: u32 = 2048;

/// Chunks that send: 1 MiB. The kernel sends while we wait for it, so more would never be under way.
const SEND: u32 = 512;

/// A bound AF_XDP socket and its rings.
pub struct Socket {
    socket: AsyncFd<OwnedFd>,
    umem: Mapping,
    fill: Ring<u64>,
    completion: Ring<u64>,
    receive: Ring<XdpDesc>,
    transmit: Ring<XdpDesc>,
    /// Send chunks that nobody uses.
    free: Vec<u64>,
}

/// A received piece of a frame. Whoever holds it owns its memory.
#[derive(Debug)]
pub(crate) struct Chunk(XdpDesc);

impl Chunk {
    /// Bytes in it.
    pub(crate) fn length(&self) -> usize {
        self.0.len as usize
    }
}

// SAFETY: the pointers inside point into mappings that `Socket` alone owns and that are not tied to a thread; every
// access to them goes through `&mut Socket` (or the kernel, by the rings' protocol).
unsafe impl Send for Socket {}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("free", &self.free.len()).finish_non_exhaustive()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

impl Socket {
    /// Chunks of the receive ring.
    pub const RECEIVE: u32 = RECEIVE;

    /// Binds a socket to queue 0 of the interface with this index. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Whatever the kernel says; `EBUSY` while an older socket still holds the queue, `ENOBUFS`/`EPERM` when memory
    /// may not be pinned.
    pub fn bind(interface: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
        let umem = Mapping::anonymous((RECEIVE + SEND) as usize * CHUNK as usize)?;
        let registration = XdpUmemReg {
            addr: umem.start.as_ptr() as u64,
            len: umem.length as u64,
            chunk_size: CHUNK,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&socket, registration)?;
        sockopt::set_xdp_umem_fill_ring_size(&socket, RECEIVE)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, SEND)?;
        sockopt::set_xdp_rx_ring_size(&socket, RECEIVE)?;
        sockopt::set_xdp_tx_ring_size(&socket, SEND)?;
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let mut fill = Ring::map(&socket, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, RECEIVE)?;
        let completion = Ring::map(&socket, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, SEND)?;
        let receive = Ring::map(&socket, XDP_PGOFF_RX_RING, &offsets.rx, RECEIVE)?;
        let transmit = Ring::map(&socket, XDP_PGOFF_TX_RING, &offsets.tx, SEND)?;
        for chunk in 0..RECEIVE {
            fill.push(u64::from(chunk) * u64::from(CHUNK));
        }
        fill.publish();
        let free = (RECEIVE..RECEIVE + SEND).map(|chunk| u64::from(chunk) * u64::from(CHUNK)).collect();
        let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_SG;
        bind(&socket, &SocketAddrXdp::new(flags, interface, 0))?;
        // SAFETY: the descriptor is owned by the `AsyncFd` and stays the same open socket until that is dropped.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Self { socket, umem, fill, completion, receive, transmit, free })
    }

    /// What the kernel counted for this socket.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn statistics(&self) -> io::Result<XdpStatistics> {
        Ok(sockopt::xdp_statistics(self)?)
    }

    /// Takes back the send chunks that the kernel is done with.
    fn reap(&mut self) {
        while let Some(address) = self.completion.pop() {
            self.free.push(address);
        }
        self.completion.release();
    }

    /// Ready when a chunk may have been published since [`Socket::take`] last found none.
    pub(crate) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut guard = ready!(self.socket.poll_read_ready(cx))?;
        guard.clear_ready();
        Poll::Ready(Ok(()))
    }

    /// The next chunk, and whether its frame goes on in the one after it.
    pub(crate) fn take(&mut self) -> Option<(Chunk, bool)> {
        let descriptor = self.receive.pop()?;
        self.receive.release();
        Some((Chunk(descriptor), descriptor.options.contains(XdpDescOptions::XDP_PKT_CONTD)))
    }

    /// What is in a chunk; nothing if the kernel named memory that is not ours.
    pub(crate) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        let (start, length) = (chunk_start(chunk.0.addr), chunk.length());
        if start.checked_add(length).is_none_or(|end| end > self.umem.length) {
            return &[];
        }
        // SAFETY: inside the mapping, checked above. The range lies in a receive chunk that the kernel handed to us
        // and that, while there is a `Chunk` of it, is not in the fill ring, so nobody writes to it while this borrow
        // lives.
        unsafe { std::slice::from_raw_parts(self.umem.start.as_ptr().add(start), length) }
    }

    /// Gives a chunk back to the kernel.
    pub(crate) fn recycle(&mut self, chunk: Chunk) {
        self.fill.push(chunk.0.addr & !u64::from(CHUNK - 1));
        self.fill.publish();
    }

    /// How many frames [`Socket::send`] will take now.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Sends a frame of `length` bytes, at most a chunk, that `fill` writes in place.
    pub(crate) fn send<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        // A frame that fits no chunk, or comes without room, is written and lost: both are against the wire's word.
        let fits = u32::try_from(length).ok().filter(|length| *length <= CHUNK);
        debug_assert!(fits.is_some(), "a frame of ours fits a chunk");
        let Some((length, address)) = fits.and_then(|length| Some((length, self.free.pop()?))) else {
            return fill(&mut vec![0; length]);
        };
        // SAFETY: `address` is a send chunk from `free`: inside the mapping, a whole chunk long, and until it is pushed
        // below nobody else's.
        let frame = unsafe {
            std::slice::from_raw_parts_mut(self.umem.start.as_ptr().add(chunk_start(address)), length as usize)
        };
        let result = fill(frame);
        self.transmit.push(XdpDesc { addr: address, len: length, options: XdpDescOptions::empty() });
        self.transmit.publish();
        result
    }

    /// Asks the kernel to send. `false`: some of it stays queued.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        // In copy mode the kernel sends only when asked, 32 frames at a time.
        let mut left = self.transmit.unconsumed();
        while left > 0 {
            match send(self.socket.get_ref(), &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::BUSY | rustix::io::Errno::NOBUFS) => {}
                // The device is down: it comes back or is rebuilt, the frames wait.
                Err(rustix::io::Errno::NETDOWN) => break,
                Err(error) => return Err(error.into()),
            }
            let now = self.transmit.unconsumed();
            if now >= left {
                break;
            }
            left = now;
        }
        self.reap();
        Ok(left == 0)
    }
}

/// An address of ours as an index: the UMEM is 5 MiB, so it fits.
fn chunk_start(address: u64) -> usize {
    usize::try_from(address).unwrap_or(0)
}

/// A mapping that is undone on drop.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn anonymous(length: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE)? };
        Self::new(start.cast(), length)
    }

    fn ring(socket: &OwnedFd, offset: u64, length: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as above; the kernel refuses a length beyond the ring.
        let start = unsafe { mmap(std::ptr::null_mut(), length, access, flags, socket, offset)? };
        Self::new(start.cast(), length)
    }

    fn new(start: *mut u8, length: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` was given; every reference into it borrows from its owner.
        let undone = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(undone.is_ok(), "a mapping of ours can be undone");
    }
}

/// Our end of one ring: producer of fill and transmit, consumer of receive and completion.
struct Ring<T> {
    _mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    /// How many, a power of two.
    size: u32,
    /// Our own index, ahead of the published one.
    ours: u32,
    /// The other end's index, as last seen.
    theirs: u32,
}

impl<T: Copy> Ring<T> {
    fn map(socket: &OwnedFd, page: u64, offset: &XdpRingOffset, size: u32) -> io::Result<Self> {
        let at = |offset: u64| usize::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        let (producer, consumer, entries) = (at(offset.producer)?, at(offset.consumer)?, at(offset.desc)?);
        let length = entries + size as usize * size_of::<T>();
        Self::over(Mapping::ring(socket, page, length)?, [producer, consumer, entries], size)
    }

    fn over(mapping: Mapping, [producer, consumer, entries]: [usize; 3], size: u32) -> io::Result<Self> {
        let fits = |offset: usize, size: usize| offset.checked_add(size).is_some_and(|end| end <= mapping.length);
        if !size.is_power_of_two()
            || ![producer, consumer].into_iter().all(|index| fits(index, 4))
            || !fits(entries, size as usize * size_of::<T>())
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: the offsets lie inside the mapping, checked above, and the kernel aligns them for their types.
        let (producer, consumer, entries) = unsafe {
            (mapping.start.add(producer).cast(), mapping.start.add(consumer).cast(), mapping.start.add(entries).cast())
        };
        Ok(Self { _mapping: mapping, producer, consumer, entries, size, ours: 0, theirs: 0 })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: a valid, aligned u32 inside a mapping that lives as long as `self`; shared with the kernel, which
        // accesses it atomically too.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for `producer`.
        unsafe { self.consumer.as_ref() }
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: masked to the ring's size, so inside the mapping (`over` checked its length).
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }

    /// As producer: writes an entry. There is room by construction (see the head of this file).
    fn push(&mut self, entry: T) {
        // SAFETY: this entry lies beyond what we published, so the kernel does not read it yet.
        unsafe { self.entry(self.ours).write(entry) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// As producer: lets the kernel see what was pushed.
    fn publish(&mut self) {
        self.producer().store(self.ours, Ordering::Release);
    }

    /// As producer: entries the kernel has not taken yet.
    fn unconsumed(&self) -> u32 {
        self.ours.wrapping_sub(self.consumer().load(Ordering::Acquire))
    }

    /// As consumer: reads the next entry, if the kernel published one.
    fn pop(&mut self) -> Option<T> {
        if self.ours == self.theirs {
            self.theirs = self.producer().load(Ordering::Acquire);
            if self.ours == self.theirs {
                return None;
            }
        }
        // SAFETY: published by the kernel and not released by us, so the kernel does not write it.
        let entry = unsafe { self.entry(self.ours).read() };
        self.ours = self.ours.wrapping_add(1);
        Some(entry)
    }

    /// As consumer: gives what was popped back to the kernel.
    fn release(&mut self) {
        self.consumer().store(self.ours, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 256;

    /// Two ends over one piece of memory: the ring protocol without the kernel.
    fn ends() -> (Ring<u64>, Ring<u64>) {
        let length = 128 + SIZE as usize * 8;
        let mapping = Mapping::anonymous(length).unwrap();
        let twin = Mapping { start: mapping.start, length: mapping.length };
        let producer = Ring::over(mapping, [0, 64, 128], SIZE).unwrap();
        let consumer = Ring::over(twin, [0, 64, 128], SIZE).unwrap();
        (producer, consumer)
    }

    #[test]
    fn entries_cross_in_order_and_wrap() {
        let (mut producer, mut consumer) = ends();
        let mut next = 0u64;
        let mut expected = 0u64;
        for round in 0..50u64 {
            let burst = (round * 37) % u64::from(SIZE + 1);
            for _ in 0..burst {
                producer.push(next);
                next += 1;
            }
            assert_eq!(consumer.pop(), None, "not published yet");
            producer.publish();
            assert_eq!(u64::from(producer.unconsumed()), burst);
            while let Some(entry) = consumer.pop() {
                assert_eq!(entry, expected);
                expected += 1;
            }
            consumer.release();
            assert_eq!(producer.unconsumed(), 0);
        }
        assert_eq!(next, expected);
        std::mem::forget(consumer);
    }

    #[test]
    fn indexes_may_overflow() {
        let (mut producer, mut consumer) = ends();
        producer.ours = u32::MAX - 1;
        consumer.ours = u32::MAX - 1;
        consumer.theirs = u32::MAX - 1;
        for entry in 0..4 {
            producer.push(entry);
        }
        producer.publish();
        assert_eq!(std::iter::from_fn(|| consumer.pop()).collect::<Vec<_>>(), [0, 1, 2, 3]);
        std::mem::forget(consumer);
    }

    #[test]
    fn a_ring_outside_its_mapping_is_refused() {
        for (offsets, size) in [([0, 64, 128], 512), ([0, 4093, 128], 2), ([0, 64, 128], 3), ([0, 64, usize::MAX], 2)] {
            let mapping = Mapping::anonymous(4096).unwrap();
            assert!(Ring::<u64>::over(mapping, offsets, size).is_err(), "{offsets:?} {size}");
        }
    }
}
