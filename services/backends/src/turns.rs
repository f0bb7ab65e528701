//! Slow work beside the runtime, in turns.
//!
//! In comes what takes a good part of a millisecond of a core, or much more; out goes what it makes. The thread that asks
//! goes on serving others meanwhile. So that guests who ask for much leave the others theirs, only half of the cores work at
//! a time, and whoever comes then waits: first come, first served. Refused: nothing; how many may wait is bounded where
//! requests are.

use std::collections::HashMap;
use std::hash::Hash;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// Half of the cores. Clones have the same turns.
#[derive(Clone, Debug)]
pub struct Turns(Arc<Semaphore>);

/// The same for those of whom each may have much to do: one thing at a time for each `K`. However much waits for somebody,
/// it has one place in the line for the cores, so whoever has little waits for no more than one thing of each of the
/// others. Clones have the same turns.
#[derive(Clone, Debug)]
pub struct FairTurns<K> {
    cores: Turns,
    lines: Arc<Mutex<HashMap<K, Line>>>,
}

/// Where somebody's work waits for what he asked before it.
#[derive(Debug)]
struct Line {
    first: Arc<Semaphore>,
    /// How much is in it, begun or not.
    length: usize,
}

/// A place in somebody's line. With the last one the line is gone.
struct Place<K: Eq + Hash> {
    lines: Arc<Mutex<HashMap<K, Line>>>,
    whose: K,
}

/// The daemon ends, and nothing is begun any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work was given up, because the daemon ends")]
pub struct GivenUp;

// === impl Turns ===

impl Default for Turns {
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        Self(Arc::new(Semaphore::new((cores / 2).max(1))))
    }
}

impl Turns {
    /// What `work` makes, when its turn has come. It panics if `work` does.
    ///
    /// # Errors
    /// [`GivenUp`]
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, GivenUp> {
        self.run_holding((), work).await
    }

    async fn run_holding<T, H>(&self, held: H, work: impl FnOnce() -> T + Send + 'static) -> Result<T, GivenUp>
    where
        T: Send + 'static,
        H: Send + 'static,
    {
        let turn = turn(Arc::clone(&self.0)).await?;
        // Turns go along, because who waits may leave: the core is taken for as long as the work takes.
        let worked = spawn_blocking(move || {
            let _taken = (turn, held);
            work()
        });
        worked.await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => GivenUp,
        })
    }
}

// === impl FairTurns ===

impl<K> FairTurns<K> {
    /// Turns that have nothing to do with cores: so many at a time.
    #[must_use]
    pub fn at_once(places: usize) -> Self {
        Self { cores: Turns(Arc::new(Semaphore::new(places))), lines: Arc::default() }
    }
}

impl<K> Default for FairTurns<K> {
    fn default() -> Self {
        Self { cores: Turns::default(), lines: Arc::default() }
    }
}

impl<K: Copy + Eq + Hash + Send + 'static> FairTurns<K> {
    /// What `work` makes, when it is the turn of `whose` and of this. It panics if `work` does.
    ///
    /// # Errors
    /// [`GivenUp`]
    pub async fn run<T: Send + 'static>(
        &self,
        whose: K,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GivenUp> {
        let (place, line) = self.queue(whose);
        let first = turn(line).await?;
        self.cores.run_holding((first, place), work).await
    }

    fn queue(&self, whose: K) -> (Place<K>, Arc<Semaphore>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(whose).or_insert_with(|| Line { first: Arc::new(Semaphore::new(1)), length: 0 });
        line.length += 1;
        (Place { lines: Arc::clone(&self.lines), whose }, Arc::clone(&line.first))
    }
}

// === impl Place ===

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(&self.whose) {
            line.length = line.length.saturating_sub(1);
            if line.length == 0 {
                lines.remove(&self.whose);
            }
        }
    }
}

async fn turn(semaphore: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, GivenUp> {
    semaphore.acquire_owned().await.map_err(|_| GivenUp)
}

#[cfg(test)]
mod tests {
    // What is run here holds its thread, as the work does that takes turns.
    #![allow(clippy::disallowed_methods)]
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use tokio::task::{JoinSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_for_each_and_half_of_the_cores_for_all() {
        let turns = FairTurns::at_once(2);
        let working = Arc::new(Mutex::new(Vec::new()));
        let mut all = JoinSet::new();
        for whose in [1, 1, 1, 2, 2, 3, 3, 4] {
            let (turns, working) = (turns.clone(), Arc::clone(&working));
            all.spawn(async move {
                let work = move || {
                    let others = {
                        let mut working = working.lock().unwrap();
                        working.push(whose);
                        working.clone()
                    };
                    thread::sleep(Duration::from_millis(5));
                    working.lock().unwrap().retain(|other| *other != whose);
                    others
                };
                turns.run(whose, work).await.unwrap()
            });
        }
        let seen = all.join_all().await;
        assert_eq!(seen.len(), 8);
        assert_eq!(seen.iter().map(Vec::len).max(), Some(2), "both cores work: {seen:?}");
        assert!(seen.iter().all(|working| working.len() == 1 || working[0] != working[1]), "{seen:?}");
        assert!(turns.lines.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn who_has_little_waits_for_one_thing_of_each_of_the_others() {
        let turns = FairTurns::at_once(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let (all_wait, begins) = mpsc::channel();
        let mut begins = Some(begins);
        let mut all = JoinSet::new();
        for whose in ["much"; 16].into_iter().chain(["little", "other"]) {
            let (turns, order, begins) = (turns.clone(), Arc::clone(&order), begins.take());
            let work = move || {
                begins.map(|begins| begins.recv()).transpose().unwrap();
                order.lock().unwrap().push(whose);
            };
            all.spawn(async move { turns.run(whose, work).await });
        }
        while turns.lines.lock().unwrap().values().map(|line| line.length).sum::<usize>() < all.len() {
            yield_now().await;
        }
        all_wait.send(()).unwrap();
        all.join_all().await;
        let order = order.lock().unwrap();
        assert_eq!(order[..3], ["much", "little", "other"]);
        assert_eq!(order[3..], ["much"; 15]);
    }

    #[tokio::test]
    async fn who_leaves_gives_his_place_up_and_keeps_his_core_until_it_is_free() {
        let turns = FairTurns::at_once(1);
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let works = {
            let turns = turns.clone();
            tokio::spawn(async move { turns.run(1, move || (begun.send(()).unwrap(), may_end.recv().unwrap())).await })
        };
        while has_begun.try_recv().is_err() {
            yield_now().await;
        }
        let waits = {
            let turns = turns.clone();
            tokio::spawn(async move { turns.run(2, || panic!("nobody waits for it")).await })
        };
        yield_now().await;
        assert_eq!(turns.lines.lock().unwrap().len(), 2);
        waits.abort();
        works.abort();
        assert!(waits.await.unwrap_err().is_cancelled() && works.await.unwrap_err().is_cancelled());
        assert_eq!(turns.lines.lock().unwrap().keys().collect::<Vec<_>>(), [&1], "the core is still taken");
        assert_eq!(turns.cores.0.available_permits(), 0);
        end.send(()).unwrap();
        assert_eq!(turns.run(2, || "next").await, Ok("next"));
        assert!(turns.lines.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_falls_over_falls_over_where_it_was_asked_for() {
        let turns = FairTurns::at_once(1);
        let asked = turns.clone();
        let fell = tokio::spawn(async move { asked.run(1, || -> () { panic!("as it would without a turn") }).await });
        let panic = fell.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref(), Some(&"as it would without a turn"));
        assert_eq!(turns.run(1, || 1).await, Ok(1));
    }
}
