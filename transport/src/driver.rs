//! The ring reader: one task that moves frames between the wire and the guests' stacks.
//!
//! In come frames of all guests, kicks of their streams and commands of the daemon; out go frames, and each newly
//! established connection to its guest's [`Serve`]. A frame reaches a stack only through slot *and* generation, so a
//! frame of a vanished interface can reach nobody. Refused and counted: frames of unknown slots, frames that mean
//! nothing. The driver never waits for a guest: it does a bounded turn, then lets the connections run. Guests are read
//! in turns ([`Turns`]), also while the wire takes nothing more from us, and what was read is given back to the credit
//! of its slot.

use std::collections::BTreeSet;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pve_imds_bpf::{Epoch, Slot, Tag};
use smoltcp::wire::{IpAddress, IpEndpoint};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use crate::bounds;
use crate::ether::{self, ARP_FRAME, Inbound};
use crate::heal::{Heal, Look};
use crate::metrics::{self, Dropped};
use crate::pool::Pool;
use crate::seats::{Command, Guests, Peer, Seat, Serve};
use crate::stack::{Arrival, Departure, Stack};
use crate::stream::{Kick, Shared, TapStream};
use crate::turns::Turns;
use crate::wire::{Account, Wire};

struct Guest {
    seat: Seat,
    shared: Arc<Shared>,
    serve: Box<dyn Serve>,
    /// Its entry in the timers.
    due: Option<Instant>,
}

/// Moves frames. Runs until the wire fails or every [`Guests`] handle is gone.
pub struct Driver<W: Wire> {
    wire: W,
    turns: Turns<W::Frame>,
    heal: Heal,
    epoch: Epoch,
    seed: Box<dyn FnMut() -> u64 + Send>,
    guests: Vec<Option<Guest>>,
    commands: mpsc::UnboundedReceiver<Command>,
    kick: Arc<Kick>,
    kicked: Vec<u16>,
    timers: BTreeSet<(Instant, u16)>,
    sleep: Pin<Box<Sleep>>,
    started: Instant,
    /// Nobody can give us commands any more; what is under way has until then.
    closing: Option<Instant>,
    pub(crate) pool: Arc<Pool>,
    frame: Vec<u8>,
}

impl<W: Wire + fmt::Debug> fmt::Debug for Driver<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("wire", &self.wire).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// A number nobody can predict, for sequence numbers (getrandom(2)).
#[must_use]
pub fn entropy() -> u64 {
    let mut bytes = [0; 8];
    // Eight bytes are never cut short, and fail only on kernels without the call.
    let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    debug_assert!(drawn.is_ok(), "the kernel has randomness");
    u64::from_ne_bytes(bytes)
}

/// What a turn left behind.
enum Turn {
    /// Nothing to do until something wakes us.
    Idle,
    /// Frames are left over, to be read or to be sent.
    More,
    /// The wire took no more; nothing tells us when it will.
    Blocked,
    /// Nobody can give us commands any more and every answer has arrived, or had its time.
    Over,
}

impl<W: Wire> Driver<W> {
    /// A driver for `wire`, whose frames carry `epoch`. `seed` yields unpredictable numbers for sequence numbers.
    /// Call it on the runtime that will run it.
    pub fn new(wire: W, epoch: Epoch, seed: impl FnMut() -> u64 + Send + 'static) -> (Self, Guests) {
        let (sender, commands) = mpsc::unbounded_channel();
        let now = Instant::now();
        let driver = Self {
            wire,
            turns: Turns::default(),
            heal: Heal::new(now),
            epoch,
            seed: Box::new(seed),
            guests: Vec::new(),
            commands,
            kick: Arc::default(),
            kicked: Vec::new(),
            timers: BTreeSet::new(),
            sleep: Box::pin(tokio::time::sleep_until(now)),
            started: now,
            closing: None,
            pool: Arc::default(),
            frame: Vec::new(),
        };
        (driver, Guests(sender))
    }

