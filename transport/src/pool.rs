//! The sockets of all guests together: how much memory they may hold, and old ones to be used again.
//!
//! A connection's buffers are 80 KiB; making and clearing them anew costs as much as answering the request. So a few
//! sockets wait here for the next connection, of whichever guest. Nothing of the last one can be read through them:
//! smoltcp's ring buffers yield only what was written since they were emptied, and `listen` empties them. Refused: more
//! memory than all guests together may hold, but for the share that every guest is granted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::wire::{IpAddress, IpListenEndpoint};

use crate::bounds;
use crate::connection::Solo;
use crate::ether::{METADATA_IP, METADATA_PORT};

/// Bytes of one connection's buffers.
const CONNECTION: usize = bounds::SEND_BUFFER + bounds::RECEIVE_BUFFER;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Bytes of connections in use.
    held: AtomicUsize,
    spare: Mutex<Vec<Solo>>,
}

impl Pool {
    /// A socket that listens for the metadata address. `None`: the bound is reached and this one is not `granted`.
    pub(crate) fn take(&self, granted: bool) -> Option<Solo> {
        if !granted && self.held.load(Ordering::Relaxed) + CONNECTION > bounds::BUFFERS {
            return None;
        }
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut solo = spare.unwrap_or_else(|| {
            let receive = SocketBuffer::new(vec![0; bounds::RECEIVE_BUFFER]);
            let send = SocketBuffer::new(vec![0; bounds::SEND_BUFFER]);
            let mut socket = Socket::new(receive, send);
            socket.set_nagle_enabled(false);
            // smoltcp's own time-out stays off: it ends connections that are only silent, while we look for an answer.
            Solo::new(socket)
        });
        let endpoint = IpListenEndpoint { addr: Some(IpAddress::Ipv4(METADATA_IP)), port: METADATA_PORT };
        solo.socket_mut().listen(endpoint).ok()?;
        self.held.fetch_add(CONNECTION, Ordering::Relaxed);
        Some(solo)
    }

    /// Bytes of all connections' buffers.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Makes the pool believe that other guests hold this much.
    #[cfg(test)]
    pub(crate) fn hold(&self, bytes: usize) {
        self.held.store(bytes, Ordering::Relaxed);
    }

    /// A connection is over.
    pub(crate) fn give(&self, mut solo: Solo) {
        self.held.fetch_sub(CONNECTION, Ordering::Relaxed);
        // Whoever still waits for it hears of its end here, and not from the next connection.
        solo.socket_mut().abort();
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < bounds::SPARE {
            spare.push(solo);
        }
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::socket::tcp::State;

    use super::*;

    #[test]
    fn the_bound_holds_for_all_but_the_granted() {
        let pool = Pool::default();
        let most = bounds::BUFFERS / CONNECTION;
        pool.hold(most * CONNECTION);
        assert!(pool.take(false).is_none());
        let granted = pool.take(true).unwrap();
        pool.give(granted);
        pool.held.fetch_sub(CONNECTION, Ordering::Relaxed);
        assert!(pool.take(false).is_some());
    }

    #[test]
    fn a_socket_comes_back_listening_and_empty_and_few_are_kept() {
        let pool = Pool::default();
        let solos: Vec<_> = (0..bounds::SPARE + 3).map(|_| pool.take(false).unwrap()).collect();
        solos.into_iter().for_each(|solo| pool.give(solo));
        assert_eq!(pool.held(), 0);
        assert_eq!(pool.spare.lock().unwrap().len(), bounds::SPARE);
        let solo = pool.take(false).unwrap();
        let socket = solo.socket();
        assert_eq!((socket.state(), socket.send_queue(), socket.recv_queue()), (State::Listen, 0, 0));
    }
}
