//! One connection of a guest as a byte stream that hyper reads and writes.
//!
//! A [`TapStream`] shares its guest's stack with the driver behind one lock that is never held across an await.
//! Reading and writing move bytes between hyper and the socket's buffers and then wake the driver, which sends what
//! became due (data, a larger window, a goodbye). Dropping a stream without shutting it down resets the connection. A
//! stream whose connection the stack has ended hears `ConnectionReset` from then on.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;
use hyper::rt::{Read, ReadBufCursor, Write};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::wire::IpEndpoint;

use crate::connection::Ticket;
use crate::patience::Progress;
use crate::stack::{Established, Stack};

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

    /// Calls into the stack, and wakes the driver if that left it something to do.
    fn act<R>(&self, act: impl FnOnce(&mut Stack) -> R) -> R {
        let (result, touched) = {
            let mut stack = self.lock();
            (act(&mut stack), stack.is_touched())
        };
        if touched {
            self.kick();
        }
        result
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

/// A guest's TCP connection to the metadata address. Once it is shut down there is nothing more to read from it.
pub struct TapStream {
    shared: Arc<Shared>,
    ticket: Ticket,
    peer: IpEndpoint,
    progress: Arc<Progress>,
}

impl TapStream {
    pub(crate) fn new(shared: Arc<Shared>, connection: Established) -> Self {
        let Established { ticket, peer, progress } = connection;
        Self { shared, ticket, peer, progress }
    }

    /// What the connection's server tells its stack.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Does something with the socket, if the connection is still this stream's.
    fn with<R>(&self, act: impl FnOnce(&mut Socket<'static>, &Progress, &mut u64) -> R) -> io::Result<R> {
        self.shared.act(|stack| stack.with(self.ticket, act)).ok_or_else(|| io::ErrorKind::ConnectionReset.into())
    }
}

impl fmt::Debug for TapStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Read for TapStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        self.with(|socket, progress, _| {
            let before = socket.recv_queue();
            let result = read(socket, cx, buffer);
            if socket.recv_queue() < before {
                progress.read();
            }
            result
        })
        .unwrap_or_else(|gone| Poll::Ready(Err(gone)))
    }
}

impl Write for TapStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|socket, _, written| {
            let result = write(socket, cx, bytes);
            if let Poll::Ready(Ok(count)) = result {
                *written += count as u64;
            }
            result
        })
        .unwrap_or_else(|gone| Poll::Ready(Err(gone)))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.act(|stack| stack.release(self.ticket, true));
        Poll::Ready(Ok(()))
    }
}

impl Drop for TapStream {
    fn drop(&mut self) {
        self.shared.act(|stack| stack.release(self.ticket, false));
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
