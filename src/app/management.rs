//! The node's side: metrics for Prometheus and health for whoever asks, on an address of the operator's.
//!
//! In come HTTP requests from the node over the kernel's TCP; out go `/metrics` and `/healthz`. It serves no guest and
//! knows nothing about any. How it listens, [`listener`] says.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use pve_imds_observability::Metrics;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::health::Health;
use super::listener::{self, Bounds, reply};

/// The option that says where.
pub(super) const OPTION: &str = "management.listen";

const BOUNDS: Bounds = Bounds {
    // Scrapers are one or two; more than this is somebody's mistake.
    connections: 32,
    // A first head that takes longer is none.
    silent: Duration::from_secs(2),
    // Scrapes are seconds or a minute apart, and Prometheus itself drops a connection that it has not used for five.
    kept: Duration::from_secs(300),
};

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, metrics: Metrics, health: watch::Receiver<Health>) -> Infallible {
    let attend = move |stream, place| {
        let (metrics, health) = (metrics.clone(), health.clone());
        async move {
            let answer = async |request| answer(&request, &metrics, &health).await;
            listener::converse(stream, place, answer).await;
        }
    };
    listener::serve(listener, OPTION, BOUNDS, attend).await
}

async fn answer<B>(request: &Request<B>, metrics: &Metrics, health: &watch::Receiver<Health>) -> Response<Full<Bytes>> {
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::OnceLock;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::*;

    /// More than there are places, twice.
    const FLOOD: usize = 64;

    fn metrics() -> Metrics {
        use pve_imds_observability::{Guard, Settings, install};
        static INSTALLED: OnceLock<Guard> = OnceLock::new();
        let settings = Settings { level: "off".to_owned(), ..Settings::default() };
        INSTALLED.get_or_init(|| install(&settings).unwrap()).metrics().clone()
    }

    async fn listening() -> SocketAddr {
        let (_, health) = watch::channel(Health::rebuilding("gone"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, metrics(), health));
        address
    }

    async fn silent(address: SocketAddr) -> Vec<TcpStream> {
        let mut streams = Vec::new();
        for _ in 0..FLOOD {
            streams.push(TcpStream::connect(address).await.unwrap());
        }
        streams
    }

    /// Asks and reads the whole answer, which says how long it is. `None`: the connection was cut.
    async fn scrape(stream: &mut TcpStream) -> Option<String> {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: node\r\n\r\n").await.ok()?;
        let mut text = String::new();
        loop {
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).await.ok().filter(|count| *count > 0)?;
            text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if body.len() == length.parse::<usize>().unwrap() {
                return Some(text);
            }
        }
    }

    #[tokio::test]
    async fn a_scrape_is_answered_beside_any_number_who_say_nothing() {
        let address = listening().await;
        let flood = silent(address).await;
        let asking = async { scrape(&mut TcpStream::connect(address).await.unwrap()).await };
        let answer = tokio::time::timeout(Duration::from_secs(1), asking).await.expect("within a second").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("pve_imds_build_info"), "{answer}");
        drop(flood);
    }

    #[tokio::test]
    async fn a_scraper_keeps_its_connection_while_others_flood() {
        let address = listening().await;
        let mut scraper = TcpStream::connect(address).await.unwrap();
        assert!(scrape(&mut scraper).await.is_some());
        let mut floods = Vec::new();
        for _ in 0..3 {
            floods.push(silent(address).await);
            // One that is answered came after all of them: they have been let in, or turned out.
            assert!(scrape(&mut TcpStream::connect(address).await.unwrap()).await.is_some());
            assert!(scrape(&mut scraper).await.is_some(), "it was cut off");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_says_nothing_for_too_long_is_let_go() {
        let mut stream = TcpStream::connect(listening().await).await.unwrap();
        stream.write_all(b"GET /metrics HT").await.unwrap();
        let begun = Instant::now();
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(3), "{waited:?}");
    }
}
