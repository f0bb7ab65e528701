//! Who is connected to a listener, for how long, and who goes when somebody else wants the place.
//!
//! In come connections and what each is doing ([`Phase`]); out comes room for one more. A scraper keeps its connection
//! between two scrapes, and somebody else may open any number and say nothing: those go first, of these the ones of the
//! address that has the most, and then the one that has said nothing for the longest. Refused: to cut off an answer for a
//! newcomer.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// What a listener allows.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Bounds {
    /// Connections at once.
    pub(in super::super) connections: usize,
    /// How long one may take for what it has to say first.
    pub(in super::super) silent: Duration,
    /// How long one may take, after an answer, for another request and all of that.
    pub(in super::super) kept: Duration,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Phase {
    /// It has not asked for anything yet, since then.
    Silent(Instant),
    /// It is waiting for an answer, and we do not take long.
    Asking,
    /// It has an answer and may ask again, since then.
    Kept(Instant),
}

impl Phase {
    /// When it has taken too long.
    fn deadline(self, bounds: Bounds) -> Option<Instant> {
        match self {
            Self::Silent(since) => Some(since + bounds.silent),
            Self::Asking => None,
            Self::Kept(since) => Some(since + bounds.kept),
        }
    }

    /// Who goes first: the least, whose address has so many `beside` it. `None`: nobody has to go in the middle of an
    /// answer.
    fn rank(self, beside: usize) -> Option<(u8, Reverse<usize>, Instant)> {
        match self {
            Self::Silent(since) => Some((0, Reverse(beside), since)),
            Self::Kept(since) => Some((1, Reverse(beside), since)),
            Self::Asking => None,
        }
    }
}

/// Which of these has to go.
fn least(taken: &[(IpAddr, Phase)]) -> Option<usize> {
    let beside = |peer| taken.iter().filter(|(other, _)| *other == peer).count();
    let ranked = taken.iter().enumerate().filter_map(|(at, (peer, phase))| Some((phase.rank(beside(*peer))?, at)));
    ranked.min().map(|(_, at)| at)
}

/// Everyone who is connected.
#[derive(Debug)]
pub(super) struct Places {
    bounds: Bounds,
    taken: Vec<(IpAddr, watch::Receiver<Phase>, AbortHandle)>,
    moved: Arc<Notify>,
}

/// One connection's own word on what it is doing. Its place is free when this is dropped.
#[derive(Debug)]
pub(in super::super) struct Place {
    phase: watch::Sender<Phase>,
    moved: Arc<Notify>,
}

impl Place {
    pub(in super::super) fn is(&self, phase: Phase) {
        self.phase.send_replace(phase);
        self.moved.notify_one();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.moved.notify_one();
    }
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, taken: Vec::new(), moved: Arc::default() }
    }

    /// Waits until there is room for one more; ends the connection that has to go for it, if one has.
    pub(super) async fn make_room(&mut self) {
        loop {
            self.taken.retain(|(.., task)| !task.is_finished());
            if self.taken.len() < self.bounds.connections {
                return;
            }
            let taken: Vec<_> = self.taken.iter().map(|(peer, phase, _)| (*peer, *phase.borrow())).collect();
            match least(&taken) {
                Some(place) => self.taken.swap_remove(place).2.abort(),
                None => self.moved.notified().await,
            }
        }
    }

    /// One more, from there: `attend` is its life, for as long as it keeps within its times.
    pub(super) fn give<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        peer: IpAddr,
        attend: impl FnOnce(Place) -> F,
    ) {
        let phase = watch::Sender::new(Phase::Silent(Instant::now()));
        let (seen, told) = (phase.subscribe(), phase.subscribe());
        let attend = attend(Place { phase, moved: Arc::clone(&self.moved) });
        let task = tokio::spawn(in_time(attend, told, self.bounds));
        self.taken.push((peer, seen, task.abort_handle()));
    }
}

/// Ends what takes too long.
async fn in_time(attend: impl Future<Output = ()>, mut phase: watch::Receiver<Phase>, bounds: Bounds) {
    let mut attend = pin!(attend);
    loop {
        let deadline = phase.borrow_and_update().deadline(bounds);
        tokio::select! {
            () = &mut attend => return,
            Ok(()) = phase.changed() => {}
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                tracing::debug!("a connection took too long");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { connections: 8, silent: Duration::from_secs(2), kept: Duration::from_secs(300) };

    #[tokio::test(start_paused = true)]
    async fn the_silent_go_first_then_the_long_kept_and_nobody_who_is_asking() {
        use Phase::{Asking, Kept, Silent};
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let [one, two] = [1, 2].map(|host| IpAddr::from([192, 0, 2, host]));
        for (taken, goes) in [
            (&[][..], None),
            (&[(one, Asking), (one, Asking)], None),
            (&[(one, Kept(at(0))), (one, Silent(at(9))), (one, Silent(at(8))), (one, Asking)], Some(2)),
            (&[(one, Asking), (one, Kept(at(7))), (one, Kept(at(3)))], Some(2)),
            // Whoever has more, although it came later; but not before those that say nothing.
            (&[(one, Silent(at(0))), (two, Silent(at(8))), (two, Silent(at(9)))], Some(1)),
            (&[(one, Kept(at(0))), (two, Kept(at(9))), (two, Asking)], Some(1)),
            (&[(one, Silent(at(0))), (two, Kept(at(8))), (two, Kept(at(9)))], Some(0)),
        ] {
            assert_eq!(least(taken), goes, "{taken:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_being_answered_is_waited_for() {
        let mut places = Places::new(BOUNDS);
        let answered = Arc::new(Notify::new());
        for _ in 0..BOUNDS.connections {
            places.make_room().await;
            let answered = Arc::clone(&answered);
            places.give(IpAddr::from([127, 0, 0, 1]), |place| async move {
                place.is(Phase::Asking);
                answered.notified().await;
                place.is(Phase::Kept(Instant::now()));
                std::future::pending::<()>().await;
            });
        }
        tokio::task::yield_now().await;
        let full = tokio::time::timeout(Duration::from_secs(60), places.make_room()).await;
        assert!(full.is_err(), "nobody goes");
        answered.notify_one();
        places.make_room().await;
        assert_eq!(places.taken.len(), BOUNDS.connections - 1);
    }
}
