//! HTTP/1.1 on a guest's connections: hyper around a tower service.
//!
//! In come streams and their far ends; each becomes a task that lives as long as its connection. The service sees the
//! [`Peer`] as a request extension, and the stack learns when a request is in progress: it is the stack that ends
//! connections which take too long. Refused (by hyper): heads that are no HTTP, are too large or have too many fields.
//! On shutdown a connection finishes the answer it is in and closes.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use pin_project_lite::pin_project;
use tokio::sync::watch;
use tower::util::Oneshot;
use tower::{Service, ServiceExt};

use crate::bounds;
use crate::metrics::{self, Ended};
use crate::patience::{InProgress, Progress};
use crate::seats::{Peer, Serve};
use crate::stream::TapStream;

/// Serves one guest's connections with clones of one service.
pub struct Server<S> {
    service: S,
    drain: watch::Receiver<bool>,
    hops: Option<Box<dyn FnMut() -> u8 + Send>>,
}

impl<S> Server<S> {
    /// `drain` turns true when connections shall finish; the sender learns that all are gone by `closed()`.
    pub fn new(service: S, drain: watch::Receiver<bool>) -> Self {
        Self { service, drain, hops: None }
    }

    /// Lets `hops` decide how far answers may travel (IP's time to live). See [`Serve::hops`].
    #[must_use]
    pub fn within(mut self, hops: impl FnMut() -> u8 + Send + 'static) -> Self {
        self.hops = Some(Box::new(hops));
        self
    }
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl<S, B> Serve for Server<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn hops(&mut self) -> u8 {
        self.hops.as_mut().map_or(bounds::HOPS, |hops| hops())
    }

    fn serve(&mut self, stream: TapStream, peer: Peer) {
        let service = Watched { service: self.service.clone(), peer, progress: stream.progress() };
        let mut drain = self.drain.clone();
        tokio::spawn(async move {
            let mut connection = std::pin::pin!(builder().serve_connection(stream, service));
            let finished = tokio::select! {
                finished = connection.as_mut() => finished,
                () = drained(&mut drain) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = finished {
                if let Some(reason) = Ended::of(&error) {
                    metrics::ended(reason);
                }
                tracing::debug!(%error, peer.ip = %peer.ip, "connection ended early");
            }
        });
    }
}

async fn drained(drain: &mut watch::Receiver<bool>) {
    // A sender that is gone means the daemon ends anyway.
    let _ = drain.wait_for(|draining| *draining).await;
}

fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    // The stack watches over a head's time and every other; a second clock per request would only cost.
    builder.header_read_timeout(None);
    builder.max_buf_size(bounds::HEAD);
    builder.max_headers(bounds::FIELDS);
    // A client that half-closes after its request still reads the answer.
    builder.half_close(true);
    builder
}

/// Adds the far end to each request, and tells the stack from when to when it is in progress.
struct Watched<S> {
    service: S,
    peer: Peer,
    progress: Arc<Progress>,
}

impl<S, B> hyper::service::Service<Request<Incoming>> for Watched<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body,
{
    type Response = Response<Answer<B>>;
    type Error = Infallible;
    type Future = Answering<Oneshot<S, Request<Incoming>>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let progress = self.progress.begin();
        request.extensions_mut().insert(self.peer);
        Answering { inner: self.service.clone().oneshot(request), progress: Some(progress) }
    }
}

pin_project! {
    /// A request until its answer's head.
    struct Answering<F> {
        #[pin]
        inner: F,
        progress: Option<InProgress>,
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = Result<Response<Answer<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(response) = ready!(this.inner.poll(cx));
        let progress = this.progress.take();
        Poll::Ready(Ok(response.map(|inner| Answer { inner, _progress: progress })))
    }
}

pin_project! {
    /// An answer's body. hyper drops it as soon as it has the last of it.
    struct Answer<B> {
        #[pin]
        inner: B,
        _progress: Option<InProgress>,
    }
}

impl<B: Body> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().inner.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
