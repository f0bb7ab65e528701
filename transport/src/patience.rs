//! How long a connection may take, and who goes first when there are too many. Pure but for the one word that a
//! connection shares with its server.
//!
//! In come facts of a connection: what its server is doing ([`Progress`]) and whether bytes are under way; out go the
//! moment its time is up, with the [`Ended`] that is to be counted then, and its place in the order of eviction. Both
//! are tables with one row for each [`Phase`]. There is no clock in here and no timer of its own: the stack, which keeps
//! the timers of TCP, asks when it looks at the connection anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use smoltcp::time::Instant;

use crate::bounds;
use crate::metrics::Ended;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// SYN seen.
    HalfOpen,
    /// Open, and not one byte of the next request has been read.
    Waiting,
    /// The head of a request is being read.
    Head,
    /// A request is in progress: from its whole head until the last byte of the answer was handed to the stack.
    Request,
    /// Its stream is gone; what is left is to deliver and to say goodbye.
    Goodbye,
}

/// What the server of an open connection is doing, told to its stack without a lock.
///
/// The low two bits are the phase; the rest counts changes, so that who looks seldom sees that something happened.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU32);

impl Progress {
    /// Changes whenever something happened.
    pub(crate) fn word(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.word() % 4 {
            0 => Phase::Waiting,
            1 => Phase::Head,
            _ => Phase::Request,
        }
    }

    /// Bytes were read. If they belong to no request in progress, a head begins.
    pub(crate) fn read(&self) {
        if self.phase() == Phase::Waiting {
            self.set(1);
        }
    }

    /// The head of a request is whole. In progress until what is returned is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InProgress {
        self.set(2);
        InProgress(Arc::clone(self))
    }

    /// Only the connection's own task writes, so load and store need not be one step.
    fn set(&self, phase: u32) {
        let count = (self.word() >> 2).wrapping_add(1);
        self.0.store(count << 2 | phase, Ordering::Release);
    }
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct InProgress(Arc<Progress>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// What is watched. Whenever one of these changes the clock starts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) phase: Phase,
    /// The word of [`Progress`].
    pub(crate) word: u32,
    /// While bytes wait to be taken by the peer: how many it has taken so far.
    pub(crate) taken: Option<u64>,
}

/// A connection's one deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    facts: Facts,
    since: Instant,
}

impl Patience {
    pub(crate) fn new(now: Instant, phase: Phase) -> Self {
        Self { facts: Facts { phase, word: 0, taken: None }, since: now }
    }

    /// Looks at the connection as it is now: when it has to end, if nothing changes, and for what.
    pub(crate) fn look(&mut self, now: Instant, facts: Facts) -> Option<(Instant, Ended)> {
        if self.facts != facts {
            *self = Self { facts, since: now };
        }
        limit(facts.phase, facts.taken.is_some()).map(|(time, ended)| (self.since + duration(time), ended))
    }

    /// What was seen by the last look.
    pub(crate) fn seen(&self) -> u32 {
        self.facts.word
    }

