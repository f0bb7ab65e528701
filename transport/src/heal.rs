//! What was lent and never came back: frames that the kernel lost on their way to us.
//!
//! `steer` lends a guest 256 segments and takes each back when it is read here; one that was lost in between (a full
//! queue of the veth pair, a device that went down, no memory) would be missing for ever, and 256 of them would silence
//! the guest. In comes what each [`Account`] looks like at two looks, 100 ms apart; out comes what to give back.
//! Refused: to heal what moves. A frame under way is not a lost one, and giving back too much would let a guest send
//! more than there is room for ("the ring is empty now" alone raced with frames in flight, thousands of times).

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::wire::Account;

/// Between two looks while something is missing.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// Between two looks while nothing is: an idle node wakes this often for it.
pub(crate) const LEISURE: Duration = Duration::from_secs(1);

/// An account at one moment, after everything that had arrived was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// What was given back so far.
    pub(crate) returned: u32,
    /// What is lent.
    pub(crate) missing: i32,
    /// Nothing that has arrived still waits to be read.
    pub(crate) quiet: bool,
}

/// What to give back now, and what to remember for the next look.
fn judge(first: Option<Look>, now: Look) -> (i32, Option<Look>) {
    match first {
        _ if now.missing == 0 || !now.quiet => (0, None),
        None => (0, Some(now)),
        Some(first) if first.returned != now.returned => (0, Some(now)),
        // What was lent since the first look may be under way. A count below zero is as wrong as one above.
        Some(first) if first.missing.signum() == now.missing.signum() => {
            let lost = if first.missing > 0 { first.missing.min(now.missing) } else { first.missing.max(now.missing) };
            (lost, None)
        }
        Some(_) => (0, Some(now)),
    }
}

/// Remembers the first look at each account that misses something.
#[derive(Debug)]
pub(crate) struct Heal {
    first: HashMap<Account, Look>,
    due: Instant,
}

impl Heal {
    pub(crate) fn new(now: Instant) -> Self {
        Self { first: HashMap::new(), due: now + LEISURE }
    }

    /// When to look again.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// One look at one account; what to give back.
    pub(crate) fn look(&mut self, account: Account, now: Look) -> i32 {
        let first = self.first.get(&account).copied();
        let (lost, remembered) = judge(first, now);
        match remembered {
            Some(look) => drop(self.first.insert(account, look)),
            None if first.is_some() => drop(self.first.remove(&account)),
            None => {}
        }
        lost
    }

    /// All accounts were looked at.
    pub(crate) fn looked(&mut self, now: Instant) {
        self.due = now + if self.first.is_empty() { LEISURE } else { PATIENCE };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_rests_is_healed_and_by_the_first_look() {
        let look = |returned, missing, quiet| Look { returned, missing, quiet };
        let first = look(7, 40, true);
        for (name, before, now, lost, remembered) in [
            ("nothing missing", Some(first), look(7, 0, true), 0, None),
            ("frames wait to be read", Some(first), look(7, 40, false), 0, None),
            ("the first look", None, first, 0, Some(first)),
            ("something came back since", Some(first), look(8, 39, true), 0, Some(look(8, 39, true))),
            ("at rest", Some(first), first, 40, None),
            ("more was lent since", Some(first), look(7, 90, true), 40, None),
            ("the first look caught a loan that was refused", Some(first), look(7, 30, true), 30, None),
            ("below zero", Some(look(7, -5, true)), look(7, -5, true), -5, None),
            ("from below zero to above", Some(look(7, -5, true)), look(7, 3, true), 0, Some(look(7, 3, true))),
        ] {
            assert_eq!(judge(before, now), (lost, remembered), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_looks_often_only_while_something_is_missing() {
        let now = Instant::now();
        let mut heal = Heal::new(now);
        let look = Look { returned: 0, missing: 3, quiet: true };
        assert_eq!((heal.look(Account::Ring, look), heal.due()), (0, now + LEISURE));
        heal.looked(now);
        assert_eq!(heal.due(), now + PATIENCE);
        assert_eq!(heal.look(Account::Ring, look), 3);
        heal.looked(now);
        assert_eq!(heal.due(), now + LEISURE);
    }
}
