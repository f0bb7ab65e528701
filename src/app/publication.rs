//! The outside: the public keys that identity tokens are checked with, for those who verify them.
//!
//! In come HTTPS requests over the kernel's TCP; out go the key set, discovery (OpenID Connect Discovery 1.0) and whether
//! this node can sign. All of it is public, and nothing else can be asked for: no guest's data, no metrics. The certificate
//! is the node's as it is when somebody connects. Refused: to spend more on handshakes than a small part of a processor,
//! whoever knocks.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use pve_imds_datasources::backends::keys::{ServingKeys, TokenKeys};
use pve_imds_model::identity::{DISCOVERY_PATH, Issuer, JWKS_PATH};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::listener::{self, Bounds, Phase, Place, reply};

/// The option that says where.
pub(super) const OPTION: &str = "jwks.listen";

const BOUNDS: Bounds = Bounds {
    // Whoever verifies asks a few times an hour and is gone.
    connections: 64,
    // For the handshake, and once more for the first head: around the world and back, and a packet lost on the way.
    silent: Duration::from_secs(5),
    // Time to read an answer, and to ask for discovery's other half.
    kept: Duration::from_secs(15),
};

/// What a handshake's first record begins with (RFC 8446 §5.1).
const HANDSHAKE: [u8; 1] = [22];

/// A handshake costs a signature, a good part of a millisecond: so often at most there is one.
const HANDSHAKE_EVERY: Duration = Duration::from_millis(20);

/// For how long an answer may be used again. A key is shown seconds before it signs, so whoever verifies and keeps no rules
/// of its own knows a new one after five minutes; a replaced one is shown for an hour longer than its tokens live.
const KEEP: &str = "public, max-age=300";

/// What is shown.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) tokens: TokenKeys,
    pub(super) serving: ServingKeys,
    pub(super) issuer: Option<Issuer>,
}

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, shown: Shown) -> Infallible {
    let turns = Arc::new(Turns::default());
    let attend = move |stream, place| {
        let (shown, turns) = (shown.clone(), Arc::clone(&turns));
        async move { attend(stream, place, &shown, &turns).await }
    };
    listener::serve(listener, OPTION, BOUNDS, attend).await
}

async fn attend(stream: TcpStream, place: Place, shown: &Shown, turns: &Turns) {
    // Whoever says nothing, or what is no handshake, takes nobody's turn.
    let mut first = [0];
    if stream.peek(&mut first).await.is_err() || first != HANDSHAKE {
        return;
    }
    turns.wait().await;
    // What the log says of a node without a certificate, it says once, where the files are read.
    let Some(key) = shown.serving.now() else { return };
    match key.accept(stream).await {
        Ok(stream) => {
            place.is(Phase::Silent(Instant::now()));
            listener::converse(stream, place, async |request| answer(&request, shown)).await;
        }
        Err(error) => tracing::debug!(%error, "no TLS came of a connection"),
    }
}

/// Handshakes one after the other, in the order in which they are asked for.
#[derive(Debug, Default)]
struct Turns(Mutex<Option<Instant>>);

impl Turns {
    async fn wait(&self) {
        let mut next = self.0.lock().await;
        if let Some(next) = *next {
            sleep_until(next).await;
        }
        *next = Some(Instant::now() + HANDSHAKE_EVERY);
    }
}

/// What there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    KeySet,
    Discovery,
    Health,
}

