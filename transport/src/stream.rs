//! One connection of a guest as a byte stream that hyper reads and writes.
//!
//! A [`TapStream`] shares its guest's stack with the driver behind one lock that is never held across an await.
//! Reading and writing move bytes between hyper and the socket's buffers and then wake the driver, which sends what
//! became due (data, a larger window, a goodbye). Dropping a stream without shutting it down resets the connection.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;
use hyper::rt::{Read, ReadBufCursor, Write};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::wire::IpEndpoint;

use crate::stack::Stack;

/// What driver and streams of one guest share.
pub(crate) struct Shared {
    stack: Mutex<Stack>,
    kick: Arc<Kick>,
    slot: u16,
    /// Already on the driver's list.
    listed: AtomicBool,
}

/// Tells the driver which guests have something to send.
#[derive(Debug, Default)]
pub(crate) struct Kick {
    slots: Mutex<Vec<u16>>,
    driver: AtomicWaker,
}

impl Kick {
    /// The driver's waker, to be woken by the next kick.
    pub(crate) fn register(&self, waker: &Waker) {
        self.driver.register(waker);
    }

    /// Moves the slots that were kicked into `into`.
    pub(crate) fn take(&self, into: &mut Vec<u16>) {
        into.append(&mut self.slots.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn push(&self, slot: u16) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        self.driver.wake();
    }
}

impl Shared {
    pub(crate) fn new(stack: Stack, kick: Arc<Kick>, slot: u16) -> Self {
        Self { stack: Mutex::new(stack), kick, slot, listed: AtomicBool::new(false) }
    }

    /// A panic inside the lock would have left one guest's stack half changed: it is that guest's alone.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Stack> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the guest on the driver's list, once.
    fn kick(&self) {
        if !self.listed.swap(true, Ordering::AcqRel) {
            self.kick.push(self.slot);
        }
    }

    /// The driver has taken the guest off its list.
    pub(crate) fn unlist(&self) {
        self.listed.store(false, Ordering::Release);
    }
}

/// A guest's TCP connection to the metadata address.
pub struct TapStream {
    shared: Arc<Shared>,
    handle: SocketHandle,
    peer: IpEndpoint,
    shutdown: bool,
}

impl TapStream {
    pub(crate) fn new(shared: Arc<Shared>, handle: SocketHandle, peer: IpEndpoint) -> Self {
        Self { shared, handle, peer, shutdown: false }
    }
}

impl fmt::Debug for TapStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Read for TapStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let result = read(self.shared.lock().socket(self.handle), cx, buffer);
        if result.is_ready() {
            self.shared.kick();
        }
        result
    }
}

impl Write for TapStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = write(self.shared.lock().socket(self.handle), cx, bytes);
        if result.is_ready() {
            self.shared.kick();
        }
        result
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shutdown = true;
        self.shared.lock().socket(self.handle).close();
        self.shared.kick();
        Poll::Ready(Ok(()))
    }
}

impl Drop for TapStream {
    fn drop(&mut self) {
        self.shared.lock().release(self.peer, self.shutdown);
        self.shared.kick();
    }
}

/// Moves what the socket received into `buffer`. Nothing moved and ready: the peer has sent its last byte.
pub(crate) fn read(
    socket: &mut Socket<'_>,
    cx: &mut Context<'_>,
    mut buffer: ReadBufCursor<'_>,
) -> Poll<io::Result<()>> {
    if !socket.can_recv() {
        if !socket.may_recv() && socket.state() != State::SynReceived {
            return Poll::Ready(Ok(()));
        }
        socket.register_recv_waker(cx.waker());
        return Poll::Pending;
    }
    // The ring buffer may wrap: at most two pieces.
    for _ in 0..2 {
        let space = buffer.remaining();
        if space == 0 || !socket.can_recv() {
            break;
        }
        let moved = socket.recv(|data| {
            let length = data.len().min(space);
            buffer.put_slice(&data[..length]);
            (length, ())
        });
        if moved.is_err() {
            break;
        }
    }
    Poll::Ready(Ok(()))
}

/// Moves as much of `bytes` into the socket as it has room for.
pub(crate) fn write(socket: &mut Socket<'_>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    if !socket.may_send() {
        return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
    }
    if !socket.can_send() {
        socket.register_send_waker(cx.waker());
        return Poll::Pending;
    }
    Poll::Ready(socket.send_slice(bytes).map_err(|_| io::ErrorKind::BrokenPipe.into()))
}
