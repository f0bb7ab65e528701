//! The connections of one guest, each with a name that is never used again.
//!
//! A connection is found by the guest's address and port (the rest of the 4-tuple is always ours) when a packet comes,
//! and by its [`Ticket`] when a stream, a timer or a list speaks of it. Places are used again, numbers are not: a ticket
//! of a connection that is gone opens nothing, and never another connection. Pure.
//!
//! Each socket stands in a set of its own. smoltcp looks at every socket of a set for every packet and every turn; so
//! what a packet costs does not depend on how many connections its guest holds.

use std::collections::HashMap;
use std::sync::Arc;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::Socket;
use smoltcp::time::Instant;
use smoltcp::wire::{IpEndpoint, TcpSeqNumber};

use crate::ether::Station;
use crate::metrics::Ended;
use crate::patience::{Facts, Patience, Phase, Progress};

/// A socket in a set of its own.
#[derive(Debug)]
pub(crate) struct Solo {
    set: SocketSet<'static>,
    handle: SocketHandle,
}

impl Solo {
    pub(crate) fn new(socket: Socket<'static>) -> Self {
        let mut set = SocketSet::new(Vec::with_capacity(1));
        let handle = set.add(socket);
        Self { set, handle }
    }

    pub(crate) fn socket(&self) -> &Socket<'static> {
        self.set.get(self.handle)
    }

    pub(crate) fn socket_mut(&mut self) -> &mut Socket<'static> {
        self.set.get_mut(self.handle)
    }

    /// For smoltcp, which takes sets.
    pub(crate) fn set(&mut self) -> &mut SocketSet<'static> {
        &mut self.set
    }
}

/// Who holds a connection.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Nobody: SYN seen.
    HalfOpen,
    /// A stream.
    Open {
        /// What its server is doing.
        progress: Arc<Progress>,
        /// Bytes that were handed to the socket so far.
        written: u64,
    },
    /// Nobody any more: what is left is to deliver and to say goodbye.
    Goodbye,
}

/// One TCP connection, whatever its stage.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) solo: Solo,
    pub(crate) peer: IpEndpoint,
    /// The sequence number of the SYN that opened it.
    pub(crate) opened_by: TcpSeqNumber,
    /// Where its answers go: where its last frame came from.
    pub(crate) station: Station,
    pub(crate) stage: Stage,
    pub(crate) patience: Patience,
    /// When its time is up, and for what, as of the last look.
    pub(crate) deadline: Option<(Instant, Ended)>,
    /// Its entry in the timers.
    pub(crate) armed: Option<Instant>,
    /// It is on the list of those that something happened to.
    pub(crate) touched: bool,
}

impl Connection {
    pub(crate) fn new(now: Instant, solo: Solo, peer: IpEndpoint, opened_by: TcpSeqNumber, station: Station) -> Self {
        Self {
            solo,
            peer,
            opened_by,
            station,
            stage: Stage::HalfOpen,
            patience: Patience::new(now, Phase::HalfOpen),
            deadline: None,
            armed: None,
            touched: false,
        }
    }

    pub(crate) fn is_half_open(&self) -> bool {
        matches!(self.stage, Stage::HalfOpen)
    }

    pub(crate) fn facts(&self) -> Facts {
        let unsent = self.solo.socket().send_queue() as u64;
        let taken = |written: u64| (unsent > 0).then(|| written.saturating_sub(unsent));
        match &self.stage {
            Stage::HalfOpen => Facts { phase: Phase::HalfOpen, word: 0, taken: None },
            Stage::Open { progress, written } => {
                let word = progress.word();
                Facts { phase: progress.phase(), word, taken: taken(*written) }
            }
            Stage::Goodbye => Facts { phase: Phase::Goodbye, word: 0, taken: taken(0) },
        }
    }

    /// Looks at the connection as it is at `now`.
    pub(crate) fn look(&mut self, now: Instant) {
        let facts = self.facts();
        self.deadline = self.patience.look(now, facts);
    }
}

/// Names a connection for as long as it has this holder. Ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    number: u64,
    place: u32,
}

