//! What the node's own listeners have in common: an address that is had in the end, and connections that are bounded.
//!
//! In come an address, the option that it stands in, and what to do with a connection; out go HTTP answers over the
//! kernel's TCP. Connections are kept between requests; how many, for how long and who goes first, [`places`] says.
//! Refused: to end because an address cannot be had, and to wait for anybody who says nothing.

mod places;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pve_imds_transport::Backoff;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use self::places::Places;
pub(super) use self::places::{Bounds, Phase, Place};

/// Bytes of the largest head: hyper's least.
const HEAD: usize = 8 << 10;

/// Where to listen, and the option that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) option: &'static str,
    pub(super) at: SocketAddr,
}

/// The listener, if it can be had at once. Else what keeps trying for it: whoever has the port, or the address that is
/// not here yet, is no reason not to serve guests.
pub(super) async fn bind(address: Address) -> Result<TcpListener, Refused> {
    TcpListener::bind(address.at).await.map_err(|error| Refused::new(address, error))
}

/// An address that cannot be listened on now. What has been said of that is not said again.
pub(super) struct Refused {
    address: Address,
    said: Vec<String>,
}

impl Refused {
    fn new(address: Address, error: io::Error) -> Self {
        let mut refused = Self { address, said: Vec::new() };
        refused.say(&error);
        refused
    }

    fn say(&mut self, error: &io::Error) {
        let why = error.to_string();
        if !self.said.contains(&why) {
            let Address { option, at: address } = self.address;
            let mend = mend(error.kind(), address.port());
            tracing::error!(%address, error = why, "cannot listen on {address} ({option}): {mend}");
            self.said.push(why);
        }
    }

    /// Tries until it can be had.
    pub(super) async fn insist(mut self) -> TcpListener {
        let mut backoff = Backoff::default();
        loop {
            tokio::time::sleep(backoff.wait()).await;
            match TcpListener::bind(self.address.at).await {
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

/// Has every connection attended to until it is dropped.
pub(super) async fn serve<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    option: &'static str,
    bounds: Bounds,
    attend: impl Fn(TcpStream, Place) -> F,
) -> Infallible {
    let mut places = Places::new(bounds);
    let mut failing = false;
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of files, for as long as it lasts: said when it begins.
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!(%error, "the listener cannot accept ({option}); trying again");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        failing = false;
        // Only now: until somebody knocks, nobody has to go.
        places.make_room().await;
        places.give(peer.ip(), |place| attend(stream, place));
    }
}

/// Answers every request on one connection.
pub(super) async fn converse<F: Future<Output = Response<Full<Bytes>>>>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    place: Place,
    answer: impl Fn(Request<Incoming>) -> F,
) {
    let service = service_fn(|request| {
        place.is(Phase::Asking);
        let answer = answer(request);
        let place = &place;
        async move {
            let response = answer.await;
            // What is left to do is to take it. Whoever does not is like one that asks nothing more.
            place.is(Phase::Kept(Instant::now()));
            Ok::<_, Infallible>(response)
        }
    });
    // hyper's own time for heads would also be that of a scraper between two scrapes.
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// An answer that is text of some kind.
pub(super) fn reply(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_had_once_it_is_free() {
        let holder = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = holder.local_addr().unwrap();
        let refused = bind(Address { option: "jwks.listen", at }).await.err().unwrap();
        let mut insisting = pin!(refused.insist());
        let waited = tokio::time::timeout(Duration::from_millis(100), &mut insisting).await;
        assert!(waited.is_err(), "somebody else has it");
        drop(holder);
        assert_eq!(insisting.await.local_addr().unwrap(), at);
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
}
