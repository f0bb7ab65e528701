//! Says what a request asks for: path → [`Endpoint`], a closed set, so that nothing a guest writes becomes a metric
//! label.
//!
//! The word goes into the request's extensions for those below and into the answer's for those above. Nothing is
//! refused: what is not known is [`Endpoint::Other`].
//!
//! ```
//! use http::{Request, Response};
//! use pve_imds_middleware::classify::ClassifyLayer;
//! use pve_imds_model::request::Endpoint;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let service = ServiceBuilder::new().layer(ClassifyLayer::new()).service(service_fn(|request: Request<()>| async move {
//!     assert_eq!(request.extensions().get(), Some(&Endpoint::NocloudMetaData));
//!     Ok::<_, std::convert::Infallible>(Response::new(()))
//! }));
//! let response = service.oneshot(Request::get("/nocloud/meta-data").body(()).unwrap()).await.unwrap();
//! assert_eq!(response.extensions().get(), Some(&Endpoint::NocloudMetaData));
//! # }
//! ```

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use pve_imds_model::request::Endpoint;
use tower::{Layer, Service};

/// Makes [`Classify`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassifyLayer;

impl ClassifyLayer {
    /// The layer; there is nothing to choose.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for ClassifyLayer {
    type Service = Classify<S>;

    fn layer(&self, inner: S) -> Classify<S> {
        Classify { inner }
    }
}

/// Tells those below and above what a request asks for.
#[derive(Clone, Copy, Debug)]
pub struct Classify<S> {
    inner: S,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Classify<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let endpoint = Endpoint::classify(request.uri().path());
        request.extensions_mut().insert(endpoint);
        ResponseFuture { inner: self.inner.call(request), endpoint }
    }
}

pin_project! {
    /// The answer, with the endpoint's word.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        endpoint: Endpoint,
    }
}

impl<F, ResBody, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.inner.poll(cx)?);
        response.extensions_mut().insert(*this.endpoint);
        Poll::Ready(Ok(response))
    }
}