    /// Since when nothing has changed.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}

/// How long a phase may last. `sending`: bytes wait to be taken by the peer, which starts the clock anew with each that
/// it takes, but for a goodbye: that is one time for all.
fn limit(phase: Phase, sending: bool) -> Option<(Duration, Ended)> {
    match (phase, sending) {
        (Phase::HalfOpen, _) => Some((bounds::HANDSHAKE, Ended::HandshakeTime)),
        (Phase::Waiting, false) => Some((bounds::IDLE_TIME, Ended::IdleTime)),
        (Phase::Head, false) => Some((bounds::HEAD_TIME, Ended::HeadTime)),
        // The service has limits of its own.
        (Phase::Request, false) => None,
        (Phase::Waiting | Phase::Head | Phase::Request, true) => Some((bounds::STALLED, Ended::Stalled)),
        (Phase::Goodbye, true) => Some((bounds::DELIVERY, Ended::Undelivered)),
        (Phase::Goodbye, false) => Some((bounds::GOODBYE, Ended::HalfClosed)),
    }
}

/// The order in which connections make room for a new one; of the same rank the one that has been so the longest goes
/// first. `None`: never, because an answer is being made or delivered.
pub(crate) fn rank(phase: Phase, sending: bool) -> Option<u8> {
    match (phase, sending) {
        (Phase::Goodbye, false) => Some(0),
        (Phase::Waiting, false) => Some(1),
        (Phase::HalfOpen, _) => Some(2),
        (Phase::Head, false) => Some(3),
        (Phase::Request, _) | (Phase::Goodbye | Phase::Waiting | Phase::Head, true) => None,
    }
}

/// A duration in smoltcp's words.
pub(crate) fn duration(time: Duration) -> smoltcp::time::Duration {
    smoltcp::time::Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_time_and_its_place_in_the_order() {
        for (phase, sending, time, order) in [
            (Phase::HalfOpen, false, Some((5, Ended::HandshakeTime)), Some(2)),
            (Phase::HalfOpen, true, Some((5, Ended::HandshakeTime)), Some(2)),
            (Phase::Waiting, false, Some((15, Ended::IdleTime)), Some(1)),
            (Phase::Waiting, true, Some((15, Ended::Stalled)), None),
            (Phase::Head, false, Some((5, Ended::HeadTime)), Some(3)),
            (Phase::Head, true, Some((15, Ended::Stalled)), None),
            (Phase::Request, false, None, None),
            (Phase::Request, true, Some((15, Ended::Stalled)), None),
            (Phase::Goodbye, false, Some((5, Ended::HalfClosed)), Some(0)),
            (Phase::Goodbye, true, Some((30, Ended::Undelivered)), None),
        ] {
            let limit = limit(phase, sending).map(|(time, ended)| (time.as_secs(), ended));
            assert_eq!((limit, rank(phase, sending)), (time, order), "{phase:?}, sending: {sending}");
        }
    }

    #[test]
    fn progress_tells_what_the_server_does_and_that_something_happened() {
        let progress = Arc::new(Progress::default());
        let mut words = vec![progress.word()];
        let mut changed = |progress: &Progress| {
            let fresh = !words.contains(&progress.word());
            words.push(progress.word());
            fresh
        };
        assert_eq!(progress.phase(), Phase::Waiting);
        progress.read();
        assert!(changed(&progress));
        progress.read();
        assert!(!changed(&progress), "more of the same head");
        assert_eq!(progress.phase(), Phase::Head);
        let request = progress.begin();
        assert!(changed(&progress));
        progress.read();
        assert_eq!(progress.phase(), Phase::Request, "its body");
        drop(request);
        assert_eq!(progress.phase(), Phase::Waiting);
        assert!(changed(&progress), "waiting again is not waiting still");
    }

    #[test]
    fn the_clock_starts_anew_with_every_change_and_only_then() {
        let at = Instant::from_secs;
        let facts = |phase, word, taken| Facts { phase, word, taken };
        let mut patience = Patience::new(at(0), Phase::Waiting);
        for (now, seen, due) in [
            (0, facts(Phase::Waiting, 0, None), Some((15, Ended::IdleTime))),
            (9, facts(Phase::Waiting, 0, None), Some((15, Ended::IdleTime))),
            (10, facts(Phase::Head, 5, None), Some((15, Ended::HeadTime))),
            (14, facts(Phase::Head, 5, None), Some((15, Ended::HeadTime))),
            (15, facts(Phase::Request, 10, None), None),
            (40, facts(Phase::Request, 10, Some(0)), Some((55, Ended::Stalled))),
            (50, facts(Phase::Request, 10, Some(0)), Some((55, Ended::Stalled))),
            (54, facts(Phase::Request, 10, Some(1)), Some((69, Ended::Stalled))),
            (60, facts(Phase::Waiting, 12, Some(9)), Some((75, Ended::Stalled))),
            (61, facts(Phase::Waiting, 12, None), Some((76, Ended::IdleTime))),
        ] {
            let found = patience.look(at(now), seen).map(|(due, ended)| (due.secs(), ended));
            assert_eq!(found, due, "at {now}: {seen:?}");
        }
    }
}
