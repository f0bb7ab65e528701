//! How long to wait before something that failed is tried again.

use std::time::Duration;

/// Waits that begin at 10 ms and double up to a second: what was busy for a moment costs nothing, and what is broken costs
/// an attempt a second. One for each thing that is tried; what succeeds begins with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    /// The wait after the first failure.
    pub const FIRST: Duration = Duration::from_millis(10);

    /// The longest wait.
    pub const LONGEST: Duration = Duration::from_secs(1);

    /// It failed once more: how long to wait now.
    pub fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(Self::LONGEST);
        wait
    }
}

/// Nothing has failed yet.
impl Default for Backoff {
    fn default() -> Self {
        Self { next: Self::FIRST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..9).map(|_| backoff.wait().as_millis()).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }
}
