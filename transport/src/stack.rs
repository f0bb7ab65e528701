//! TCP of one guest: smoltcp on IP packets, sockets made on demand.
//!
//! In come IPv4 packets of this guest (never of another: guests may share addresses, they never share a stack) and
//! calls of its streams; out go IPv4 packets, framed for the station that spoke, newly established connections, and the
//! word for each that ended early. Refused: a SYN when the guest's share of connections is used up, and everything that
//! is no TCP for our port.
//!
//! There is no backlog of listening sockets: a SYN for an unknown 4-tuple makes a socket that listens for exactly
//! this one packet. A SYN for a known one that is no retransmission takes its place, however far the old connection had
//! come: on its own link only the guest itself can have sent it, and it has forgotten the old one.
//!
//! Work is proportional to what happened, not to what there is: connections that something happened to stand on a list,
//! the others' timers in an order.

use std::collections::BTreeSet;
use std::sync::Arc;

use pve_imds_bpf::Tag;
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint, TcpSeqNumber};

use crate::bounds;
use crate::connection::{Stage, Table, Ticket};
use crate::ether::{METADATA_IP, Station};
use crate::metrics::Ended;
use crate::patience::Progress;
use crate::pool::Pool;
use crate::port::{Blueprint, Port};
use crate::segment::{Segment, is_whole};
use crate::wire::Wire;

mod share;
#[cfg(test)]
mod tests;

/// What a packet brought about.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Nothing that anyone has to be told.
    Absorbed,
    /// The handshake is done.
    Established(Established),
    /// The guest's share of connections is used up, and none of them may go.
    NoShare,
    /// No TCP for our port.
    NotTcp,
}

/// What a turn of sending left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// Nothing: what is due later, [`Stack::due`] says.
    All,
    /// There is more, and it is the next guest's turn.
    More,
    /// There is more, and the wire is full.
    Blocked,
}

/// A connection for a stream to hold.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) ticket: Ticket,
    pub(crate) peer: IpEndpoint,
    pub(crate) progress: Arc<Progress>,
}

/// Tickets that the lists of a guest without connections keep room for.
const KEPT: usize = 4;

/// Where packets go while a connection is spoken of.
struct Way<'a, W> {
    tag: Tag,
    wire: &'a mut W,
}

/// The TCP of one guest.
pub(crate) struct Stack {
    interface: Interface,
    table: Table,
    /// The oldest first.
    half_open: BTreeSet<Ticket>,
    /// When to look at connections that nothing happens to. An entry may be too early, never too late.
    timers: BTreeSet<(Instant, Ticket)>,
    /// Connections that something happened to.
    touched: Vec<Ticket>,
    /// Those of them that may have more to send; kept for its memory.
    round: Vec<Ticket>,
    ended: Vec<Ended>,
    /// The sockets of a packet that belongs to no connection.
    nobody: SocketSet<'static>,
    pool: Arc<Pool>,
    now: Instant,
    /// The time to live of every packet of ours from now on, whatever connection it belongs to.
    pub(crate) hops: u8,
}

