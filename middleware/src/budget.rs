//! How many log lines one guest may cause.
//!
//! A guest decides how often it asks, so without a budget it decides how much is logged, and the journal drops lines
//! of a whole service when it is flooded. What exceeds the budget is not lost without a trace: the next line within it
//! says how many are missing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::Quota;

use crate::bounds::{LOG_LINE_BURST, LOG_LINES_PER_SECOND};
use crate::clock::{Bucket, bucket};

/// One guest's budget for one log; clones share it.
#[derive(Clone)]
pub(crate) struct LogBudget {
    inner: Arc<Inner>,
}

struct Inner {
    bucket: Bucket,
    unsaid: AtomicU64,
}

/// A line within the budget. Displays as the count of those before it that were not, or as nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    unsaid: u64,
}

impl LogBudget {
    pub(crate) fn new() -> Self {
        let quota = Quota::per_second(LOG_LINES_PER_SECOND).allow_burst(LOG_LINE_BURST);
        Self { inner: Arc::new(Inner { bucket: bucket(quota), unsaid: AtomicU64::new(0) }) }
    }

    /// Takes one line from the budget; `None` when it is used up.
    pub(crate) fn take(&self) -> Option<Line> {
        if self.inner.bucket.check().is_ok() {
            Some(Line { unsaid: self.inner.unsaid.swap(0, Ordering::Relaxed) })
        } else {
            self.inner.unsaid.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

impl fmt::Debug for LogBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogBudget").field("unsaid", &self.inner.unsaid).finish_non_exhaustive()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unsaid == 0 { Ok(()) } else { write!(f, " ({} more before it not logged)", self.unsaid) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_beyond_the_budget_is_counted_and_said_later() {
        let budget = LogBudget::new();
        for _ in 0..LOG_LINE_BURST.get() {
            assert_eq!(budget.take(), Some(Line { unsaid: 0 }));
        }
        for _ in 0..7 {
            assert_eq!(budget.take(), None);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let line = budget.take();
        assert_eq!(line, Some(Line { unsaid: 7 }));
        assert_eq!(line.map(|line| line.to_string()).as_deref(), Some(" (7 more before it not logged)"));
        assert_eq!(budget.take(), Some(Line { unsaid: 0 }));
    }
}
