//! Sees every request from its first byte of meaning to the last byte of its answer: one span, one access line, the
//! request metrics.
//!
//! It stands directly below catch, so that it sees every outcome, also a panic on its way up. What is known only
//! further in comes back in the answer's extensions: the [`Endpoint`] from classify, the
//! [`Outcome`](pve_imds_model::fault::Outcome) from rescue or from a datasource (none means `ok`). All figures are final when the *body* has ended, however that
//! happened.
//!
//! The access line is an INFO event with the target `pve_imds::access`, so that `info,pve_imds::access=warn` switches
//! it off. A guest that asks faster than [`LOG_LINES_PER_SECOND`](crate::bounds::LOG_LINES_PER_SECOND), or more than
//! it may, is logged at DEBUG from there on and the next line says how many are missing. Query strings, headers and
//! bodies are never logged: they carry tokens. The span has the same target and carries the same facts as fields.
//!
//! ```
//! use http::{Request, Response};
//! use pve_imds_middleware::{full, telemetry::TelemetryLayer};
//! use pve_imds_model::{request::Link, tap::TapName};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let link = Link { tap: TapName::parse("tap106i0").unwrap(), index: 7, since: 0 };
//! let service = ServiceBuilder::new().layer(TelemetryLayer::new(link)).service(service_fn(|_: Request<()>| async {
//!     Ok::<_, std::convert::Infallible>(Response::new(full("hello")))
//! }));
//! let response = service.oneshot(Request::new(())).await.unwrap();
//! drop(response); // Not read to its end: counted as aborted.
//! # }
//! ```

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use pve_imds_model::request::{Endpoint, Link};
use tower::{Layer, Service};

pub use self::meters::{Meters, describe};
use self::watch::{Answer, End, Watch};
use crate::budget::LogBudget;
use crate::{BoxError, ResponseBody};

mod meters;
mod watch;

/// The handles of the process's one recorder, shared by all guests.
static METERS: LazyLock<Arc<Meters>> = LazyLock::new(|| Arc::new(Meters::new()));

/// Makes [`Telemetry`] for one interface.
#[derive(Clone, Debug)]
pub struct TelemetryLayer {
    link: Link,
    meters: Arc<Meters>,
    budget: LogBudget,
}

impl TelemetryLayer {
    /// Requests are recorded under the name of `link`, metrics go to the process's recorder. Install that first:
    /// what is counted before goes nowhere, for good.
    #[must_use]
    pub fn new(link: Link) -> Self {
        Self::with_meters(link, Arc::clone(&METERS))
    }

    /// The same with metrics of its own.
    #[must_use]
    pub fn with_meters(link: Link, meters: Arc<Meters>) -> Self {
        Self { link, meters, budget: LogBudget::new() }
    }
}

impl<S> Layer<S> for TelemetryLayer {
    type Service = Telemetry<S>;

    fn layer(&self, inner: S) -> Telemetry<S> {
        Telemetry { inner, layer: self.clone() }
    }
}

/// Records every request and how it ended.
#[derive(Clone, Debug)]
pub struct Telemetry<S> {
    inner: S,
    layer: TelemetryLayer,
}

impl<S, B> Service<Request<B>> for Telemetry<S>
where
    S: Service<Request<B>, Response = Response<ResponseBody>>,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let head = *request.method() == Method::HEAD;
        let mut watch = Watch::start(&self.layer, &request);
        let inner = watch.during(|| self.inner.call(request));
        ResponseFuture { inner, watch: Some(watch), head }
    }
}

pin_project! {
    /// The answer; its body carries the record on.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        watch: Option<Watch>,
        head: bool,
    }
}

impl<F, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<ResponseBody>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Some(watch) = this.watch.as_mut() else { return this.inner.poll(cx) };
        let response = ready!(watch.during(|| this.inner.poll(cx)))?;
        if let Some(watch) = this.watch.take() {
            return Poll::Ready(Ok(watched(response, watch, *this.head)));
        }
        Poll::Ready(Ok(response))
    }
}

/// Hangs the record on the body, unless there is nothing left to see.
fn watched(response: Response<ResponseBody>, mut watch: Watch, head: bool) -> Response<ResponseBody> {
    let (parts, body) = response.into_parts();
    let known = parts.extensions.get::<Endpoint>().copied();
    watch.answered(Answer {
        status: parts.status,
        endpoint: known.unwrap_or_else(|| watch.endpoint()),
        outcome: parts.extensions.get().copied().unwrap_or(pve_imds_model::fault::Outcome::Ok),
    });
    if head || body.is_end_stream() {
        watch.finish(End::Whole);
        return Response::from_parts(parts, body);
    }
    let declared = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let length = declared.or_else(|| body.size_hint().exact());
    Response::from_parts(parts, ResponseBody::new(WatchedBody { inner: body, watch, length }))
}

/// Passes an answer's bytes on, counts them and sees their end.
#[derive(Debug)]
struct WatchedBody {
    inner: ResponseBody,
    watch: Watch,
    /// How long the body will be, if that is known: a server that has sent this much never asks for the end.
    length: Option<u64>,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let inner = Pin::new(&mut this.inner);
        let frame = ready!(this.watch.during(|| inner.poll_frame(cx)));
        match &frame {
            Some(Ok(frame)) => {
                let sent = this.watch.sent(frame.data_ref().map_or(0, |data| data.len() as u64));
                if this.inner.is_end_stream() || this.length.is_some_and(|length| sent >= length) {
                    this.watch.finish(End::Whole);
                }
            }
            Some(Err(_)) => this.watch.finish(End::Aborted),
            None => this.watch.finish(End::Whole),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests;
