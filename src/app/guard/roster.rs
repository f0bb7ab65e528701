//! Whose turn it is: who waits for a guard, who is to be tried again, who has one, who is gone. Pure.
//!
//! In come births, deaths and what became of attempts; out comes the next piece of work. Everything is keyed by the
//! interface's index and costs a logarithm: a thousand interfaces that appear at once are a thousand small steps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use pve_imds_transport::{Backoff, Interface, Seat};
use tokio::time::Instant;

/// Whoever is refused its guard for longer is open for another reason than its birth.
const STUCK: Duration = Duration::from_secs(1);

/// How long the pins of an interface that is gone stay, in case it was only renamed.
const MOURNING: Duration = Duration::from_millis(200);

/// One piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Guard this interface.
    Attach(Interface, Seat),
    /// Take the pins of this one away.
    Forget(Interface),
}

/// Where an interface stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// In line, at this place.
    Waiting(i64),
    /// To be tried again then.
    Failed(Instant),
    /// An attempt is being made.
    InWork,
    /// It has its guard.
    Guarded,
    /// It is gone; its pins go then.
    Gone(Instant),
    /// They are being taken away.
    InBurial,
}

#[derive(Debug)]
struct Tenant {
    interface: Interface,
    seat: Seat,
    standing: Standing,
    /// How long to wait should the next attempt fail.
    backoff: Backoff,
    /// Why it has no guard.
    trouble: Option<Trouble>,
}

/// Attempts that failed, without one in between that did not.
#[derive(Debug)]
struct Trouble {
    since: Instant,
    why: String,
}

/// Everyone, by index.
#[derive(Debug, Default)]
pub(super) struct Roster {
    tenants: HashMap<u32, Tenant>,
    /// By place, the front being the greatest.
    line: BTreeMap<i64, u32>,
    due: BTreeSet<(Instant, u32)>,
    /// Those that are to have no guard.
    open: HashMap<u32, Interface>,
    front: i64,
    back: i64,
}

impl Roster {
    /// An interface is to be guarded: it goes to the front, the newest first. One that had been mourned lives on, so
    /// its pins stay and are swapped: a rename never opens the guard.
    pub(super) fn seat(&mut self, interface: Interface, seat: Seat) {
        self.front += 1;
        let standing = Standing::Waiting(self.front);
        self.put(Tenant { interface, seat, standing, backoff: Backoff::default(), trouble: None });
    }

    /// An interface that has its guard already.
    pub(super) fn adopt(&mut self, interface: Interface, seat: Seat) {
        self.put(Tenant { interface, seat, standing: Standing::Guarded, backoff: Backoff::default(), trouble: None });
    }

    /// The attempt succeeded.
    pub(super) fn guarded(&mut self, index: u32) {
        if let Some(tenant) = self.tenants.get_mut(&index) {
            tenant.trouble = None;
        }
        self.stand(index, Standing::Guarded);
    }

    /// The attempt at a guard, or a burial, failed. Says whether that is news: not if the last one failed for the same reason.
    pub(super) fn failed(&mut self, index: u32, why: &str, now: Instant) -> bool {
        let Some(tenant) = self.tenants.get_mut(&index) else { return false };
        let due = now + tenant.backoff.wait();
        let before = tenant.trouble.take();
        let news = before.as_ref().is_none_or(|trouble| trouble.why != why);
        let since = before.map_or(now, |trouble| trouble.since);
        tenant.trouble = Some(Trouble { since, why: why.to_owned() });
        let again = if tenant.standing == Standing::InBurial { Standing::Gone(due) } else { Standing::Failed(due) };
        self.stand(index, again);
        news
    }

    /// The pins of an interface that is gone are too.
    pub(super) fn buried(&mut self, index: u32) {
        if self.tenants.get(&index).is_some_and(|tenant| tenant.standing == Standing::InBurial) {
            self.tenants.remove(&index);
        }
    }

    /// The interface is to have no guard from now on.
    pub(super) fn leave_open(&mut self, interface: Interface) {
        self.lift(interface.index);
        self.tenants.remove(&interface.index);
        self.open.insert(interface.index, interface);
    }

    /// Nothing is known any more of the interface at this index that was to have no guard.
    pub(super) fn close(&mut self, index: u32) {
        self.open.remove(&index);
    }

    /// Whether this is the index of an interface that is to have no guard. Asks the kernel: it may be another's by now.
    pub(super) fn is_left_open(&self, index: u32) -> bool {
        self.open.get(&index).is_some_and(Interface::is_there)
    }

