//! A finished answer: bytes, their type, and the headers that every datasource sends.

use std::error::Error;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use pve_imds_model::fault::Fault;
use pve_imds_model::vm::Vm;

/// Whatever can go wrong while a body is sent.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The body of every answer in the stack.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// What the bytes are. No client we know reads it; it is for humans and their tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Lines for humans.
    Text,
    /// A document of ours, or one that was checked to be YAML. `text/`, so that browsers show it instead of saving it.
    Yaml,
    /// A document of ours for programs.
    Json,
    /// The owner's bytes: a script, YAML, MIME or gzip; naming a type or a charset would be a guess.
    Opaque,
}

impl Kind {
    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Yaml => "text/yaml; charset=utf-8",
            Self::Json => "application/json",
            Self::Opaque => "application/octet-stream",
        })
    }
}

/// Bytes that the server is given at a time.
const PIECE: usize = 16 << 10;

/// A body that is handed on piece by piece. The server copies what it is given and asks for more when that is sent: whole,
/// a document of 1 MiB would be there once more for each connection that takes its time with it.
struct Pieces(Bytes);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let length = self.0.len().min(PIECE);
        let piece = (length > 0).then(|| Ok(Frame::data(self.0.split_to(length))));
        Poll::Ready(piece)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// A 200 in the making.
#[derive(Debug)]
pub(crate) struct Reply {
    kind: Kind,
    body: Bytes,
}

impl Reply {
    pub(crate) fn new(kind: Kind, body: Bytes) -> Self {
        Self { kind, body }
    }

    /// The answer to `method`, GET or HEAD, for somebody who has what `headers` say. HEAD has the headers of GET,
    /// `Content-Length` included, and no body (RFC 9110 §9.3.2).
    ///
    /// # Errors
    /// Those of `hold`, which gets the bytes that are to be sent.
    pub(crate) fn answer(
        self,
        method: &Method,
        headers: &HeaderMap,
        hold: impl FnOnce(Bytes) -> Result<Bytes, Fault>,
    ) -> Result<Response<Body>, Fault> {
        let etag = etag(&self.body);
        if headers.get_all(IF_NONE_MATCH).iter().any(|known| names(known, &etag)) {
            return Ok(self.with(StatusCode::NOT_MODIFIED, etag, Bytes::new()));
        }
        let body = if method == Method::HEAD { Bytes::new() } else { hold(self.body.clone())? };
        Ok(self.with(StatusCode::OK, etag, body))
    }

    /// The answer to a request that changed something: these bytes, whoever has them already.
    pub(crate) fn with_status(self, status: StatusCode) -> Response<Body> {
        let (etag, body) = (etag(&self.body), self.body.clone());
        self.with(status, etag, body)
    }

    /// The bytes.
    #[cfg(test)]
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    fn with(self, status: StatusCode, etag: HeaderValue, body: Bytes) -> Response<Body> {
        let mut response = Response::new(Pieces(body).boxed_unsync());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(ETAG, etag);
        // Answers differ by interface and not by URL, change without notice and may be secret: nobody may keep one.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status != StatusCode::NOT_MODIFIED {
            headers.insert(CONTENT_TYPE, self.kind.content_type());
            headers.insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        }
        response
    }
}

/// A strong validator (RFC 9110 §8.8.3): the bytes' length and a hash of them, the same on every node. Who could make
/// two documents of one length that share it is their owner, and would cheat nobody else.
fn etag(body: &[u8]) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    let mut text = String::with_capacity(28);
    _ = write!(text, "\"{:x}-{:016x}\"", body.len(), hasher.finish());
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

/// Whether `If-None-Match` names the document: `*` or a list of tags, weak ones too (RFC 9110 §13.1.2). Somebody else's
/// tag beside ours may hold any byte (`obs-text`, §8.8.3), so bytes are compared. A comma in one parts it into two that
/// are no tag of ours either, because ours has none.
fn names(known: &HeaderValue, etag: &HeaderValue) -> bool {
    let known = known.as_bytes().trim_ascii();
    let mut tags = known.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    known == b"*" || tags.any(|tag| tag.strip_prefix(b"W/").unwrap_or(tag) == etag.as_bytes())
}

/// Bytes that stand inside a VM, without a copy of them: the VM lives as long as somebody is still sending.
pub(crate) fn shared(vm: &Arc<Vm>, part: fn(&Vm) -> &[u8]) -> Bytes {
    struct Part(Arc<Vm>, fn(&Vm) -> &[u8]);

    impl AsRef<[u8]> for Part {
        fn as_ref(&self) -> &[u8] {
            (self.1)(&self.0)
        }
    }

    Bytes::from_owner(Part(Arc::clone(vm), part))
}
