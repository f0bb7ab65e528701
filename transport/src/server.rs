//! HTTP/1.1 on a guest's connections: hyper around a tower service.
//!
//! In come streams and their far ends; each becomes a task that lives as long as its connection. The service sees the
//! [`Peer`] as a request extension. Refused (by hyper): heads that are too large, have too many fields or take too
//! long. On shutdown a connection finishes the answer it is in and closes.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use tokio::sync::watch;
use tower::util::Oneshot;
use tower::{Service, ServiceExt};

use crate::bounds;
use crate::seats::{Peer, Serve};
use crate::stream::TapStream;

/// Serves one guest's connections with clones of one service.
pub struct Server<S> {
    service: S,
    drain: watch::Receiver<bool>,
}

impl<S> Server<S> {
    /// `drain` turns true when connections shall finish; the sender learns that all are gone by `closed()`.
    pub fn new(service: S, drain: watch::Receiver<bool>) -> Self {
        Self { service, drain }
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
    fn serve(&mut self, stream: TapStream, peer: Peer) {
        let service = WithPeer { service: self.service.clone(), peer };
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
    // Without a timer there are no time limits at all.
    builder.timer(TokioTimer::new());
    builder.header_read_timeout(bounds::HEAD_TIME);
    builder.max_buf_size(bounds::HEAD);
    builder.max_headers(bounds::FIELDS);
    // A client that half-closes after its request still reads the answer.
    builder.half_close(true);
    builder
}

/// Adds the far end to each request.
struct WithPeer<S> {
    service: S,
    peer: Peer,
}

impl<S> hyper::service::Service<Request<Incoming>> for WithPeer<S>
where
    S: Service<Request<Incoming>, Error = Infallible> + Clone,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Oneshot<S, Request<Incoming>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        self.service.clone().oneshot(request)
    }
}