    /// Those who have been refused their guard for longer than any birth takes, and why, the oldest interface first.
    pub(super) fn stuck(&self, now: Instant) -> Vec<(Interface, String)> {
        let stuck = |trouble: &&Trouble| now.saturating_duration_since(trouble.since) > STUCK;
        let lives = |tenant: &&Tenant| !matches!(tenant.standing, Standing::Gone(_) | Standing::InBurial);
        let open = self.tenants.values().filter(lives).filter_map(|tenant| {
            let why = tenant.trouble.as_ref().filter(stuck)?.why.clone();
            Some((tenant.interface.clone(), why))
        });
        let mut open: Vec<_> = open.collect();
        open.sort_unstable_by_key(|(interface, _)| interface.index);
        open
    }

    /// The interface has lost its guard: to the front of the line again.
    pub(super) fn naked(&mut self, index: u32) {
        self.front += 1;
        self.stand(index, Standing::Waiting(self.front));
    }

    /// The interface is gone.
    pub(super) fn gone(&mut self, interface: Interface, seat: Seat, now: Instant) {
        let standing = Standing::Gone(now + MOURNING);
        self.put(Tenant { interface, seat, standing, backoff: Backoff::default(), trouble: None });
    }

    /// The next piece of work. What it says of an attempt is taken as begun. Removals go first: nothing of a vanished
    /// interface shall outlive its time because others are many.
    pub(super) fn next(&mut self, now: Instant) -> Option<Work> {
        while let Some((_, index)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            match self.tenants.get(&index).map(|tenant| tenant.standing) {
                Some(Standing::Gone(_)) => {
                    self.stand(index, Standing::InBurial);
                    return self.tenants.get(&index).map(|tenant| Work::Forget(tenant.interface.clone()));
                }
                _ => {
                    self.back -= 1;
                    self.stand(index, Standing::Waiting(self.back));
                }
            }
        }
        let (_, index) = self.line.last_key_value().map(|(place, index)| (*place, *index))?;
        self.stand(index, Standing::InWork);
        self.tenants.get(&index).map(|tenant| Work::Attach(tenant.interface.clone(), tenant.seat))
    }

    /// When there is something to do although nobody asks.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Whether somebody sits at this index, or did until a moment ago.
    pub(super) fn is_known(&self, index: u32) -> bool {
        self.tenants.contains_key(&index)
    }

    /// Those that have their guard.
    pub(super) fn all_guarded(&self) -> impl Iterator<Item = &Interface> {
        let guarded = self.tenants.values().filter(|tenant| tenant.standing == Standing::Guarded);
        guarded.map(|tenant| &tenant.interface)
    }

    fn put(&mut self, tenant: Tenant) {
        let (index, standing) = (tenant.interface.index, tenant.standing);
        self.lift(index);
        self.open.remove(&index);
        self.tenants.insert(index, Tenant { standing: Standing::InWork, ..tenant });
        self.stand(index, standing);
    }

    /// Changes where one stands, in the queue of that standing too.
    fn stand(&mut self, index: u32, standing: Standing) {
        self.lift(index);
        let Some(tenant) = self.tenants.get_mut(&index) else { return };
        tenant.standing = standing;
        match standing {
            Standing::Waiting(place) => drop(self.line.insert(place, index)),
            Standing::Failed(due) | Standing::Gone(due) => drop(self.due.insert((due, index))),
            Standing::InWork | Standing::Guarded | Standing::InBurial => {}
        }
    }

