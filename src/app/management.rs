//! The node's side: metrics for Prometheus and health for whoever asks, on an address of the operator's.
//!
//! In come HTTP requests from the node over the kernel's TCP; out go `/metrics` and `/healthz`. It serves no guest and
//! knows nothing about any. An address that cannot be had is tried for, in the background and for ever. Connections are kept between requests; how many, and who goes first, [`places`] says.

mod places;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pve_imds_observability::Metrics;
use pve_imds_transport::Backoff;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use self::places::{Phase, Place, Places};
use super::health::Health;

/// The listener, if it can be had at once. Else what keeps trying for it: whoever has the port, or the address that is
/// not here yet, is no reason not to serve guests.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Refused> {
    TcpListener::bind(address).await.map_err(|error| Refused::new(address, error))
}

/// An address that cannot be listened on now. What has been said of that is not said again.
pub(super) struct Refused {
    address: SocketAddr,
    said: Vec<String>,
}

impl Refused {
    fn new(address: SocketAddr, error: io::Error) -> Self {
        let mut refused = Self { address, said: Vec::new() };
        refused.say(&error);
        refused
    }

    fn say(&mut self, error: &io::Error) {
        let why = error.to_string();
        if !self.said.contains(&why) {
            let (address, mend) = (self.address, mend(error.kind(), self.address.port()));
            tracing::error!(%address, error = why, "cannot listen on {address} (management.listen): {mend}");
            self.said.push(why);
        }
    }

    /// Tries until it can be had.
    pub(super) async fn insist(mut self) -> TcpListener {
        let mut backoff = Backoff::default();
        loop {
            tokio::time::sleep(backoff.wait()).await;
            match TcpListener::bind(self.address).await {
                Ok(listener) => return listener,
                Err(error) => self.say(&error),
            }
        }
    }
}

/// What whoever reads the log can do.
fn mend(error: io::ErrorKind, port: u16) -> String {
    match error {
        io::ErrorKind::AddrInUse => {
            format!("another program listens there, see `ss -ltnp sport = :{port}`; stop it or set another address")
        }
        io::ErrorKind::AddrNotAvailable => "this host does not have the address yet; add it or set another".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 take CAP_NET_BIND_SERVICE; grant it or set another port".to_owned()
        }
        _ => "set another address".to_owned(),
    }
}

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, metrics: Metrics, health: watch::Receiver<Health>) -> Infallible {
    let mut places = Places::default();
    let mut failing = false;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of files, for as long as it lasts: said when it begins.
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!(%error, "the management listener cannot accept; trying again");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        failing = false;
        // Only now: until somebody knocks, nobody has to go.
        places.make_room().await;
        let (metrics, health) = (metrics.clone(), health.clone());
        places.give(|place| attend(stream, place, metrics, health));
    }
}

/// One connection, for as long as it keeps within its times.
async fn attend(stream: TcpStream, place: Place, metrics: Metrics, health: watch::Receiver<Health>) {
    let service = service_fn(|request| {
        let (place, metrics, health) = (&place, &metrics, &health);
        async move {
            place.is(Phase::Asking);
            let response = answer(&request, metrics, health).await;
            // What is left to do is to take it. Whoever does not is like one that asks nothing more.
            place.is(Phase::Kept(Instant::now()));
            Ok::<_, Infallible>(response)
        }
    });
    // hyper's own time for heads would also be that of a scraper between two scrapes.
    let connection = http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(stream), service);
    let (mut connection, mut phase) = (pin!(connection), place.watch());
    loop {
        let deadline = phase.borrow_and_update().deadline();
        tokio::select! {
            end = &mut connection => {
                if let Err(error) = end {
                    tracing::debug!(%error, "a management connection ended early");
                }
                return;
            }
            _ = phase.changed() => {}
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                tracing::debug!("a management connection took too long");
                return;
            }
        }
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

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    async fn a_taken_port_is_had_once_it_is_free() {
        let holder = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = holder.local_addr().unwrap();
        let refused = bind(address).await.err().unwrap();
        let mut insisting = pin!(refused.insist());
        let waited = tokio::time::timeout(Duration::from_millis(100), &mut insisting).await;
        assert!(waited.is_err(), "somebody else has it");
        drop(holder);
        assert_eq!(insisting.await.local_addr().unwrap(), address);
    }

    #[test]
    fn each_refusal_has_its_mend() {
        use io::ErrorKind as Kind;
        for (error, said) in [
            (
                Kind::AddrInUse,
                "another program listens there, see `ss -ltnp sport = :9100`; stop it or set another address",
            ),
            (Kind::AddrNotAvailable, "this host does not have the address yet; add it or set another"),
            (Kind::PermissionDenied, "ports below 1024 take CAP_NET_BIND_SERVICE; grant it or set another port"),
            (Kind::OutOfMemory, "set another address"),
        ] {
            assert_eq!(mend(error, 9100), said);
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
