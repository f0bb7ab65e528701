//! A guest's share: so many requests a second, so many at once, over all its connections together.
//!
//! It stands below rescue, so that a refusal is spoken like any other fault, and above everything that costs something.
//! A request beyond the share is refused at once with the true wait, never queued: a queue is memory that the guest
//! fills. Nothing else is looked at.
//!
//! ```
//! use http::{Request, Response};
//! use pve_imds_middleware::limits::{GuestLimits, LimitsLayer};
//! use pve_imds_model::fault::Fault;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let share = GuestLimits::new();
//! let service = ServiceBuilder::new()
//!     .layer(LimitsLayer::new(share.clone()))
//!     .service(service_fn(|_: Request<()>| async { Ok::<_, Fault>(Response::new(())) }));
//! service.oneshot(Request::new(())).await.unwrap();
//! # }
//! ```

use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use governor::Quota;
use governor::clock::Clock;
use http::{Request, Response};
use pin_project_lite::pin_project;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use tower::{Layer, Service};

use crate::bounds::{REQUEST_BURST, REQUESTS_IN_FLIGHT, REQUESTS_PER_SECOND};
use crate::clock::{Bucket, bucket};

/// How large a guest's share is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Requests per second that may go on. More than a million cannot be told from no limit.
    pub requests_per_second: NonZeroU32,
    /// Requests at once after a pause.
    pub request_burst: NonZeroU32,
    /// Requests worked on at the same time.
    pub requests_in_flight: usize,
}

/// [`REQUESTS_PER_SECOND`] with [`REQUEST_BURST`], [`REQUESTS_IN_FLIGHT`].
impl Default for Allowance {
    fn default() -> Self {
        Self {
            requests_per_second: REQUESTS_PER_SECOND,
            request_burst: REQUEST_BURST,
            requests_in_flight: REQUESTS_IN_FLIGHT,
        }
    }
}

/// What is left of one guest's share. Clones are the same share: make one for each guest, not for each connection.
#[derive(Clone)]
pub struct GuestLimits {
    share: Arc<Share>,
}

struct Share {
    requests: Bucket,
    in_flight: AtomicUsize,
    most_in_flight: usize,
}

impl GuestLimits {
    /// A full share of the default [`Allowance`].
    #[must_use]
    pub fn new() -> Self {
        Self::of(Allowance::default())
    }

    /// A full share of this size.
    #[must_use]
    pub fn of(allowance: Allowance) -> Self {
        let quota = Quota::per_second(allowance.requests_per_second).allow_burst(allowance.request_burst);
        let most_in_flight = allowance.requests_in_flight;
        Self { share: Arc::new(Share { requests: bucket(quota), in_flight: AtomicUsize::new(0), most_in_flight }) }
    }

    /// One request's place, or how long to wait for it.
    ///
    /// The place is looked for first: a request that finds none costs nothing of the share per second.
    fn enter(&self) -> Result<Place, Fault> {
        let most = self.share.most_in_flight;
        let in_flight = &self.share.in_flight;
        in_flight
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < most).then_some(n + 1))
            .map_err(|_| refused(RetryAfter::DEFAULT))?;
        let place = Place { share: Arc::clone(&self.share) };
        let requests = &self.share.requests;
        requests
            .check()
            .map_err(|refused| self::refused(RetryAfter::at_least(refused.wait_time_from(requests.clock().now()))))?;
        Ok(place)
    }
}

impl Default for GuestLimits {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for GuestLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestLimits").field("in_flight", &self.share.in_flight).finish_non_exhaustive()
    }
}

fn refused(wait: RetryAfter) -> Fault {
    Fault::unavailable(Outcome::RateLimited, wait)
}

/// A place among the requests in flight; given back when dropped, also by a panic or a connection that went away.
struct Place {
    share: Arc<Share>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.share.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

/// Makes [`Limits`] for one guest.
#[derive(Clone, Debug)]
pub struct LimitsLayer {
    limits: GuestLimits,
}

impl LimitsLayer {
    /// All services made by this layer draw from `limits`.
    #[must_use]
    pub fn new(limits: GuestLimits) -> Self {
        Self { limits }
    }
}

impl<S> Layer<S> for LimitsLayer {
    type Service = Limits<S>;