impl Stack {
    /// An empty stack. Sequence numbers are drawn from a generator of this guest alone, seeded with `seed`: who sees some
    /// of them can work out the next, but these are his own, and they say nothing of any other guest's. So `seed` must be
    /// unpredictable and used once.
    pub(crate) fn new(seed: u64, pool: Arc<Pool>, now: Instant) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut Blueprint, now);
        // A prefix of length 0 makes every guest address directly reachable: there is no routing on a link.
        interface.update_ip_addrs(|addresses| {
            let everywhere = IpCidr::new(IpAddress::Ipv4(METADATA_IP), 0);
            let full = addresses.push(everywhere);
            debug_assert!(full.is_ok(), "an interface has room for its first address");
        });
        Self {
            interface,
            table: Table::default(),
            half_open: BTreeSet::new(),
            timers: BTreeSet::new(),
            touched: Vec::new(),
            round: Vec::new(),
            ended: Vec::new(),
            nobody: SocketSet::new(Vec::new()),
            pool,
            now,
            hops: bounds::HOPS,
        }
    }

    /// Takes one IPv4 packet for the metadata address that `station` sent.
    pub(crate) fn arrive<W: Wire>(
        &mut self,
        now: Instant,
        packet: &[u8],
        station: Station,
        tag: Tag,
        wire: &mut W,
    ) -> Arrival {
        self.now = now;
        let mut way = Way { tag, wire };
        let Some(Segment { from, opens }) = Segment::peek(packet) else { return Arrival::NotTcp };
        let mut known = self.table.find(from);
        if let Some(number) = opens {
            known = known.filter(|ticket| !self.is_replaced(*ticket, number));
            known = match known.or_else(|| self.admit(from, number, station, &mut way)) {
                Some(ticket) => Some(ticket),
                None => return Arrival::NoShare,
            };
        }
        let connection = known.and_then(|ticket| self.table.get_mut(ticket));
        let sockets = match connection {
            Some(connection) => {
                // Answers follow the guest, but no packet that is thrown away: they would be lost with it.
                if connection.station != station && is_whole(packet) {
                    connection.station = station;
                }
                connection.solo.set()
            }
            None => &mut self.nobody,
        };
        let mut port = Port { wire: &mut *way.wire, tag, inbound: Some(packet), station, hops: self.hops };
        self.interface.poll_ingress_single(now, &mut port, sockets);
        match known {
            Some(ticket) => self.advance(ticket, &mut way),
            None => Arrival::Absorbed,
        }
    }

    /// Sends what is due, as much as one turn is.
    pub(crate) fn depart<W: Wire>(&mut self, now: Instant, tag: Tag, wire: &mut W) -> Departure {
        self.now = now;
        let mut way = Way { tag, wire };
        while let Some((_, ticket)) = self.timers.first().filter(|(due, _)| *due <= now).copied() {
            self.disarm(ticket);
            self.touch(ticket);
        }
        let mut touched = std::mem::take(&mut self.touched);
        let mut next = 0;
        while let Some(ticket) = touched.get(next).copied() {
            self.look(ticket, &mut way);
            // What an end leaves behind has a ticket of its own.
            touched.append(&mut self.touched);
            next += 1;
        }
        // One segment of each connection a round, so that they share what room there is.
        let mut round = std::mem::take(&mut self.round);
        round.extend_from_slice(&touched);
        let mut left = bounds::SEGMENTS_PER_TURN;
        while !round.is_empty() && left > 0 {
            let before = left;
            round.retain(|ticket| {
                if left == 0 {
                    return true;
                }
                let sent = self.send(*ticket, &mut way);
                left -= usize::from(sent);
                sent
            });
            // Those that did not get to send come first the next time.
            round.rotate_left(before - left);
        }
        let departure = match (way.wire.room(), round.is_empty()) {
            (0, _) => Departure::Blocked,
            (_, false) => Departure::More,
            (_, true) => Departure::All,
        };
        for ticket in &touched {
            if let Some(connection) = self.table.get_mut(*ticket) {
                connection.touched = false;
            }
        }
        match departure {
            Departure::All => touched.iter().for_each(|ticket| self.settle(*ticket)),
            _ => round.iter().chain(&touched).for_each(|ticket| self.touch(*ticket)),
        }
        round.clear();
        self.round = round;
        touched.clear();
        if self.touched.is_empty() {
            self.touched = touched;
        }
        if self.table.len() == 0 {
            self.touched.shrink_to(KEPT);
            self.round.shrink_to(KEPT);
        }
        departure
    }

    /// When [`Stack::depart`] has to be called again if nothing arrives.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Something happened that [`Stack::depart`] has not seen yet.
    pub(crate) fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Why connections ended early since this was last asked.
    pub(crate) fn ended(&mut self) -> impl Iterator<Item = Ended> {
        self.ended.drain(..)
    }

    /// Whether every answer has arrived.
    pub(crate) fn is_delivered(&self) -> bool {
        !self.table.iter().any(|(_, connection)| connection.solo.socket().send_queue() > 0)
    }

    /// Does something with the socket and the progress of a stream's connection. `None`: it is not the stream's any more.
    pub(crate) fn with<R>(
        &mut self,
        ticket: Ticket,
        act: impl FnOnce(&mut Socket<'static>, &Progress, &mut u64) -> R,
    ) -> Option<R> {
        let connection = self.table.get_mut(ticket)?;
        let Stage::Open { progress, written } = &mut connection.stage else { return None };
        let socket = connection.solo.socket_mut();
        let before = (socket.recv_queue(), socket.send_queue());
        let result = act(socket, progress, written);
        let moved = before != (socket.recv_queue(), socket.send_queue());
        if moved || progress.word() != connection.patience.seen() {
            self.touch(ticket);
        }
        Some(result)
    }

    /// A stream is done with its connection. `shutdown`: what it wrote is still delivered; else the peer hears a reset.
    pub(crate) fn release(&mut self, ticket: Ticket, shutdown: bool) {
        let Some(connection) = self.table.get_mut(ticket) else { return };
        let socket = connection.solo.socket_mut();
        if shutdown {
            socket.close()
        } else {
            socket.abort()
        }
        self.leave(ticket);
    }

    /// The interface is gone: every stream learns it, nothing is sent any more.
    pub(crate) fn abandon(&mut self) {
        let all: Vec<Ticket> = self.table.iter().map(|(ticket, _)| ticket).collect();
        all.into_iter().for_each(|ticket| self.remove(ticket));
    }

    /// A SYN with this number came for a known connection. `true`: the connection had to go.
    fn is_replaced(&mut self, ticket: Ticket, number: TcpSeqNumber) -> bool {
        let Some(connection) = self.table.get(ticket) else { return false };
        if connection.opened_by == number {
            return false;
        }
        if matches!(connection.stage, Stage::Open { .. }) {
            self.ended.push(Ended::Replaced);
        }
        // Without a word: a reset of the old one would be taken for an answer to the new one.
        self.remove(ticket);
        true
    }

    /// After a packet changed a socket: who is established now, who never will be, who is gone.
    fn advance<W: Wire>(&mut self, ticket: Ticket, way: &mut Way<'_, W>) -> Arrival {
        let Some(connection) = self.table.get(ticket) else { return Arrival::Absorbed };
        match (&connection.stage, connection.solo.socket().state()) {
            // At once: what did not take its own SYN must not take another's.
            (Stage::HalfOpen, State::Listen | State::Closed) => self.remove(ticket),
            (Stage::HalfOpen, State::SynReceived) => self.touch(ticket),
            (Stage::HalfOpen, _) => return self.establish(ticket, way),
            (Stage::Open { .. }, State::Closed) => {
                self.ended.push(Ended::ResetByPeer);
                self.remove(ticket);
            }
            (Stage::Open { .. } | Stage::Goodbye, _) => self.touch(ticket),
        }
        Arrival::Absorbed
    }

    /// Looks at a connection and ends it when its time is up.
    fn look<W: Wire>(&mut self, ticket: Ticket, way: &mut Way<'_, W>) {
        let now = self.now;
        let Some(connection) = self.table.get_mut(ticket) else { return };
        connection.look(now);
        let Some((_, reason)) = connection.deadline.filter(|(until, _)| *until <= now) else { return };
        match reason {
            // It is owed nothing and hears a goodbye like after any answer.
            Ended::IdleTime => {
                connection.solo.socket_mut().close();
                self.leave(ticket);
            }
            // With no room for the reset it is looked at again when there is.
            _ if way.wire.room() == 0 => return,
            _ => self.part(ticket, way),
        }
        self.ended.push(reason);
    }

    /// Its stream has no part in it any more.
    fn leave(&mut self, ticket: Ticket) {
        self.disarm(ticket);
        let Some(ticket) = self.table.reissue(ticket) else { return };
        if let Some(connection) = self.table.get_mut(ticket) {
            connection.stage = Stage::Goodbye;
            connection.touched = false;
        }
        self.touch(ticket);
    }

    /// Ends a connection with a reset. With no room for it now, the peer hears one when it next says something.
    fn part<W: Wire>(&mut self, ticket: Ticket, way: &mut Way<'_, W>) {
        let Some(connection) = self.table.get_mut(ticket) else { return };
        connection.solo.socket_mut().abort();
        self.send(ticket, way);
        self.remove(ticket);
    }

    /// Sends one segment of a connection. `false`: there was none, or no room.
    fn send<W: Wire>(&mut self, ticket: Ticket, way: &mut Way<'_, W>) -> bool {
        let Some(connection) = self.table.get_mut(ticket) else { return false };
        let (station, hops) = (connection.station, self.hops);
        let mut port = Port { wire: &mut *way.wire, tag: way.tag, inbound: None, station, hops };
        self.interface.poll_egress(self.now, &mut port, connection.solo.set()) == PollResult::SocketStateChanged
    }

    /// A connection has sent what it has: is it over, or when is it to be looked at again?
    fn settle(&mut self, ticket: Ticket) {
        let Some(connection) = self.table.get_mut(ticket) else { return };
        let state = connection.solo.socket().state();
        // TIME-WAIT keeps a port from being used again too early; ours is the listening side and a SYN on a closing
        // 4-tuple replaces it anyway.
        if matches!(connection.stage, Stage::Goodbye) && matches!(state, State::Closed | State::TimeWait) {
            return self.remove(ticket);
        }
        let deadline = connection.deadline.map(|(until, _)| until);
        let timer = self.interface.poll_at(self.now, connection.solo.set());
        let Some(due) = [deadline, timer].into_iter().flatten().min() else { return };
        // Too early is as good: then it is looked at again, and most timers are put off before they fire.
        if connection.armed.is_none_or(|armed| due < armed) {
            self.disarm(ticket);
            if let Some(connection) = self.table.get_mut(ticket) {
                connection.armed = Some(due);
                self.timers.insert((due, ticket));
            }
        }
    }

    fn disarm(&mut self, ticket: Ticket) {
        if let Some(armed) = self.table.get_mut(ticket).and_then(|connection| connection.armed.take()) {
            self.timers.remove(&(armed, ticket));
        }
    }

    fn touch(&mut self, ticket: Ticket) {
        let Some(connection) = self.table.get_mut(ticket) else { return };
        if !std::mem::replace(&mut connection.touched, true) {
            self.touched.push(ticket);
        }
    }

    fn remove(&mut self, ticket: Ticket) {
        self.disarm(ticket);
        self.half_open.remove(&ticket);
        if let Some(connection) = self.table.remove(ticket) {
            self.pool.give(connection.solo);
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.abandon();
    }
}