/// Places that an empty table keeps for the next connections: a client that asks twice at once makes no new ones.
const KEPT: usize = 4;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_peer: HashMap<IpEndpoint, Ticket>,
    places: Vec<Option<(u64, Connection)>>,
    vacant: Vec<u32>,
    next: u64,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.by_peer.len()
    }

    pub(crate) fn find(&self, peer: IpEndpoint) -> Option<Ticket> {
        self.by_peer.get(&peer).copied()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Connection> {
        let (number, connection) = self.places.get(ticket.place as usize)?.as_ref()?;
        (*number == ticket.number).then_some(connection)
    }

    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Connection> {
        let (number, connection) = self.places.get_mut(ticket.place as usize)?.as_mut()?;
        (*number == ticket.number).then_some(connection)
    }

    /// The peer must be unknown.
    pub(crate) fn insert(&mut self, connection: Connection) -> Ticket {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let ticket = Ticket { number: self.number(), place };
        let known = self.by_peer.insert(connection.peer, ticket);
        debug_assert!(known.is_none(), "a peer has one connection");
        self.places[place as usize] = Some((ticket.number, connection));
        ticket
    }

    /// Gives the connection a new ticket: whoever has the old one has lost it.
    pub(crate) fn reissue(&mut self, ticket: Ticket) -> Option<Ticket> {
        let peer = self.get(ticket)?.peer;
        let fresh = Ticket { number: self.number(), place: ticket.place };
        if let Some((number, _)) = &mut self.places[ticket.place as usize] {
            *number = fresh.number;
        }
        self.by_peer.insert(peer, fresh);
        Some(fresh)
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Connection> {
        self.get(ticket)?;
        let (_, connection) = self.places[ticket.place as usize].take()?;
        self.vacant.push(ticket.place);
        self.by_peer.remove(&connection.peer);
        if self.by_peer.is_empty() && self.places.len() > KEPT {
            // What a burst needed is not kept while nothing happens: idle guests are many.
            *self = Self { next: self.next, ..Self::default() };
        }
        Some(connection)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ticket, &Connection)> {
        self.places.iter().zip(0..).filter_map(|(place, index)| {
            let (number, connection) = place.as_ref()?;
            Some((Ticket { number: *number, place: index }, connection))
        })
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::socket::tcp::SocketBuffer;
    use smoltcp::wire::IpAddress;

    use super::*;

    fn connection(port: u16) -> Connection {
        let socket = Socket::new(SocketBuffer::new(vec![0; 16]), SocketBuffer::new(vec![0; 16]));
        let peer = IpEndpoint::new(IpAddress::v4(169, 254, 1, 2), port);
        let station = Station { mac: [2; 6], vlan: None };
        Connection::new(Instant::ZERO, Solo::new(socket), peer, TcpSeqNumber(1), station)
    }

    #[test]
    fn a_ticket_opens_its_own_connection_and_no_other() {
        let mut table = Table::default();
        let first = table.insert(connection(1));
        let stays = table.insert(connection(2));
        assert!(table.remove(first).is_some());
        let second = table.insert(connection(1));
        assert_eq!(second.place, first.place, "places are used again");
        assert!(table.get(first).is_none() && table.get_mut(first).is_none() && table.remove(first).is_none());
        assert!(table.reissue(first).is_none());
        let third = table.reissue(second).unwrap();
        assert!(table.get(second).is_none());
        assert_eq!(table.find(table.get(third).unwrap().peer), Some(third));
        assert!(stays < second && second < third, "ordered by age");
        assert_eq!(table.iter().map(|(ticket, _)| ticket).collect::<Vec<_>>(), [third, stays]);
    }

    #[test]
    fn an_empty_table_keeps_nothing_of_a_burst_and_counts_on() {
        let mut table = Table::default();
        let tickets: Vec<_> = (1..=100).map(|port| table.insert(connection(port))).collect();
        for ticket in &tickets {
            assert!(table.remove(*ticket).is_some());
        }
        assert_eq!((table.len(), table.places.capacity(), table.by_peer.capacity()), (0, 0, 0));
        let next = table.insert(connection(1));
        assert!(tickets.iter().all(|old| *old < next && table.get(*old).is_none()));
    }
}
