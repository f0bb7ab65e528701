//! Refuses what no honest client of ours sends, before anybody looks at it.
//!
//! | a request | gets | because |
//! |---|---|---|
//! | with `X-Forwarded-For`, `Forwarded` or `Via` | 403 `forwarded` | it came through a proxy that may speak for somebody else |
//! | for a name that is not ours | 403 `host_refused` | DNS rebinding |
//! | `TRACE`, `CONNECT` | 405 | reflects headers; makes a proxy of us |
//! | with a larger body than we take | 413 | memory |
//!
//! The first line of the table that fits decides, on every path. A body is also counted while it is read: whoever
//! reads too much gets an error, and the guest gets 413 whatever the reader made of it. Who asks and for what plays no
//! part here.
//!
//! ```
//! use http::{Request, Response};
//! use pve_imds_middleware::guard::{GuardLayer, GuardSettings};
//! use pve_imds_middleware::{ResponseBody, empty};
//! use pve_imds_model::fault::Fault;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let service = ServiceBuilder::new().layer(GuardLayer::new(GuardSettings::default())).service(service_fn(
//!     |_: Request<_>| async { Ok::<_, Fault>(Response::new(ResponseBody::default())) },
//! ));
//! let rebound = Request::get("/nocloud/user-data").header("host", "evil.example.org").body(empty()).unwrap();
//! assert_eq!(service.oneshot(rebound).await.unwrap_err().status(), 403);
//! # }
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use http::header::{CONTENT_LENGTH, EXPECT, FORWARDED, HOST, HeaderName, VIA};
use http::{HeaderValue, Method, Request, Response, request};
use http_body::Body;
use pin_project_lite::pin_project;
use pve_imds_model::fault::{Fault, Outcome};
use tower::{Layer, Service};

use self::body::{Counted, Exceeded};
use self::host::Names;
use crate::RequestBody;
use crate::bounds::{REFUSED_BODY_DRAIN, REQUEST_BODY};

mod body;
mod host;

/// What marks a request that came through a proxy.
const PROXY_HEADERS: [HeaderName; 3] = [HeaderName::from_static("x-forwarded-for"), FORWARDED, VIA];

/// The methods that anything here knows, for a 405.
const ALLOW: &str = "GET, HEAD, POST, PUT";

/// What an operator may move.
#[derive(Clone, Debug)]
pub struct GuardSettings {
    /// Names besides our own that a guest may ask for, without port; case and a final dot mean nothing.
    pub allowed_hosts: Vec<String>,
    /// Bytes of a request body that may be read.
    pub body_limit: u64,
}

/// No names, [`REQUEST_BODY`].
impl Default for GuardSettings {
    fn default() -> Self {
        Self { allowed_hosts: Vec::new(), body_limit: REQUEST_BODY }
    }
}

/// Makes [`Guard`]. Clones share the settings, so one layer serves all guests.
#[derive(Clone, Debug)]
pub struct GuardLayer {
    rules: Arc<Rules>,
}

impl GuardLayer {
    /// Guards by these settings.
    #[must_use]
    pub fn new(settings: GuardSettings) -> Self {
        let names = Names::new(&settings.allowed_hosts);
        Self { rules: Arc::new(Rules { names, body_limit: settings.body_limit }) }
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner, rules: Arc::clone(&self.rules) }
    }
}

/// The settings, read once.
#[derive(Debug)]
struct Rules {
    names: Names,
    body_limit: u64,
}

impl Rules {
    /// The table above. `body` is how long the request says its body will be.
    fn judge(&self, request: &request::Parts, body: u64) -> Result<(), Fault> {
        if PROXY_HEADERS.iter().any(|name| request.headers.contains_key(name)) {
            return Err(Fault::forbidden(Outcome::Forwarded));
        }
        if !self.is_ours(request) {
            return Err(Fault::forbidden(Outcome::HostRefused));
        }
        if matches!(request.method, Method::TRACE | Method::CONNECT) {
            return Err(Fault::method_not_allowed(ALLOW));
        }
        if body > self.body_limit {
            return Err(Fault::body_too_large());
        }
        Ok(())
    }

    /// Whether every name the request is for may be asked for: all `Host` fields, and the target when it is absolute
    /// (RFC 9112 section 3.2.2), which a server would otherwise believe instead.
    fn is_ours(&self, request: &request::Parts) -> bool {
        let pass = |value: &HeaderValue| value.to_str().is_ok_and(|host| self.names.pass(host));
        request.headers.get_all(HOST).iter().all(pass)
            && request.uri.authority().is_none_or(|authority| self.names.pass(authority.as_str()))
    }
}

/// Refuses what no honest client sends.
#[derive(Clone, Debug)]
pub struct Guard<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl<S, ResBody> Service<Request<RequestBody>> for Guard<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResBody>, Error = Fault>,
{
    type Response = S::Response;
    type Error = Fault;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let declared = declared(&parts, &body);
        let state = match self.rules.judge(&parts, declared) {
            Err(fault) => State::Refused { left: worth_draining(&parts, declared), body, fault: Some(fault) },
            Ok(()) if body.is_end_stream() => {
                State::Passed { inner: self.inner.call(Request::from_parts(parts, body)), exceeded: None }
            }
            Ok(()) => {
                let (body, exceeded) = Counted::new(body, self.rules.body_limit);
                let request = Request::from_parts(parts, RequestBody::new(body));
                State::Passed { inner: self.inner.call(request), exceeded: Some(exceeded) }
            }
        };
        ResponseFuture { state }
    }
}

/// How long the request says its body will be; 0 if it does not say.
fn declared(parts: &request::Parts, body: &RequestBody) -> u64 {
    let header = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    header.unwrap_or(0).max(body.size_hint().lower())
}

/// How much of a refused body to read: all of it or nothing. Who waits for `100 Continue` has not sent it yet.
fn worth_draining(parts: &request::Parts, declared: u64) -> u64 {
    if declared <= REFUSED_BODY_DRAIN && !parts.headers.contains_key(EXPECT) { declared } else { 0 }
}

pin_project! {
    /// The answer, or the refusal once the guest is likely to listen.
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
        Passed { #[pin] inner: F, exceeded: Option<Exceeded> },
        // `left` bytes of the body are worth reading first.
        Refused { body: RequestBody, left: u64, fault: Option<Fault> },
    }
}

impl<F, T> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, Fault>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Projected::Passed { inner, exceeded } => {
                let result = ready!(inner.poll(cx));
                let too_large = exceeded.as_ref().is_some_and(|exceeded| exceeded.load(Ordering::Acquire));
                Poll::Ready(if too_large { Err(Fault::body_too_large()) } else { result })
            }
            Projected::Refused { body, left, fault } => {
                while *left > 0 {
                    match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                        Some(Ok(frame)) => {
                            let read = frame.data_ref().map_or(0, |data| data.len() as u64);
                            *left = left.saturating_sub(read);
                        }
                        Some(Err(_)) | None => *left = 0,
                    }
                }
                Poll::Ready(Err(fault.take().expect("polled after the answer")))
            }
        }
    }
}

#[cfg(test)]
mod tests;
