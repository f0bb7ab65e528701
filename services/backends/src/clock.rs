//! The wall clock, for what must mean the same on every node and after a restart: when a session token ends.
//!
//! It may be set to any time at any time. Whoever asks bounds what that can do; everything else lives by tokio's clock.

use std::fmt;
use std::sync::Arc;

/// Tells the seconds since 1970. Clones are one clock.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    /// One that a test turns.
    #[must_use]
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn now(&self) -> u64 {
        (self.0)()
    }
}

impl Default for Clock {
    /// The machine's. Before 1970 it is 1970.
    fn default() -> Self {
        #[expect(clippy::disallowed_types, reason = "no other clock is the same on two nodes")]
        let now = || {
            let time = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
            time.map_or(0, |time| time.as_secs())
        };
        Self::new(now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_later_than_this_was_written() {
        assert!(Clock::default().now() > 1_764_000_000);
        assert_eq!(Clock::new(|| 7).clone().now(), 7);
    }
}
