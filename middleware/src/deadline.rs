//! No request lives for ever: 503 after a time in which any honest answer has been given.
//!
//! It stands below limits, so that a request which was given up also gave back its place, and above everything that
//! waits. The time runs until the head of the answer; the transport watches over the bytes after it. tokio's clock.
//!
//! ```
//! use std::time::Duration;
//! use http::{Request, Response};
//! use pve_imds_middleware::deadline::DeadlineLayer;
//! use pve_imds_model::fault::{Fault, Outcome};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let service = ServiceBuilder::new().layer(DeadlineLayer::new(Duration::from_millis(5))).service(service_fn(
//!     |_: Request<()>| async { std::future::pending::<Result<Response<()>, Fault>>().await },
//! ));
//! let fault = service.oneshot(Request::new(())).await.unwrap_err();
//! assert_eq!(fault.outcome(), Outcome::Deadline);
//! # }
//! ```

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use pin_project_lite::pin_project;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use tokio::time::Sleep;
use tower::{Layer, Service};

use crate::bounds::REQUEST_TIME;

/// Makes [`Deadline`].
#[derive(Clone, Copy, Debug)]
pub struct DeadlineLayer {
    time: Duration,
}

impl DeadlineLayer {
    /// Every request gets `time`.
    #[must_use]
    pub fn new(time: Duration) -> Self {
        Self { time }
    }
}

/// [`REQUEST_TIME`].
impl Default for DeadlineLayer {
    fn default() -> Self {
        Self::new(REQUEST_TIME)
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline { inner, time: self.time }
    }
}

/// Gives up on a request when its time is over.
#[derive(Clone, Copy, Debug)]
pub struct Deadline<S> {
    inner: S,
    time: Duration,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Deadline<S>
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
        ResponseFuture { inner: self.inner.call(request), sleep: tokio::time::sleep(self.time) }
    }
}

pin_project! {
    /// The answer, or the deadline.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        #[pin]
        sleep: Sleep,
    }
}

impl<F, T> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, Fault>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // The answer first: when both are ready it is good, and a request that never waits never sets a timer.
        if let Poll::Ready(result) = this.inner.poll(cx) {
            return Poll::Ready(result);
        }
        this.sleep.poll(cx).map(|()| Err(Fault::unavailable(Outcome::Deadline, RetryAfter::DEFAULT)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::time::{Instant, sleep};
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// Asks a service that answers after `work`.
    async fn ask(work: Duration) -> Result<Response<()>, Fault> {
        let service = DeadlineLayer::default().layer(service_fn(move |_: Request<()>| async move {
            sleep(work).await;
            Ok::<_, Fault>(Response::new(()))
        }));
        service.oneshot(Request::new(())).await
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_in_time_is_kept_even_at_the_last_moment() {
        ask(Duration::ZERO).await.unwrap();
        ask(REQUEST_TIME).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_one_is_given_up_at_the_deadline_and_asked_again() {
        let start = Instant::now();
        let fault = ask(REQUEST_TIME + Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(start.elapsed(), REQUEST_TIME);
        assert_eq!((fault.status(), fault.outcome()), (503, Outcome::Deadline));
        assert_eq!(fault.retry_after(), Some(RetryAfter::DEFAULT));
    }
}
