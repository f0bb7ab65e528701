//! tokio's clock for governor's buckets, so that paused time pauses them too.

use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::HashMapStateStore;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::time::Instant;

/// A token bucket whose refill follows tokio's clock.
pub(crate) type Bucket = RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Nanos>>;

/// One for each key.
pub(crate) type Buckets<K> = RateLimiter<K, HashMapStateStore<K>, TokioClock, NoOpMiddleware<Nanos>>;

/// A full bucket.
pub(crate) fn bucket(quota: Quota) -> Bucket {
    RateLimiter::direct_with_clock(quota, TokioClock { start: Instant::now() })
}

/// A full bucket for whoever comes.
pub(crate) fn buckets<K: Clone + Eq + std::hash::Hash>(quota: Quota) -> Buckets<K> {
    RateLimiter::hashmap_with_clock(quota, TokioClock { start: Instant::now() })
}

/// Time since the bucket was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokioClock {
    start: Instant,
}

impl Clock for TokioClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        let elapsed: Duration = self.start.elapsed();
        elapsed.into()
    }
}
