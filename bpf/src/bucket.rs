//! How many of the questions that cost us far more than a guest, SYN and ARP, each slot may ask.

use std::num::NonZeroU32;

const SECOND: u64 = 1_000_000_000;

/// A rate and a burst, for each slot. What is beyond is dropped as [`crate::Reason::SteerBucket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// So many a second.
    pub per_second: NonZeroU32,
    /// And so many at once after a silence.
    pub burst: NonZeroU32,
}

impl Default for Bucket {
    /// 2,000 a second after a burst of 256. A client that boots opens 40 to 75 connections: three of its kind fit into
    /// the burst alone.
    fn default() -> Self {
        const PER_SECOND: NonZeroU32 = NonZeroU32::new(2_000).unwrap();
        const BURST: NonZeroU32 = NonZeroU32::new(256).unwrap();
        Self { per_second: PER_SECOND, burst: BURST }
    }
}

impl Bucket {
    /// What one costs, nanoseconds; never nothing.
    pub(crate) fn interval(self) -> u64 {
        SECOND.div_ceil(u64::from(self.per_second.get()))
    }

    /// What a full one holds, nanoseconds.
    pub(crate) fn depth(self) -> u64 {
        u64::from(self.burst.get()) * self.interval()
    }
}