    fn layer(&self, inner: S) -> Limits<S> {
        Limits { inner, limits: self.limits.clone() }
    }
}

/// Refuses what is beyond the guest's share.
#[derive(Clone, Debug)]
pub struct Limits<S> {
    inner: S,
    limits: GuestLimits,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Limits<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Error = Fault>,
{
    type Response = S::Response;
    type Error = Fault;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        match self.limits.enter() {
            Ok(place) => ResponseFuture { state: State::Admitted { inner: self.inner.call(request), place } },
            Err(fault) => ResponseFuture { state: State::Refused { fault: Some(fault) } },
        }
    }
}

pin_project! {
    /// The answer of a request that has its place, or the refusal.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = Projected]
    #[derive(Debug)]
    enum State<F> {
        Admitted { #[pin] inner: F, place: Place },
        Refused { fault: Option<Fault> },
    }
}

impl<F, T> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, Fault>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Projected::Admitted { inner, .. } => inner.poll(cx),
            Projected::Refused { fault } => Poll::Ready(Err(fault.take().expect("polled after the answer"))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tokio::time::advance;
    use tower::{ServiceExt, service_fn};

    use super::*;

    async fn ask(limits: &GuestLimits) -> Result<Response<()>, Fault> {
        let service = service_fn(|_: Request<()>| async { Ok::<_, Fault>(Response::new(())) });
        LimitsLayer::new(limits.clone()).layer(service).oneshot(Request::new(())).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_burst_is_one_for_all_connections_and_comes_back_at_the_rate() {
        let limits = GuestLimits::new();
        for _ in 0..REQUEST_BURST.get() {
            ask(&limits).await.unwrap();
        }
        let fault = ask(&limits).await.unwrap_err();
        assert_eq!((fault.status(), fault.outcome()), (503, Outcome::RateLimited));
        assert_eq!(fault.retry_after().map(RetryAfter::seconds), Some(1));

        // One request's worth of time brings one request.
        advance(Duration::from_secs(1) / REQUESTS_PER_SECOND.get()).await;
        ask(&limits).await.unwrap();
        ask(&limits).await.unwrap_err();

        advance(Duration::from_secs(1)).await;
        for _ in 0..REQUESTS_PER_SECOND.get() {
            ask(&limits).await.unwrap();
        }
        ask(&limits).await.unwrap_err();
        ask(&GuestLimits::new()).await.expect("another guest has its own share");
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_is_as_large_as_it_is_told() {
        let two = NonZeroU32::new(2).unwrap();
        let allowance = Allowance { requests_per_second: two, request_burst: two, requests_in_flight: 1 };
        let limits = GuestLimits::of(allowance);
        let stuck = service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Fault>>());
        let waiting = LimitsLayer::new(limits.clone()).layer(stuck).call(Request::new(()));
        ask(&limits).await.expect_err("one place");
        drop(waiting);
        ask(&limits).await.unwrap();
        ask(&limits).await.expect_err("two at once");
        advance(Duration::from_millis(500)).await;
        ask(&limits).await.expect("two a second");
    }

    #[tokio::test]
    async fn places_are_bounded_and_given_back() {
        let limits = GuestLimits::new();
        let stuck = || {
            let service = service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Fault>>());
            LimitsLayer::new(limits.clone()).layer(service).call(Request::new(()))
        };
        let mut waiting: Vec<_> = (0..REQUESTS_IN_FLIGHT).map(|_| stuck()).collect();
        assert_eq!(ask(&limits).await.unwrap_err().outcome(), Outcome::RateLimited);
        // The connection of one of them goes away.
        drop(waiting.pop());
        ask(&limits).await.unwrap();
        ask(&limits).await.expect("an answered request has given its place back");
        waiting.push(stuck());
        ask(&limits).await.unwrap_err();
    }
}