    /// Runs. `Ok` when every [`Guests`] handle is gone and the answers under way have arrived, or had 2 s to.
    ///
    /// # Errors
    /// When the wire is gone for good.
    pub async fn run(mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Registered before looking, so that a kick in between wakes us.
        self.kick.register(cx.waker());
        let retry = match self.turn(cx)? {
            Turn::Over => return Poll::Ready(Ok(())),
            Turn::More => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Turn::Blocked => Some(Instant::now() + bounds::RETRY),
            Turn::Idle => None,
        };
        let timer = self.timers.first().map(|(due, _)| *due);
        let next = [retry, timer, self.closing, Some(self.heal.due())].into_iter().flatten().min();
        let mut woken = self.wire.poll_ready(cx)?.is_ready();
        if let Some(next) = next {
            self.sleep.as_mut().reset(next);
            woken |= self.sleep.as_mut().poll(cx).is_ready();
        }
        if woken {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// One bounded turn: commands, frames, then sending for every guest that something happened to.
    fn turn(&mut self, cx: &mut Context<'_>) -> io::Result<Turn> {
        loop {
            match self.commands.poll_recv(cx) {
                Poll::Ready(Some(Command::Add(seat, serve))) => self.add(seat, serve),
                Poll::Ready(Some(Command::Remove(seat))) => self.remove(seat),
                Poll::Ready(None) => {
                    self.closing.get_or_insert_with(|| Instant::now() + bounds::LAST_DELIVERY);
                    break;
                }
                Poll::Pending => break,
            }
        }
        let now = Instant::now();
        self.collect();
        self.read(now);
        self.heal(now);
        self.kick.take(&mut self.kicked);
        while let Some((_, slot)) = self.timers.first().filter(|(due, _)| *due <= now).copied() {
            self.unschedule(slot);
            self.kicked.push(slot);
        }
        let mut slots = std::mem::take(&mut self.kicked);
        slots.sort_unstable();
        slots.dedup();
        for slot in slots.drain(..) {
            self.depart(now, slot);
        }
        if self.kicked.is_empty() {
            // Kept for its memory.
            self.kicked = slots;
        }
        let flushed = self.wire.flush()?;
        if self.closing.is_some_and(|until| now >= until || self.is_delivered()) {
            return Ok(Turn::Over);
        }
        Ok(match (self.turns.is_empty() && self.kicked.is_empty(), flushed) {
            (false, _) => Turn::More,
            (true, false) => Turn::Blocked,
            (true, true) => Turn::Idle,
        })
    }

    /// Lets every frame that has arrived wait for its guest's turn. They stay in the wire's memory, which bounds them.
    fn collect(&mut self) {
        self.wire.reclaim();
        while let Some((tag, frame)) = self.wire.next() {
            match tag {
                Some(tag) if tag.epoch == self.epoch => self.turns.push(tag.slot.number(), frame),
                // Nobody lent for these.
                tag => {
                    self.wire.read(frame, &mut self.frame);
                    metrics::dropped(tag.map_or(Dropped::NoTag, |_| Dropped::NoSuchGuest));
                }
            }
        }
    }

    /// Serves the guests in turns until the budget is used up.
    fn read(&mut self, now: Instant) {
        let mut bytes = std::mem::take(&mut self.frame);
        // What was read of the guest at hand is given back once per run of its frames.
        let mut run: Option<(Slot, i32)> = None;
        for _ in 0..bounds::FRAMES_PER_TURN {
            let Some((slot, frame)) = self.turns.next() else { break };
            self.wire.read(frame, &mut bytes);
            self.arrive(now, &bytes);
            run = match (run, Slot::new(slot)) {
                (Some((of, count)), Some(slot)) if of == slot => Some((slot, count + 1)),
                (before, slot) => {
                    self.settle(before);
                    slot.map(|slot| (slot, 1))
                }
            };
        }
        self.settle(run);
        self.frame = bytes;
    }

    fn settle(&mut self, run: Option<(Slot, i32)>) {
        if let Some((slot, count)) = run {
            self.wire.give_back(Account::Slot(slot), count);
        }
    }

    /// Gives back what the kernel lost, when it is time to look for it.
    fn heal(&mut self, now: Instant) {
        if now < self.heal.due() {
            return;
        }
        let slots = (0..).zip(&self.guests).filter_map(|(slot, _)| Slot::new(slot)).map(Account::Slot);
        for account in slots.chain([Account::Ring]) {
            let missing = self.wire.lent(account);
            let quiet = match account {
                Account::Slot(slot) => !self.turns.has(slot.number()),
                Account::Ring => self.turns.is_empty(),
            };
            let lost = self.heal.look(account, Look { returned: self.wire.returned(account), missing, quiet });
            if lost != 0 {
                self.wire.give_back(account, lost);
                metrics::healed(account, lost);
            }
        }
        self.heal.looked(now);
    }

    fn is_delivered(&self) -> bool {
        self.guests.iter().flatten().all(|guest| guest.shared.lock().is_delivered())
    }

    fn add(&mut self, seat: Seat, serve: Box<dyn Serve>) {
        let slot = seat.slot.number();
        let index = usize::from(slot);
        if self.guests.len() <= index {
            self.guests.resize_with(index + 1, || None);
        }
        let stack = Stack::new((self.seed)(), self.pool.clone(), self.clock(Instant::now()));
        let shared = Arc::new(Shared::new(stack, self.kick.clone(), slot));
        self.unseat(index);
        self.guests[index] = Some(Guest { seat, shared, serve, due: None });
    }

    fn remove(&mut self, seat: Seat) {
        let index = usize::from(seat.slot.number());
        if self.guests.get(index).and_then(Option::as_ref).is_some_and(|guest| guest.seat == seat) {
            self.unseat(index);
        }
    }

    fn unseat(&mut self, index: usize) {
        let Some(guest) = self.guests[index].take() else { return };
        if let Some(due) = guest.due {
            self.timers.remove(&(due, guest.seat.slot.number()));
        }
        guest.shared.lock().abandon();
    }

    fn arrive(&mut self, now: Instant, frame: &[u8]) {
        let (tag, station, inbound) = match ether::parse(frame) {
            Ok(parsed) => parsed,
            Err(refused) => return metrics::dropped(refused),
        };
        let clock = self.clock(now);
        let seat = Seat { slot: tag.slot, generation: tag.generation };
        let slot = tag.slot.number();
        let known = self.guests.get_mut(usize::from(slot)).and_then(Option::as_mut);
        let Some(guest) = known.filter(|guest| guest.seat == seat && tag.epoch == self.epoch) else {
            return metrics::dropped(Dropped::NoSuchGuest);
        };
        match inbound {
            Inbound::ArpRequest { sender, hardware } => {
                if self.wire.room() > 0 {
                    self.wire.send(ARP_FRAME, |out| ether::write_arp_reply(out, tag, station, sender, hardware));
                }
            }
            Inbound::Ipv4(packet) => {
                let hops = guest.serve.hops();
                let arrival = {
                    let mut stack = guest.shared.lock();
                    stack.hops = hops;
                    stack.arrive(clock, packet, station, tag, &mut self.wire)
                };
                self.kicked.push(slot);
                match arrival {
                    Arrival::Absorbed => {}
                    Arrival::NoShare => metrics::dropped(Dropped::NoShare),
                    Arrival::NotTcp => metrics::dropped(Dropped::NotTcp),
                    Arrival::Established(connection) => {
                        metrics::connection();
                        let peer = far_end(station.mac, connection.peer);
                        guest.serve.serve(TapStream::new(guest.shared.clone(), connection), peer);
                    }
                }
            }
        }
    }

    /// Sends what is due for one guest, as far as the wire takes it.
    fn depart(&mut self, now: Instant, slot: u16) {
        let clock = self.clock(now);
        let Some(guest) = self.guests.get_mut(usize::from(slot)).and_then(Option::as_mut) else { return };
        guest.shared.unlist();
        let tag = Tag { epoch: self.epoch, vlan: None, generation: guest.seat.generation, slot: guest.seat.slot };
        let (departure, due) = {
            let hops = guest.serve.hops();
            let mut stack = guest.shared.lock();
            stack.hops = hops;
            let departure = stack.depart(clock, tag, &mut self.wire);
            stack.ended().for_each(metrics::ended);
            (departure, stack.due())
        };
        let due = due.map(|due| {
            let wait = u64::try_from(due.total_micros()).unwrap_or(0);
            (self.started + std::time::Duration::from_micros(wait)).max(now)
        });
        match departure {
            Departure::All => self.schedule(slot, due),
            Departure::More => self.kicked.push(slot),
            // What the wire did not take is due at once, and would be until it does.
            Departure::Blocked => self.schedule(slot, Some(now + bounds::RETRY)),
        }
    }

    fn schedule(&mut self, slot: u16, due: Option<Instant>) {
        let Some(guest) = self.guests.get_mut(usize::from(slot)).and_then(Option::as_mut) else { return };
        if guest.due == due {
            return;
        }
        if let Some(old) = std::mem::replace(&mut guest.due, due) {
            self.timers.remove(&(old, slot));
        }
        if let Some(due) = due {
            self.timers.insert((due, slot));
        }
    }

    fn unschedule(&mut self, slot: u16) {
        self.schedule(slot, None);
    }

    /// tokio's clock (so that tests may pause it) in smoltcp's words.
    fn clock(&self, now: Instant) -> smoltcp::time::Instant {
        let elapsed = now.saturating_duration_since(self.started).as_micros();
        smoltcp::time::Instant::from_micros(i64::try_from(elapsed).unwrap_or(i64::MAX))
    }
}

fn far_end(mac: [u8; 6], peer: IpEndpoint) -> Peer {
    let IpAddress::Ipv4(ip) = peer.addr;
    Peer { mac, ip: ip.into(), port: peer.port }
}
