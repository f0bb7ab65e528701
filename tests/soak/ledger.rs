//! Who went unanswered, for how long, and which deed was under way.
//!
//! Each guest that stays asks in two ways at a time. The patient one waits for longer than its kernel does before it
//! repeats what was lost (a second), as clients do: what it misses, a guest would miss. The impatient one begins a new
//! connection every 50 ms, so that how long *we* are gone is measured and not how long a kernel waits.

use std::time::{Duration, Instant};

use crate::deeds::{DEEDS, Harm};
use crate::world::Guest;
use crate::world::figures::ms;
use crate::world::probe::{Asker, Asking, Heard, Lapse};

/// How many of those who stay ask.
pub const ASKING: usize = 3;

/// What is promised of every mend. Nobody whom a deed does not reach waits as long for an answer either: that would be
/// a frame that was lost.
const PROMISE: Duration = Duration::from_secs(1);

/// The second of them keeps its connection.
const fn patient(guest: usize) -> Asker {
    Asker { rate: 50, fresh: guest != 1, patience: Duration::from_secs(3) }
}

const IMPATIENT: Asker = Asker { rate: 50, fresh: true, patience: Duration::from_millis(50) };

/// Something of a guest's patient and impatient half.
#[derive(Clone, Copy, Debug, Default)]
pub struct Halves<T> {
    patient: T,
    impatient: T,
}

/// Those who ask.
pub struct Askers(Vec<Halves<Asking>>);

impl Askers {
    pub fn start(guests: &[Guest]) -> Self {
        let halves = |(at, guest)| Halves { patient: patient(at).start(guest), impatient: IMPATIENT.start(guest) };
        Self(guests[..ASKING].iter().enumerate().map(halves).collect())
    }

    /// What each heard.
    pub fn stop(self) -> Vec<Halves<Heard>> {
        let heard = |Halves { patient, impatient }: Halves<Asking>| Halves {
            patient: patient.stop(),
            impatient: impatient.stop(),
        };
        self.0.into_iter().map(heard).collect()
    }
}

/// What one deed has cost so far.
#[derive(Clone, Debug, Default)]
struct Cost {
    times: usize,
    /// Requests of patient guests.
    failed: u32,
    /// Why the first failed.
    why: Option<String>,
    /// The longest time without an answer.
    longest: Halves<Duration>,
    /// What was not to happen.
    broken: Vec<String>,
}

/// The books.
#[derive(Debug, Default)]
pub struct Ledger {
    /// When each deed was begun, the first of [`DEEDS`] first, round and round.
    begun: Vec<Instant>,
    /// When each was done.
    done: Vec<Instant>,
    costs: [Cost; DEEDS.len()],
}

impl Ledger {
    /// How many deeds there were.
    pub fn deeds(&self) -> usize {
        self.begun.len()
    }

    /// The next one begins; which of [`DEEDS`] it is.
    pub fn begin(&mut self) -> usize {
        let deed = self.begun.len() % DEEDS.len();
        self.begun.push(Instant::now());
        self.costs[deed].times += 1;
        deed
    }

    /// It is done.
    pub fn end(&mut self) {
        self.done.push(Instant::now());
    }

    /// Takes in what was heard since the last time. Returns what the patient ones heard, all together, and whatever
    /// was somebody else's.
    pub fn enter(&mut self, heard: Vec<Halves<Heard>>) -> Heard {
        let each = heard.into_iter().enumerate().map(|(guest, Halves { mut patient, impatient })| {
            for lapse in &patient.lapses {
                self.charge(guest, lapse, |harmed, cost| {
                    cost.longest.patient = cost.longest.patient.max(lapse.length());
                    cost.failed += lapse.failed;
                    cost.why = cost.why.take().or_else(|| lapse.why.clone());
                    // Whom it reaches waits for its kernel, and its connection may not be there any more.
                    harmed || lapse.failed == 0 && lapse.length() < PROMISE
                });
            }
            for lapse in &impatient.lapses {
                let undone = self.undone(guest, lapse);
                self.charge(guest, lapse, |_, cost| {
                    cost.longest.impatient = cost.longest.impatient.max(lapse.length());
                    lapse.until.saturating_duration_since(undone.max(lapse.from)) < PROMISE
                });
            }
            patient.wrong.extend(impatient.wrong);
            patient
        });
        each.reduce(Heard::and).unwrap()
    }

    /// The deed that was under way when the first request was sent that had no answer.
    fn culprit(&self, lapse: &Lapse) -> Option<usize> {
        self.begun.partition_point(|begun| *begun <= lapse.from).checked_sub(1)
    }

    /// From when on the guest may expect an answer again: for how long a command of the next deed waits for the kernel's
    /// lock of all links is nobody's promise.
    fn undone(&self, guest: usize, lapse: &Lapse) -> Instant {
        let culprit = self.culprit(lapse).filter(|at| DEEDS[at % DEEDS.len()].1 == Harm::One(guest));
        culprit.and_then(|at| self.done.get(at + 1)).copied().unwrap_or(lapse.from)
    }

    /// A lapse belongs to the deed that was under way.
    fn charge(&mut self, guest: usize, lapse: &Lapse, allowed: impl FnOnce(bool, &mut Cost) -> bool) {
        let Some(at) = self.culprit(lapse) else { return };
        let (_, harm): (_, Harm) = DEEDS[at % DEEDS.len()];
        let cost = &mut self.costs[at % DEEDS.len()];
        if !allowed(harm.reaches(guest), cost) {
            let (after, length) = (ms(lapse.from - self.begun[at]), ms(lapse.length()));
            let why = lapse.why.as_deref().unwrap_or("late");
            cost.broken.push(format!("guest {guest}: {why}; {length:.0} ms, begun {after:.0} ms after the deed"));
        }
    }

    /// A table of deeds.
    pub fn lines(&self) -> Vec<String> {
        let head = "times  failed  longest ms (impatient)  deed".to_owned();
        let rows = DEEDS.iter().zip(&self.costs).map(|((deed, harm), cost)| {
            let Cost { times, failed, longest, why, .. } = cost;
            let (patient, impatient) = (ms(longest.patient), format!("({:.0})", ms(longest.impatient)));
            let why = why.as_ref().map_or_else(String::new, |why| format!("; first failure: {why}"));
            format!("{times:>5}  {failed:>6}  {patient:>10.0} {impatient:>11}  {deed:?} harms {harm:?}{why}")
        });
        std::iter::once(head).chain(rows).collect()
    }

    /// Nobody lost an answer for a deed that does not reach him, and no harm lasted longer than is promised.
    #[track_caller]
    pub fn keeps_the_promise(&self) {
        let broken: Vec<_> = DEEDS.iter().zip(&self.costs).filter(|(_, cost)| !cost.broken.is_empty()).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}
