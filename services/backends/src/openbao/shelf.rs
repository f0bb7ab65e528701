//! Which sets are at hand, which are being fetched, and when the store may be asked again.
//!
//! In comes the path of a set; out goes what to do about it: a set that is kept for a while, a flight to wait for, the
//! reason why the last one failed, or that it is time to begin one. Each set has one flight at a time. After one, the next
//! begins when a second of the set's own clock begins; each set's clock stands differently, so that those that failed
//! together are not asked for together. While nobody's set can be had, all of them together are asked for a few times
//! a second, whichever comes first, until one gets through. Refused: to keep more than [`MAX_BYTES`] of values or
//! [`MAX_SETS`] sets. Pure: it is told what time it is.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use pve_imds_model::secrets::SecretPath;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Landed;
use super::answer::SecretSet;
use super::error::FetchError;

/// Sets of which anything is known.
const MAX_SETS: usize = 1024;

/// Bytes of the values that are kept.
const MAX_BYTES: usize = 16 << 20;

/// Nanoseconds, in which one flight of a set begins at most.
const SECOND: u64 = 1_000_000_000;

/// Between two flights of any sets while the store fails for all of them.
const OUTAGE: Duration = Duration::from_millis(125);

/// What to do for somebody who asks.
pub(super) enum Turn {
    /// It is here.
    Have(Arc<SecretSet>),
    /// It failed, and it is not time to try again.
    Failed(Arc<FetchError>),
    /// It is being fetched.
    Join(watch::Receiver<Option<Landed>>),
    /// Fetch it, and tell those who will be waiting.
    Begin(watch::Sender<Option<Landed>>),
}

/// See above.
#[derive(Debug)]
pub(super) struct Shelf {
    keep: Duration,
    begun: Instant,
    clocks: RandomState,
    sets: HashMap<SecretPath, Entry>,
    /// Grows with each question.
    count: u64,
    outage: Option<Outage>,
}

#[derive(Debug)]
struct Entry {
    kept: Option<Kept>,
    failed: Option<Arc<FetchError>>,
    flight: Option<watch::Receiver<Option<Landed>>>,
    /// No flight before.
    next: Instant,
    /// The last question for it.
    asked: u64,
}

#[derive(Debug)]
struct Kept {
    set: Arc<SecretSet>,
    until: Instant,
}

#[derive(Debug)]
struct Outage {
    failed: Arc<FetchError>,
    next: Instant,
}

impl Shelf {
    /// Nothing is on it. Sets are kept for as long as `keep`.
    pub(super) fn new(keep: Duration, now: Instant) -> Self {
        Self { keep, begun: now, clocks: RandomState::new(), sets: HashMap::new(), count: 0, outage: None }
    }

    /// What to do for somebody who asks for `path`, and has use for a set only if it is `enough`.
    pub(super) fn turn(&mut self, path: &SecretPath, enough: impl Fn(&SecretSet) -> bool, now: Instant) -> Turn {
        self.count += 1;
        let count = self.count;
        if !self.sets.contains_key(path) {
            self.make_room();
        }
        let next = self.next_second(path, now);
        let entry = self.sets.entry(path.clone()).or_insert(Entry {
            kept: None,
            failed: None,
            flight: None,
            next: now,
            asked: count,
        });
        entry.asked = count;
        let kept = entry.kept.as_ref().filter(|kept| now < kept.until).map(|kept| Arc::clone(&kept.set));
        if let Some(set) = kept.as_ref().filter(|set| enough(set)) {
            return Turn::Have(Arc::clone(set));
        }
        if let Some(flight) = &entry.flight {
            return Turn::Join(flight.clone());
        }
        if now < entry.next {
            // One that is here is better than the reason why there is no newer one.
            return match (kept, &entry.failed) {
                (Some(set), _) => Turn::Have(set),
                (None, Some(failed)) => Turn::Failed(Arc::clone(failed)),
                // Kept for less than a second.
                (None, None) => begin(entry, next),
            };
        }
        if let Some(outage) = &mut self.outage {
            if now < outage.next {
                return kept.map_or_else(|| Turn::Failed(Arc::clone(&outage.failed)), Turn::Have);
            }
            // Also if whoever begins now leaves it to others to learn what became of it.
            outage.next = now + OUTAGE;
        }
        begin(entry, next)
    }

    /// A flight is over. Until when its set is kept, if there is one.
    pub(super) fn landed(&mut self, path: &SecretPath, landed: &Landed, now: Instant) -> Option<Instant> {
        match landed {
            Err(failed) if failed.is_an_outage() => {
                let next = self.outage.as_ref().map_or(now, |outage| outage.next);
                self.outage = Some(Outage { failed: Arc::clone(failed), next });
            }
            _ => self.outage = None,
        }
        let until = now + self.keep;
        let entry = self.sets.get_mut(path)?;
        entry.flight = None;
        match landed {
            Ok(set) => {
                entry.failed = None;
                entry.kept = Some(Kept { set: Arc::clone(set), until });
                self.bound(path);
                Some(until)
            }
            Err(failed) => {
                entry.failed = Some(Arc::clone(failed));
                // What was kept may not be read any more, or is no more.
                if !failed.is_an_outage() {
                    entry.kept = None;
                }
                None
            }
        }
    }

    /// Wipes what is kept no longer.
    pub(super) fn forget(&mut self, now: Instant) {
        for entry in self.sets.values_mut() {
            entry.kept.take_if(|kept| kept.until <= now);
        }
    }

    /// When the set's clock begins its next second.
    fn next_second(&self, path: &SecretPath, now: Instant) -> Instant {
        let stands = self.clocks.hash_one(path) % SECOND;
        let runs = u64::try_from((now - self.begun).as_nanos()).unwrap_or(u64::MAX);
        let into = runs.saturating_add(stands) % SECOND;
        now + Duration::from_nanos(SECOND - into)
    }

    fn make_room(&mut self) {
        if self.sets.len() < MAX_SETS {
            return;
        }
        let resting = self.sets.iter().filter(|(_, entry)| entry.flight.is_none());
        let oldest = resting.min_by_key(|(_, entry)| entry.asked).map(|(path, _)| path.clone());
        // As many flights as sets there are not.
        oldest.map(|path| self.sets.remove(&path));
    }

    /// Lets go of the values that were asked for longest ago, but not of `path`'s.
    fn bound(&mut self, path: &SecretPath) {
        let weight = |entry: &Entry| entry.kept.as_ref().map_or(0, |kept| kept.set.weight());
        let mut bytes: usize = self.sets.values().map(weight).sum();
        while bytes > MAX_BYTES {
            let others = self.sets.iter_mut().filter(|(other, entry)| *other != path && entry.kept.is_some());
            let Some((_, oldest)) = others.min_by_key(|(_, entry)| entry.asked) else { return };
            bytes -= weight(oldest);
            oldest.kept = None;
        }
    }
}

fn begin(entry: &mut Entry, next: Instant) -> Turn {
    let (lands, landing) = watch::channel(None);
    entry.flight = Some(landing);
    entry.next = next;
    Turn::Begin(lands)
}

#[cfg(test)]
mod tests;