    /// Out of whatever queue it stands in.
    fn lift(&mut self, index: u32) {
        match self.tenants.get(&index).map(|tenant| tenant.standing) {
            Some(Standing::Waiting(place)) => drop(self.line.remove(&place)),
            Some(Standing::Failed(due) | Standing::Gone(due)) => drop(self.due.remove(&(due, index))),
            Some(Standing::InWork | Standing::Guarded | Standing::InBurial) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use pve_imds_transport::Slots;

    use super::*;

    fn link(index: u32) -> Interface {
        Interface { index, name: format!("tap{index}i0"), kind: "tun".to_owned() }
    }

    fn seats() -> impl FnMut() -> Seat {
        let mut slots = Slots::new(4096);
        move || slots.take().unwrap()
    }

    fn index(work: Option<Work>) -> Option<u32> {
        match work {
            Some(Work::Attach(interface, _)) => Some(interface.index),
            _ => None,
        }
    }

    #[test]
    fn the_newest_goes_first_and_a_failed_one_goes_last() {
        let (mut roster, mut seat, now) = (Roster::default(), seats(), Instant::now());
        (1..=3).for_each(|index| roster.seat(link(index), seat()));
        assert_eq!(index(roster.next(now)), Some(3));
        roster.failed(3, "", now);
        roster.seat(link(4), seat());
        let later = now + Backoff::FIRST;
        let order: Vec<_> = std::iter::from_fn(|| index(roster.next(later))).collect();
        assert_eq!(order, [4, 2, 1, 3]);
    }

    #[test]
    fn patience_doubles_up_to_its_bound_and_success_ends_it() {
        let (mut roster, mut seat, mut now) = (Roster::default(), seats(), Instant::now());
        roster.seat(link(1), seat());
        let mut waits = Vec::new();
        for _ in 0..9 {
            assert_eq!(index(roster.next(now)), Some(1));
            assert_eq!(roster.failed(1, "taken", now), waits.is_empty(), "the same is said once");
            let due = roster.next_due().unwrap();
            waits.push((due - now).as_millis());
            now = due;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(index(roster.next(now)), Some(1));
        assert_eq!(roster.stuck(now), [(link(1), "taken".to_owned())]);
        assert!(roster.failed(1, "another reason", now));
        roster.guarded(1);
        assert_eq!((roster.next(now), roster.next_due(), roster.stuck(now)), (None, None, Vec::new()));
        assert_eq!(roster.all_guarded().collect::<Vec<_>>(), [&link(1)]);
    }

    #[test]
    fn whoever_is_left_open_waits_for_nothing_until_a_guard_is_wanted_again() {
        let (mut roster, mut seat, now) = (Roster::default(), seats(), Instant::now());
        let lo = Interface { index: 1, name: "lo".to_owned(), kind: String::new() };
        roster.seat(lo.clone(), seat());
        roster.leave_open(lo.clone());
        assert_eq!((roster.next(now), roster.is_known(1), roster.is_left_open(1)), (None, false, true));
        // Its index is another's by now, or nobody's.
        roster.leave_open(Interface { name: "tap106i0".to_owned(), ..lo.clone() });
        assert!(!roster.is_left_open(1));
        roster.leave_open(lo.clone());
        roster.seat(lo.clone(), seat());
        assert!(!roster.is_left_open(1));
        assert_eq!(index(roster.next(now)), Some(1));
        roster.leave_open(lo);
        roster.close(1);
        assert!(!roster.is_left_open(1));
    }

    #[test]
    fn the_dead_are_forgotten_unless_they_come_back() {
        let (mut roster, mut seat, now) = (Roster::default(), seats(), Instant::now());
        for index in 1..=2 {
            let seat = seat();
            roster.seat(link(index), seat);
            roster.gone(link(index), seat, now);
        }
        assert!(roster.is_known(1), "its pins are not yet nobody's");
        roster.seat(link(2), seat());
        assert_eq!(index(roster.next(now)), Some(2), "it lives again");
        roster.guarded(2);
        let later = now + MOURNING;
        assert_eq!(roster.next(later), Some(Work::Forget(link(1))));
        assert_eq!(roster.next(later), None);
        assert!(roster.failed(1, "held", later), "which is news");
        let later = roster.next_due().unwrap();
        assert_eq!(roster.next(later), Some(Work::Forget(link(1))), "what failed is tried again");
        assert!(!roster.failed(1, "held", later));
        assert_eq!(roster.stuck(later + STUCK * 2), [], "nobody is there who could be open");
        assert_eq!(roster.next(later + STUCK), Some(Work::Forget(link(1))));
        roster.buried(1);
        roster.buried(2);
        assert!(!roster.is_known(1) && roster.is_known(2));
    }

    #[test]
    fn churn_leaves_nothing_and_is_not_quadratic() {
        let (mut roster, mut slots) = (Roster::default(), Slots::new(4096));
        let begun = Instant::now();
        for round in 0..20 {
            let seated: Vec<_> = (0..4000).map(|index| (link(index), slots.take().unwrap())).collect();
            seated.iter().for_each(|(interface, seat)| roster.seat(interface.clone(), *seat));
            if round % 2 == 0 {
                while let Some(index) = index(roster.next(begun)) {
                    roster.guarded(index);
                }
            }
            for (interface, seat) in seated {
                roster.gone(interface, seat, begun);
                slots.free(seat);
            }
            while let Some(Work::Forget(interface)) = roster.next(begun + MOURNING) {
                roster.buried(interface.index);
            }
            assert!(roster.tenants.is_empty() && roster.line.is_empty() && roster.due.is_empty());
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