impl Page {
    fn at(path: &str) -> Option<Self> {
        match path {
            JWKS_PATH => Some(Self::KeySet),
            DISCOVERY_PATH => Some(Self::Discovery),
            "/healthz" => Some(Self::Health),
            _ => None,
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

/// The table.
fn answer<B>(request: &Request<B>, shown: &Shown) -> Response<Full<Bytes>> {
    let asks = matches!(*request.method(), Method::GET | Method::HEAD);
    match (Page::at(request.uri().path()), asks) {
        (None, _) => reply(StatusCode::NOT_FOUND, TEXT, "there is no such page\n"),
        (Some(_), false) => {
            let mut response = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        (Some(Page::KeySet), true) => {
            let set = shown.tokens.set();
            // An empty one would be kept, and every token refused for as long.
            match set.is_empty() {
                true => later("no key is known yet\n"),
                false => document(request.headers(), set.tag(), set.bytes()),
            }
        }
        (Some(Page::Discovery), true) => match &shown.issuer {
            None => reply(StatusCode::NOT_FOUND, TEXT, "there is no issuer\n"),
            Some(issuer) => {
                // Changes only with a restart, and is short: what it says is its own tag's worth.
                let (text, tag) = discovery(issuer);
                document(request.headers(), &tag, text.into())
            }
        },
        (Some(Page::Health), true) => match shown.tokens.signing() {
            Some(_) => fresh(reply(StatusCode::OK, TEXT, "ok\n")),
            None => later("this node has no key to sign with\n"),
        },
    }
}

/// The document, and a name for it.
fn discovery(issuer: &Issuer) -> (String, String) {
    let document = json!({
        "issuer": issuer.as_str(),
        "jwks_uri": issuer.jwks_uri(),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
    });
    // Quotation marks cannot stand in an issuer, so it is a tag as it stands.
    (document.to_string(), issuer.to_string())
}

/// JSON that may be kept, or word that it is what the asker has kept (RFC 9110 §13.1.2).
fn document(headers: &HeaderMap, tag: &str, text: Bytes) -> Response<Full<Bytes>> {
    let tag = format!("\"{tag}\"");
    let mut response = match is_kept(headers, &tag) {
        true => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
        false => reply(StatusCode::OK, "application/json", text),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(KEEP));
    headers.extend(HeaderValue::from_str(&tag).ok().map(|tag| (header::ETAG, tag)));
    response
}

/// Whether one of the tags that the asker names is this one.
fn is_kept(headers: &HeaderMap, tag: &str) -> bool {
    let said = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    said.flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|said| said == "*" || said.trim_start_matches("W/") == tag)
}

/// Not now, and not to be kept.
fn later(text: &'static str) -> Response<Full<Bytes>> {
    let mut response = fresh(reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, text));
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    response
}

fn fresh(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use http_body_util::BodyExt;
    use pve_imds_datasources::backends::keys::{KeySet, SigningKey};
    use pve_imds_datasources::backends::testing::rsa_key_pem;

    use super::*;

    static KEY: LazyLock<Arc<SigningKey>> =
        LazyLock::new(|| Arc::new(SigningKey::read(&rsa_key_pem(2048).unwrap()).unwrap()));

    fn shown(keys: bool, signs: bool, issuer: &str) -> Shown {
        let tokens = TokenKeys::default();
        let set = if keys { KeySet::of([KEY.public()]) } else { KeySet::default() };
        tokens.put(signs.then(|| Arc::clone(&KEY)), set, None);
        Shown { tokens, serving: ServingKeys::default(), issuer: Issuer::parse(issuer).ok() }
    }

    fn header(response: &Response<Full<Bytes>>, name: header::HeaderName) -> Option<&str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    #[tokio::test]
    async fn each_line_of_the_table() {
        let (keys, issuer) = ("/.well-known/jwks.json", "/.well-known/openid-configuration");
        for (method, path, has, status, kept) in [
            ("GET", keys, (true, true, ""), 200, Some(KEEP)),
            ("HEAD", keys, (true, true, ""), 200, Some(KEEP)),
            ("GET", keys, (true, false, ""), 200, Some(KEEP)),
            ("GET", keys, (false, false, ""), 503, Some("no-store")),
            ("POST", keys, (true, true, ""), 405, None),
            ("GET", issuer, (true, true, ""), 404, None),
            ("GET", issuer, (true, true, "https://pve1"), 200, Some(KEEP)),
            ("HEAD", issuer, (false, false, "https://pve1"), 200, Some(KEEP)),
            ("PUT", issuer, (true, true, "https://pve1"), 405, None),
            ("GET", "/healthz", (true, true, ""), 200, Some("no-store")),
            ("HEAD", "/healthz", (true, true, ""), 200, Some("no-store")),
            ("GET", "/healthz", (true, false, ""), 503, Some("no-store")),
            ("DELETE", "/healthz", (true, true, ""), 405, None),
            ("GET", "/", (true, true, ""), 404, None),
            ("GET", "/metrics", (true, true, ""), 404, None),
            ("GET", "/nocloud/user-data", (true, true, ""), 404, None),
            ("GET", "/.well-known/jwks.json/", (true, true, ""), 404, None),
            ("GET", "/.well-known/jwks.json?a=b", (true, true, ""), 200, Some(KEEP)),
            ("POST", "/", (true, true, ""), 404, None),
        ] {
            let request = Request::builder().method(method).uri(path).body(()).unwrap();
            let response = answer(&request, &shown(has.0, has.1, has.2));
            assert_eq!(response.status(), status, "{method} {path}");
            assert_eq!(header(&response, header::CACHE_CONTROL), kept, "{method} {path}");
            let (allow, later) = ((status == 405).then_some("GET, HEAD"), (status == 503).then_some("5"));
            assert_eq!(header(&response, header::ALLOW), allow, "{method} {path}");
            assert_eq!(header(&response, header::RETRY_AFTER), later, "{method} {path}");
            let json = kept == Some(KEEP);
            assert_eq!(header(&response, header::CONTENT_TYPE), Some(if json { "application/json" } else { TEXT }));
            assert_eq!(header(&response, header::ETAG).is_some(), json, "{method} {path}");
        }
    }

    #[tokio::test]
    async fn the_documents_are_those_that_verifiers_read() {
        let shown = shown(true, true, "https://pve1.example.com/imds");
        let body = async |path| {
            let request = Request::get(path).body(()).unwrap();
            answer(&request, &shown).into_body().collect().await.unwrap().to_bytes()
        };
        assert_eq!(body("/.well-known/jwks.json").await, shown.tokens.set().bytes());
        let discovery: serde_json::Value =
            serde_json::from_slice(&body("/.well-known/openid-configuration").await).unwrap();
        let expected = json!({
            "issuer": "https://pve1.example.com/imds",
            "jwks_uri": "https://pve1.example.com/imds/.well-known/jwks.json",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        });
        assert_eq!(discovery, expected);
    }

    #[test]
    fn who_has_it_is_not_sent_it_again() {
        let shown = shown(true, true, "https://pve1");
        for path in ["/.well-known/jwks.json", "/.well-known/openid-configuration"] {
            let first = answer(&Request::get(path).body(()).unwrap(), &shown);
            let tag = header(&first, header::ETAG).unwrap();
            for (said, status) in [
                (tag.to_owned(), 304),
                (format!("W/{tag}"), 304),
                (format!("\"other\", {tag}"), 304),
                ("*".to_owned(), 304),
                ("\"other\"".to_owned(), 200),
                (tag.trim_matches('"').to_owned(), 200),
                (String::new(), 200),
            ] {
                let request = Request::get(path).header(header::IF_NONE_MATCH, &said).body(()).unwrap();
                let response = answer(&request, &shown);
                assert_eq!(response.status(), status, "{said}");
                assert_eq!(header(&response, header::ETAG), Some(tag), "{said}");
                assert_eq!(header(&response, header::CACHE_CONTROL), Some(KEEP), "{said}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_take_turns() {
        let (turns, begun) = (Turns::default(), Instant::now());
        for turn in 0..5 {
            turns.wait().await;
            assert!(begun.elapsed() >= HANDSHAKE_EVERY * turn, "{turn}");
        }
        assert!(begun.elapsed() < HANDSHAKE_EVERY * 5);
    }
}
