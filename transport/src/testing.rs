//! The in-memory twin of the wire, and a guest to put at its other end.
//!
//! A [`Switch`] stands where the kernel programs and the veth pair stand: it hands tagged frames to the daemon's
//! [`SwitchWire`] and answers to the guest whose slot and generation they carry, with seeded loss, duplication and
//! delay. It lends as they do: 256 frames of a slot at most are on their way and not yet read. A [`Nic`] is a guest: its own smoltcp, its own ARP question, connections that a hyper client can use. All
//! time is tokio's, so a test may pause it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pve_imds_bpf::{Credit, Epoch, METADATA_MAC, Tag};
use tokio::time::{Instant, Sleep};

use crate::seats::Seat;
use crate::wire::{Account, Wire};

pub mod fuzz;
mod guest;
mod probe;
mod raw;

pub use guest::{GuestStream, Nic, Packet};
pub use probe::{Holdings, Probe};
pub use raw::{Raw, Spoken};

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

/// What was lent to a slot and what came back; both wrap.
#[derive(Clone, Copy, Default)]
struct Loan {
    lent: u32,
    returned: u32,
}

impl Loan {
    fn open(self) -> i32 {
        self.lent.wrapping_sub(self.returned).cast_signed()
    }
}

struct Inner {
    impairment: Impairment,
    dice: u64,
    daemon: Line,
    guests: HashMap<u16, (Seat, Line)>,
    loans: HashMap<u16, Loan>,
    lost: u64,
    astray: u64,
    refused: u64,
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

    /// What `steer` does: a frame with a tag passes if its slot has credit left.
    fn lend(&mut self, frame: &[u8]) -> bool {
        let Some(tag) = frame.first_chunk().and_then(Tag::decode) else { return true };
        let loan = self.loans.entry(tag.slot.number()).or_default();
        if loan.open() >= Credit::SEGMENTS.cast_signed() {
            self.refused += 1;
            return false;
        }
        loan.lent = loan.lent.wrapping_add(1);
        true
    }

    fn put(&mut self, to: Option<u16>, frame: &[u8]) {
        if to.is_none() && !self.lend(frame) {
            return;
        }
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
        let inner = Inner {
            impairment,
            dice,
            daemon: Line::default(),
            guests: HashMap::new(),
            loans: HashMap::new(),
            lost: 0,
            astray: 0,
            refused: 0,
        };
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
        let nic = Nic::new(self.clone(), tag, mac, ip);
        tokio::spawn(nic.clone().run());
        nic
    }

    /// Frames the dice took.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Frames of guests that had no credit left.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.lock().refused
    }

    /// From now on, of 1000 frames this many are lost.
    pub fn lose(&self, per_mille: u32) {
        self.lock().impairment.loss = per_mille;
    }

    /// Answers whose tag named nobody: `return` drops them.
    #[must_use]
    pub fn astray(&self) -> u64 {
        self.lock().astray
    }

    /// The next frame that is due at this guest.
    fn next(&self, slot: u16) -> Option<Vec<u8>> {
        self.lock().guests.get_mut(&slot).and_then(|(_, line)| line.pop())
    }

    /// Ready when a frame is due at this guest. `None`: it is not plugged in.
    fn poll_next(&self, slot: u16, cx: &mut Context<'_>, sleep: &mut Pin<Box<Sleep>>) -> Option<Poll<()>> {
        self.lock().guests.get_mut(&slot).map(|(_, line)| line.poll(cx, sleep))
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

impl SwitchWire {
    fn loan(&self, account: Account) -> Loan {
        match account {
            Account::Slot(slot) => self.switch.lock().loans.get(&slot.number()).copied().unwrap_or_default(),
            Account::Ring => Loan::default(),
        }
    }
}

impl Wire for SwitchWire {
    type Frame = Vec<u8>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.switch.lock().daemon.poll(cx, &mut self.sleep).map(Ok)
    }

    fn next(&mut self) -> Option<(Option<Tag>, Vec<u8>)> {
        let frame = self.switch.lock().daemon.pop()?;
        Some((frame.first_chunk().and_then(Tag::decode), frame))
    }

    fn read(&mut self, frame: Vec<u8>, into: &mut Vec<u8>) {
        *into = frame;
    }

    fn lent(&self, account: Account) -> i32 {
        self.loan(account).open()
    }

    fn returned(&self, account: Account) -> u32 {
        self.loan(account).returned
    }

    fn give_back(&mut self, account: Account, amount: i32) {
        // The way to the daemon has a length of its own here: the ring is not lent.
        if let Account::Slot(slot) = account {
            let mut inner = self.switch.lock();
            let loan = inner.loans.entry(slot.number()).or_default();
            loan.returned = loan.returned.wrapping_add_signed(amount);
        }
    }

    fn reclaim(&mut self) {}

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
