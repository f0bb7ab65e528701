//! Who is connected to the management listener, and who goes when somebody else wants the place.
//!
//! In come connections and what each is doing ([`Phase`]); out comes room for one more. A scraper keeps its connection
//! between two scrapes, and somebody else may open any number and say nothing: those go first, and then the one that has
//! said nothing for the longest. Refused: to cut off an answer for a newcomer.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Scrapers are one or two; more than this is somebody's mistake.
const CONNECTIONS: usize = 32;

/// A first head that takes longer is none.
const HEAD_TIME: Duration = Duration::from_secs(2);

/// Whoever has been answered may ask again for so long: scrapes are seconds or a minute apart, and Prometheus itself drops a
/// connection that it has not used for five.
const KEPT_TIME: Duration = Duration::from_secs(300);

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has not asked for anything yet, since then.
    Silent(Instant),
    /// It is waiting for an answer, and we do not take long.
    Asking,
    /// It has an answer and may ask again, since then.
    Kept(Instant),
}

impl Phase {
    /// When it has taken too long.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Silent(since) => Some(since + HEAD_TIME),
            Self::Asking => None,
            Self::Kept(since) => Some(since + KEPT_TIME),
        }
    }

    /// Who goes first: the least. `None`: nobody has to go in the middle of an answer.
    fn rank(self) -> Option<(u8, Instant)> {
        match self {
            Self::Silent(since) => Some((0, since)),
            Self::Kept(since) => Some((1, since)),
            Self::Asking => None,
        }
    }
}

/// Which of these has to go.
fn least(phases: impl Iterator<Item = Phase>) -> Option<usize> {
    let ranked = phases.enumerate().filter_map(|(place, phase)| Some((phase.rank()?, place)));
    ranked.min().map(|(_, place)| place)
}

/// Everyone who is connected.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: Vec<(watch::Receiver<Phase>, AbortHandle)>,
    moved: Arc<Notify>,
}

/// One connection's own word on what it is doing. Its place is free when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    phase: watch::Sender<Phase>,
    moved: Arc<Notify>,
}

impl Place {
    pub(super) fn is(&self, phase: Phase) {
        self.phase.send_replace(phase);
        self.moved.notify_one();
    }

    pub(super) fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.moved.notify_one();
    }
}

impl Places {
    /// Waits until there is room for one more; ends the connection that has to go for it, if one has.
    pub(super) async fn make_room(&mut self) {
        loop {
            self.taken.retain(|(_, task)| !task.is_finished());
            if self.taken.len() < CONNECTIONS {
                return;
            }
            match least(self.taken.iter().map(|(phase, _)| *phase.borrow())) {
                Some(place) => self.taken.swap_remove(place).1.abort(),
                None => self.moved.notified().await,
            }
        }
    }

    /// One more: `attend` is its life.
    pub(super) fn give<F: Future<Output = ()> + Send + 'static>(&mut self, attend: impl FnOnce(Place) -> F) {
        let phase = watch::Sender::new(Phase::Silent(Instant::now()));
        let seen = phase.subscribe();
        let task = tokio::spawn(attend(Place { phase, moved: Arc::clone(&self.moved) }));
        self.taken.push((seen, task.abort_handle()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_silent_go_first_then_the_long_kept_and_nobody_who_is_asking() {
        use Phase::{Asking, Kept, Silent};
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        for (phases, goes) in [
            (&[][..], None),
            (&[Asking, Asking], None),
            (&[Kept(at(0)), Silent(at(9)), Silent(at(8)), Asking], Some(2)),
            (&[Asking, Kept(at(7)), Kept(at(3))], Some(2)),
        ] {
            assert_eq!(least(phases.iter().copied()), goes, "{phases:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_being_answered_is_waited_for() {
        let mut places = Places::default();
        let answered = Arc::new(Notify::new());
        for _ in 0..CONNECTIONS {
            places.make_room().await;
            let answered = Arc::clone(&answered);
            places.give(|place| async move {
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
        assert_eq!(places.taken.len(), CONNECTIONS - 1);
    }
}
