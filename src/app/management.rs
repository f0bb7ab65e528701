//! The node's side: metrics for Prometheus and health for whoever asks, on an address of the operator's.
//!
//! In come HTTP requests from the node over the kernel's TCP; out go `/metrics` and `/healthz`. It serves no guest and
//! knows nothing about any.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pve_imds_observability::Metrics;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::health::Health;

/// Scrapers come one at a time; more than this is somebody's mistake.
const CONNECTIONS: usize = 32;

/// A head that takes longer is none.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// Whoever takes longer to ask and to read is not reading: its place is for others.
const WHOLE_TIME: Duration = Duration::from_secs(10);

/// Answers until it is dropped.
///
/// # Errors
/// The address cannot be bound. Nothing after that is an error.
pub(super) async fn bind(
    address: SocketAddr,
    metrics: Metrics,
    health: watch::Receiver<Health>,
) -> io::Result<(SocketAddr, impl Future<Output = Infallible> + Send)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    Ok((bound, serve(listener, metrics, health)))
}

async fn serve(listener: TcpListener, metrics: Metrics, health: watch::Receiver<Health>) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Never closed, so a place always comes.
        let place = Arc::clone(&places).acquire_owned().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the management listener cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (metrics, health) = (metrics.clone(), health.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let (metrics, health) = (metrics.clone(), health.clone());
                async move { Ok::<_, Infallible>(answer(&request, &metrics, &health).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            match tokio::time::timeout(WHOLE_TIME, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a management connection ended early"),
                Err(_) => tracing::debug!("a management connection took too long"),
            }
            drop(place);
        });
    }
}

async fn answer(
    request: &Request<Incoming>,
    metrics: &Metrics,
    health: &watch::Receiver<Health>,
) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            Health::count(health).await;
            reply(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics.render())
        }
        (&Method::GET | &Method::HEAD, "/healthz") => {
            let (status, text) = match Health::wrong(health).await {
                None => (StatusCode::OK, "ok\n".to_owned()),
                Some(wrong) => (StatusCode::SERVICE_UNAVAILABLE, wrong.replace('\n', " ") + "\n"),
            };
            reply(status, "text/plain; charset=utf-8", text)
        }
        (_, "/metrics" | "/healthz") => reply(StatusCode::METHOD_NOT_ALLOWED, "text/plain", String::new()),
        _ => reply(StatusCode::NOT_FOUND, "text/plain", "try /metrics or /healthz\n".to_owned()),
    }
}

fn reply(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
