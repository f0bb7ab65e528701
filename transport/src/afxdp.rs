//! The daemon's wire: the AF_XDP socket, and what the kernel programs that feed it lend.
//!
//! In come chunks of the socket; out go frames, whole even when they span several chunks (`XDP_USE_SG`), and what was
//! read is given back to the accounts that [`Credit`] shares with `steer` and `funnel`. A frame that waits for its turn
//! holds its chunks, so what waits is bounded by the ring. Refused: frames larger than any frame can be.

use std::io;
use std::task::{Context, Poll};

use pve_imds_bpf::{Credit, Tag};

use crate::wire::{Account, Wire};
use crate::xsk::{Chunk, Socket};

/// The largest frame the kernel can hand over: a 64 KiB IP packet and its header.
const LARGEST: usize = 65_536 + 18;

/// The wire.
#[derive(Debug)]
pub struct Xsk {
    socket: Socket,
    /// A frame whose last chunks were not published yet.
    partial: Option<Received>,
    credit: Credit,
    /// Chunks given back to `credit` so far.
    returned: u32,
}

/// A frame in the socket's memory: its chunks, in order.
#[derive(Debug)]
pub struct Received {
    first: Chunk,
    /// Of a jumbo frame.
    rest: Vec<Chunk>,
}

impl Xsk {
    /// Chunks of the receive ring: what `funnel` has to know.
    pub const RING: u32 = Socket::RECEIVE;

    /// A wire over `socket`, fed by the programs that `credit` is of.
    #[must_use]
    pub fn new(socket: Socket, credit: Credit) -> Self {
        Self { socket, partial: None, credit, returned: 0 }
    }
}

impl Wire for Xsk {
    type Frame = Received;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_readable(cx)
    }

    fn next(&mut self) -> Option<(Option<Tag>, Received)> {
        loop {
            let (chunk, more) = self.socket.take()?;
            let frame = match self.partial.take() {
                None => Received { first: chunk, rest: Vec::new() },
                Some(mut frame) => {
                    frame.rest.push(chunk);
                    frame
                }
            };
            if more {
                self.partial = Some(frame);
                continue;
            }
            let tag = self.socket.bytes(&frame.first).first_chunk().and_then(Tag::decode);
            return Some((tag, frame));
        }
    }

    /// A frame larger than any can be is read as an empty one, which means nothing to anybody.
    fn read(&mut self, frame: Received, into: &mut Vec<u8>) {
        into.clear();
        let length: usize = frame.rest.iter().map(Chunk::length).sum::<usize>() + frame.first.length();
        let chunks = i32::try_from(1 + frame.rest.len()).unwrap_or(i32::MAX);
        for chunk in std::iter::once(frame.first).chain(frame.rest) {
            if length <= LARGEST {
                into.extend_from_slice(self.socket.bytes(&chunk));
            }
            self.socket.recycle(chunk);
        }
        self.give_back(Account::Ring, chunks);
    }

    fn lent(&self, account: Account) -> i32 {
        match account {
            Account::Slot(slot) => self.credit.outstanding(slot),
            Account::Ring => self.credit.chunks_outstanding(),
        }
    }

    fn returned(&self, account: Account) -> u32 {
        match account {
            Account::Slot(slot) => self.credit.consumed(slot),
            Account::Ring => self.returned,
        }
    }

    fn give_back(&mut self, account: Account, amount: i32) {
        // The counters wrap, so adding a negative number is subtracting.
        let amount = amount.cast_unsigned();
        match account {
            Account::Slot(slot) => self.credit.acknowledge(slot, amount),
            Account::Ring => {
                self.returned = self.returned.wrapping_add(amount);
                self.credit.release_chunks(amount);
            }
        }
    }

    fn reclaim(&mut self) {
        self.credit.reclaim_lost();
    }

    /// A wire that looks full is emptied first: the kernel takes frames as soon as it is asked to.
    fn room(&mut self) -> usize {
        if self.socket.room() == 0 {
            // What is wrong with the device, the flush at the end of the turn says.
            let _ = self.socket.flush();
        }
        self.socket.room()
    }

    fn send<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        self.socket.send(length, fill)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.socket.flush()
    }
}
