//! Turns faults into answers, in the language of the client at hand. The only place that does.
//!
//! Below it errors are errors, above it there are only answers. Datasource clients get a plain status, one word and,
//! where waiting helps, `Retry-After`. iPXE gets a script that lets the machine boot from its disk, and **never**
//! `Retry-After`: it obeys that header on any status and would ask for ever. Each fault is logged once, here, with its
//! chain of causes; the guest never sees those.
//!
//! ```
//! use http::{Request, Response};
//! use pve_imds_middleware::{ResponseBody, rescue::RescueLayer};
//! use pve_imds_model::{fault::Fault, request::Link, tap::TapName};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let link = Link { tap: TapName::parse("tap106i0").unwrap(), index: 7, since: 0 };
//! let service = ServiceBuilder::new().layer(RescueLayer::new(link)).service(service_fn(|_: Request<()>| async {
//!     Err::<Response<ResponseBody>, _>(Fault::not_found())
//! }));
//! let response = service.oneshot(Request::new(())).await.unwrap();
//! assert_eq!(response.status(), 404);
//! # }
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use pin_project_lite::pin_project;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::ipxe;
use pve_imds_model::request::{Endpoint, Link, UnknownCaller};
use tower::{Layer, Service};

use crate::budget::LogBudget;
use crate::{ResponseBody, full};

/// The answer to a request that failed: pure, so that it is a table.
///
/// A 403 stays one also for iPXE: it is no failure of ours but a refusal to talk to a proxy or a foreign name, and
/// iPXE sends neither.
#[must_use]
pub fn answer(fault: &Fault, endpoint: Endpoint) -> Response<ResponseBody> {
    let script = is_script(fault.status(), endpoint);
    let (status, body) = match (script, fault.text()) {
        (true, _) => (StatusCode::OK, Bytes::from_static(ipxe::EXIT.as_bytes())),
        (false, "") => (status_of(fault), Bytes::new()),
        (false, text) => (status_of(fault), Bytes::from(format!("{text}\n"))),
    };
    let mut response = Response::new(full(body.clone()));
    *response.status_mut() = status;
    response.extensions_mut().insert(fault.outcome());
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    if !body.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    }
    if !script {
        if let Some(wait) = fault.retry_after().map(RetryAfter::seconds) {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait));
        }
        if let Some(allow) = fault.allow() {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
    }
    if [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::TOO_MANY_REQUESTS].contains(&status_of(fault)) {
        // What is left of the body is never read, so nothing can follow it on this connection.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether iPXE would be told this with a script and 200.
fn is_script(status: u16, endpoint: Endpoint) -> bool {
    endpoint == Endpoint::Pxe && status != StatusCode::FORBIDDEN.as_u16()
}

/// The status with which a request for `endpoint` comes to this end.
pub(crate) fn status(outcome: Outcome, endpoint: Endpoint) -> StatusCode {
    let status = if is_script(outcome.status(), endpoint) { 200 } else { outcome.status() };
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn status_of(fault: &Fault) -> StatusCode {
    StatusCode::from_u16(fault.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Makes [`Rescue`] for one interface.
#[derive(Clone, Debug)]
pub struct RescueLayer {
    log: FaultLog,
}

impl RescueLayer {
    /// Faults are logged under the name of `link`.
    #[must_use]
    pub fn new(link: Link) -> Self {
        Self { log: FaultLog { link, budget: LogBudget::new(), unknown: Arc::default() } }
    }
}

impl<S> Layer<S> for RescueLayer {
    type Service = Rescue<S>;

    fn layer(&self, inner: S) -> Rescue<S> {
        Rescue { inner, log: self.log.clone() }
    }
}

/// Answers for those below when they fail.
#[derive(Clone, Debug)]
pub struct Rescue<S> {
    inner: S,
    log: FaultLog,
}

impl<S, B> Service<Request<B>> for Rescue<S>
where
    S: Service<Request<B>, Response = Response<ResponseBody>, Error = Fault>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future>;

    /// A fault before there is a request belongs to nobody; the request that is made next meets it.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx).map(|_| Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let endpoint = request.extensions().get().copied();
        let endpoint = endpoint.unwrap_or_else(|| Endpoint::classify(request.uri().path()));
        ResponseFuture { inner: self.inner.call(request), endpoint, log: self.log.clone() }
    }
}

pin_project! {
    /// An answer, always.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        endpoint: Endpoint,
        log: FaultLog,
    }
}

impl<F> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<ResponseBody>, Fault>>,
{
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        Poll::Ready(Ok(result.unwrap_or_else(|fault| {
            this.log.write(&fault, *this.endpoint);
            answer(&fault, *this.endpoint)
        })))
    }
}

/// Where the faults of one guest are told to the operator. Clones share what has been told.
#[derive(Clone, Debug)]
struct FaultLog {
    link: Link,
    budget: LogBudget,
    /// Why the guest was unknown when that was last told.
    unknown: Arc<Mutex<Option<UnknownCaller>>>,
}

impl FaultLog {
    /// One line: what we could not do is a warning, what the guest should not have asked is for those who look.
    ///
    /// A guest that nobody knows waits, and asks again every second until somebody gives it a configuration: that is an
    /// operator's to mend, so it is a warning, and stays the same news until the reason is another.
    fn write(&self, fault: &Fault, endpoint: Endpoint) {
        let (tap, vmid) = (self.link.tap, self.link.tap.vmid.get());
        let (endpoint, outcome) = (endpoint.word(), fault.outcome().word());
        let causes = Causes(fault);
        // Two VMs with one UUID are an operator's to mend, and no guest's.
        let is_guests = fault.status() < 500 && fault.outcome() != Outcome::DuplicateUuid;
        if is_guests || fault.outcome() == Outcome::RateLimited {
            tracing::debug!(%tap, vmid, endpoint, outcome, "request refused: {fault}{causes}");
        } else if self.has_been_told(fault) {
            tracing::debug!(%tap, vmid, endpoint, outcome, "request failed: {fault}{causes}");
        } else if let Some(line) = self.budget.take() {
            tracing::warn!(%tap, vmid, endpoint, outcome, "request failed: {fault}{causes}{line}");
        } else {
            tracing::debug!(%tap, vmid, endpoint, outcome, "request failed: {fault}{causes}");
        }
    }

    fn has_been_told(&self, fault: &Fault) -> bool {
        let Some(why) = fault.source().and_then(|source| source.downcast_ref::<UnknownCaller>()) else { return false };
        let mut told = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        let same = told.as_ref() == Some(why);
        *told = Some(why.clone());
        same
    }
}

/// The chain below a fault, each cause after a colon.
struct Causes<'a>(&'a Fault);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut causes = std::iter::successors(self.0.source(), |cause: &&(dyn Error + 'static)| (*cause).source());
        causes.try_for_each(|cause| write!(f, ": {cause}"))
    }
}

#[cfg(test)]
mod tests;
