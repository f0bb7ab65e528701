//! When to look: poll, hints, and the patience with a look that does not end.
//!
//! In come the moments at which something happened; out comes what to do next. Nothing here reads a clock or waits. There
//! is never more than one look under way.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use pve_imds_model::vm::VmId;
use tokio::time::Instant;

/// How long a look may go without finishing a file.
pub(super) const READ_LIMIT: Duration = Duration::from_secs(1);

/// From the first hint to the look. One `qm set` writes the file several times within milliseconds.
const DEBOUNCE: Duration = Duration::from_millis(15);

/// The wait after a look that found something in motion; doubles with each such look, up to the poll.
const SOON: Duration = Duration::from_millis(50);

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing yet.
    Wait,
    /// Look, and read these VMs whatever the list says.
    Look(BTreeSet<VmId>),
    /// The look under way is not ending.
    Hung,
}

/// The rhythm of looking.
#[derive(Debug)]
pub(super) struct Pace {
    poll: Duration,
    soon: Duration,
    stage: Stage,
    hinted: bool,
    touched: BTreeSet<VmId>,
}

#[derive(Debug)]
enum Stage {
    Idle { due: Instant },
    Reading { progress: u64, overdue: Instant },
    Hung,
}

impl Pace {
    /// The first look is due at once.
    pub(super) fn new(poll: Duration, now: Instant) -> Self {
        Self { poll, soon: SOON, stage: Stage::Idle { due: now }, hinted: false, touched: BTreeSet::new() }
    }

