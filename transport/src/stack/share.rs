//! A guest's share of connections: who is let in, and who goes to make room.
//!
//! In comes a SYN, or the end of a handshake; out goes a place for it, or nothing. Half-open connections have a bound of
//! their own, so SYNs alone cost no established connection; one that is established makes the oldest go that nobody
//! waits for. When all guests together hold too much, a guest that holds more than it is granted pays with its own.

use std::sync::Arc;

use smoltcp::wire::{IpEndpoint, TcpSeqNumber};

use super::{Arrival, Established, Stack, Way};
use crate::bounds;
use crate::connection::{Connection, Stage, Ticket};
use crate::ether::Station;
use crate::metrics::Ended;
use crate::patience::{Progress, rank};
#[cfg(any(test, feature = "testing"))]
use crate::testing::Holdings;
use crate::wire::Wire;

impl Stack {
    /// Makes a socket for a SYN. `None`: the share is used up.
    pub(super) fn admit<W: Wire>(
        &mut self,
        peer: IpEndpoint,
        number: TcpSeqNumber,
        station: Station,
        way: &mut Way<'_, W>,
    ) -> Option<Ticket> {
        // Who would have to go once this one is established goes then: a SYN alone costs nobody a connection.
        if self.is_full() && self.victim(false).is_none() {
            return None;
        }
        if self.half_open.len() >= bounds::HALF_OPEN
            && let Some(oldest) = self.half_open.first().copied()
        {
            self.ended.push(Ended::HalfOpenEvicted);
            self.remove(oldest);
        }
        let solo = match self.pool.take(self.table.len() < bounds::GRANTED) {
            Some(solo) => solo,
            // One goes for one that comes: all together hold no more than before.
            None => {
                let victim = self.victim(true)?;
                self.evict(victim, way);
                self.pool.take(true)?
            }
        };
        let ticket = self.table.insert(Connection::new(self.now, solo, peer, number, station));
        self.half_open.insert(ticket);
        Some(ticket)
    }

    /// A handshake is done.
    pub(super) fn establish<W: Wire>(&mut self, ticket: Ticket, way: &mut Way<'_, W>) -> Arrival {
        if self.is_full() {
            let Some(victim) = self.victim(false) else {
                self.part(ticket, way);
                return Arrival::NoShare;
            };
            self.evict(victim, way);
        }
        self.touch(ticket);
        let Some(connection) = self.table.get_mut(ticket) else { return Arrival::Absorbed };
        self.half_open.remove(&ticket);
        let progress = Arc::<Progress>::default();
        connection.stage = Stage::Open { progress: progress.clone(), written: 0 };
        Arrival::Established(Established { ticket, peer: connection.peer, progress })
    }

    /// As many are established as a guest may have.
    fn is_full(&self) -> bool {
        self.table.len() - self.half_open.len() >= bounds::OPEN
    }

    /// Who goes first when there are too many.
    fn victim(&self, half_open: bool) -> Option<Ticket> {
        let candidates = self.table.iter().filter(|(_, connection)| half_open || !connection.is_half_open());
        let ranked = candidates.filter_map(|(ticket, connection)| {
            let facts = connection.facts();
            let stale = facts.word != connection.patience.seen();
            let since = if stale { self.now } else { connection.patience.since() };
            Some((rank(facts.phase, facts.taken.is_some())?, since, ticket))
        });
        ranked.min().map(|(_, _, ticket)| ticket)
    }

    fn evict<W: Wire>(&mut self, ticket: Ticket, way: &mut Way<'_, W>) {
        let half_open = self.half_open.contains(&ticket);
        self.ended.push(if half_open { Ended::HalfOpenEvicted } else { Ended::Evicted });
        self.part(ticket, way);
    }

    /// What the guest holds.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn holdings(&self) -> Holdings {
        Holdings { connections: self.table.len(), half_open: self.half_open.len(), buffers: self.pool.held() }
    }
}
