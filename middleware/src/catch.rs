//! Keeps a panic to the one request it belongs to: 500 (for iPXE: boot from disk), and the connection lives on.
//!
//! It is the outermost layer, so that there is nothing a panic could take with it; telemetry below sees it pass and
//! counts it. What the panic said is not logged here: it may quote what must not be quoted. A panic while the body is
//! sent ends the connection, because half an answer cannot be taken back.
//!
//! ```
//! use http::{Request, Response};
//! use pve_imds_middleware::{ResponseBody, catch::CatchLayer};
//! use pve_imds_model::{request::Link, tap::TapName};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! # std::panic::set_hook(Box::new(|_| ()));
//! let link = Link { tap: TapName::parse("tap106i0").unwrap(), index: 7, since: 0 };
//! let service = ServiceBuilder::new().layer(CatchLayer::new(link)).service(service_fn(|_: Request<()>| async {
//!     if true { panic!("a bug") }
//!     Ok::<_, std::convert::Infallible>(Response::new(ResponseBody::default()))
//! }));
//! let response = service.oneshot(Request::new(())).await.unwrap();
//! assert_eq!(response.status(), 500);
//! # }
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use pve_imds_model::fault::{Fault, Outcome};
use pve_imds_model::request::{Endpoint, Link};
use tower::{Layer, Service};

use crate::ResponseBody;
use crate::rescue::answer;

/// Makes [`Catch`] for one interface.
#[derive(Clone, Copy, Debug)]
pub struct CatchLayer {
    link: Link,
}

impl CatchLayer {
    /// Panics are logged under the name of `link`.
    #[must_use]
    pub fn new(link: Link) -> Self {
        Self { link }
    }
}

impl<S> Layer<S> for CatchLayer {
    type Service = Catch<S>;

    fn layer(&self, inner: S) -> Catch<S> {
        Catch { inner, link: self.link }
    }
}

/// Answers for those below when they panic.
#[derive(Clone, Copy, Debug)]
pub struct Catch<S> {
    inner: S,
    link: Link,
}

impl<S, B> Service<Request<B>> for Catch<S>
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
        // Classify stands below and may be what panics.
        let endpoint = Endpoint::classify(request.uri().path());
        // Unwind safety: the service is a clone made for this request, and what its clones share is counters.
        let inner = catch_unwind(AssertUnwindSafe(|| self.inner.call(request))).ok();
        ResponseFuture { inner, endpoint, link: self.link }
    }
}

pin_project! {
    /// An answer, also after a panic.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        // None: the service panicked before there was a future.
        #[pin]
        inner: Option<F>,
        endpoint: Endpoint,
        link: Link,
    }
}

impl<F, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<ResponseBody>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let polled = match this.inner.as_mut().as_pin_mut() {
            Some(inner) => catch_unwind(AssertUnwindSafe(|| inner.poll(cx))).ok(),
            None => None,
        };
        let result = match polled {
            Some(poll) => ready!(poll),
            None => {
                // What the request still holds, its place among those in flight, is given back before the answer.
                let _ = catch_unwind(AssertUnwindSafe(|| this.inner.set(None)));
                tracing::error!(
                    tap = %this.link.tap,
                    vmid = this.link.tap.vmid.get(),
                    endpoint = this.endpoint.word(),
                    outcome = Outcome::Panic.word(),
                    "request failed: a panic; the connection lives on"
                );
                Ok(answer(&Fault::panic(), *this.endpoint))
            }
        };
        Poll::Ready(result)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;
    use std::future::{Ready, ready};

    use http_body_util::BodyExt;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::full;
    use crate::testing::link;

    async fn read(response: Result<Response<ResponseBody>, Infallible>) -> (u16, String) {
        let (parts, body) = response.unwrap().into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), String::from_utf8(text.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_and_the_service_lives_on() {
        let mut service = CatchLayer::new(link()).layer(service_fn(|request: Request<()>| async move {
            assert!(!request.uri().path().contains("boom"), "SECRET");
            Ok::<_, Infallible>(Response::new(full("fine")))
        }));
        for (path, expected) in [
            ("/boom", (500, "panic\n")),
            ("/ok", (200, "fine")),
            ("/pxe/boom", (200, "#!ipxe\nexit\n")),
            ("/ok", (200, "fine")),
        ] {
            let response = service.ready().await.unwrap().call(Request::get(path).body(()).unwrap()).await;
            assert_eq!(read(response).await, (expected.0, expected.1.to_owned()), "{path}");
        }
    }

    #[tokio::test]
    async fn a_panic_before_there_is_a_future_is_caught_too() {
        fn call(_: Request<()>) -> Ready<Result<Response<ResponseBody>, Infallible>> {
            if true {
                panic!("early");
            }
            ready(Ok(Response::new(full(""))))
        }
        let response = CatchLayer::new(link()).layer(service_fn(call)).oneshot(Request::new(())).await;
        assert_eq!(read(response).await, (500, "panic\n".to_owned()));
    }
}