    /// Until when to wait for something to happen. `None`: a look hangs, only its end is of interest.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        match self.stage {
            Stage::Idle { due } => Some(due),
            Stage::Reading { overdue, .. } => Some(overdue),
            Stage::Hung => None,
        }
    }

    /// Something was written: to this VM's configuration, or nobody knows to which.
    pub(super) fn touched(&mut self, vmid: Option<VmId>, now: Instant) {
        self.hinted = true;
        self.touched.extend(vmid);
        if let Stage::Idle { due } = &mut self.stage {
            *due = (*due).min(now + DEBOUNCE);
        }
    }

    /// The look under way has ended; whether it had been given up.
    pub(super) fn looked(&mut self, unsettled: bool, now: Instant) -> bool {
        let wait = match (self.hinted, unsettled) {
            // What was hinted at during the look may have happened after its part of it.
            (true, _) => DEBOUNCE,
            (false, true) => self.soon,
            (false, false) => self.poll,
        };
        // Bounded here and not only where it is used: trouble may last for days.
        self.soon = if unsettled { (self.soon * 2).min(self.poll) } else { SOON };
        let before = mem::replace(&mut self.stage, Stage::Idle { due: now + wait.min(self.poll) });
        matches!(before, Stage::Hung)
    }

    /// [`Pace::wake_at`] may have come. `progress` is any number that changes while a look gets on.
    pub(super) fn elapsed(&mut self, progress: u64, now: Instant) -> Act {
        match self.stage {
            Stage::Idle { due } if due <= now => {
                self.stage = Stage::Reading { progress, overdue: now + READ_LIMIT };
                self.hinted = false;
                Act::Look(mem::take(&mut self.touched))
            }
            Stage::Reading { progress: before, overdue } if overdue <= now => {
                if before == progress {
                    self.stage = Stage::Hung;
                    Act::Hung
                } else {
                    self.stage = Stage::Reading { progress, overdue: now + READ_LIMIT };
                    Act::Wait
                }
            }
            _ => Act::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_millis(500);

    fn look(vmids: &[u32]) -> Act {
        Act::Look(vmids.iter().filter_map(|vmid| VmId::new(*vmid)).collect())
    }

    /// A pace whose first look has ended at the returned moment.
    fn settled() -> (Pace, Instant) {
        let now = Instant::now();
        let mut pace = Pace::new(POLL, now);
        assert_eq!(pace.elapsed(0, now), look(&[]));
        assert!(!pace.looked(false, now));
        (pace, now)
    }

    #[test]
    fn looks_once_per_poll() {
        let (mut pace, now) = settled();
        assert_eq!(pace.wake_at(), Some(now + POLL));
        assert_eq!(pace.elapsed(0, now + POLL - Duration::from_millis(1)), Act::Wait);
        assert_eq!(pace.elapsed(0, now + POLL), look(&[]));
    }

    #[test]
    fn many_hints_are_one_look_soon_after_the_first() {
        let (mut pace, now) = settled();
        for (millis, vmid) in [(0, 106), (10, 107), (14, 106)] {
            pace.touched(VmId::new(vmid), now + Duration::from_millis(millis));
        }
        assert_eq!(pace.wake_at(), Some(now + DEBOUNCE));
        assert_eq!(pace.elapsed(0, now + DEBOUNCE), look(&[106, 107]));
    }

    #[test]
    fn a_hint_never_postpones_the_poll() {
        let (mut pace, now) = settled();
        pace.touched(None, now + POLL - Duration::from_millis(1));
        assert_eq!(pace.wake_at(), Some(now + POLL));
    }

    #[test]
    fn a_hint_during_a_look_is_followed_by_another_look() {
        let (mut pace, now) = settled();
        assert_eq!(pace.elapsed(0, now + POLL), look(&[]));
        pace.touched(VmId::new(106), now + POLL);
        assert_eq!(pace.elapsed(0, now + POLL + DEBOUNCE), Act::Wait);
        pace.looked(false, now + POLL + DEBOUNCE);
        assert_eq!(pace.elapsed(0, now + POLL + 2 * DEBOUNCE), look(&[106]));
    }

    #[test]
    fn what_is_in_motion_is_looked_at_again_soon_but_not_for_ever() {
        let (mut pace, mut now) = settled();
        let mut waits = Vec::new();
        now += POLL;
        for _ in 0..6 {
            assert_eq!(pace.elapsed(0, now), look(&[]));
            pace.looked(true, now);
            let due = pace.wake_at().map_or(now, |due| due);
            waits.push((due - now).as_millis());
            now = due;
        }
        assert_eq!(waits, [50, 100, 200, 400, 500, 500]);
    }

    #[test]
    fn trouble_that_lasts_for_days_is_followed_to_its_end() {
        let (mut pace, mut now) = settled();
        for _ in 0..1000 {
            now = pace.wake_at().map_or(now, |due| due);
            assert_eq!(pace.elapsed(0, now), look(&[]));
            pace.looked(true, now);
        }
        assert_eq!(pace.wake_at(), Some(now + POLL));
        now += POLL;
        pace.elapsed(0, now);
        pace.looked(false, now);
        assert_eq!(pace.wake_at(), Some(now + POLL));
    }

    #[test]
    fn a_hung_look_is_noticed_once_and_stays_the_only_one() {
        let (mut pace, now) = settled();
        let start = now + POLL;
        assert_eq!(pace.elapsed(7, start), look(&[]));
        assert_eq!(pace.elapsed(7, start + READ_LIMIT), Act::Hung);
        for hours in 1..3 {
            pace.touched(VmId::new(106), start + Duration::from_secs(3600 * hours));
            assert_eq!(pace.wake_at(), None);
            assert_eq!(pace.elapsed(7, start + Duration::from_secs(3600 * hours)), Act::Wait);
        }
        let end = start + Duration::from_secs(9000);
        assert!(pace.looked(false, end));
        assert_eq!(pace.elapsed(7, end + DEBOUNCE), look(&[106]));
    }

    #[test]
    fn a_slow_look_is_not_a_hung_one() {
        let (mut pace, now) = settled();
        let start = now + POLL;
        assert_eq!(pace.elapsed(0, start), look(&[]));
        for second in 1..10 {
            assert_eq!(pace.elapsed(second, start + READ_LIMIT * u32::try_from(second).unwrap_or(1)), Act::Wait);
        }
    }
}
