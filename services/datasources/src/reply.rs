//! A finished answer: bytes, their type, and the headers that every datasource sends.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
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
    /// The owner's bytes: a script, YAML, MIME or gzip; naming a type or a charset would be a guess.
    Opaque,
}

impl Kind {
    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Yaml => "text/yaml; charset=utf-8",
            Self::Opaque => "application/octet-stream",
        })
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

    /// The answer to GET.
    pub(crate) fn into_response(self) -> Response<Body> {
        let body = Full::new(self.body.clone()).map_err(|never| match never {}).boxed_unsync();
        self.with(body)
    }

    /// The answer to HEAD: the same headers, `Content-Length` included, and no body (RFC 9110 §9.3.2).
    pub(crate) fn into_head(self) -> Response<Body> {
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        self.with(body)
    }

    fn with(self, body: Body) -> Response<Body> {
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, self.kind.content_type());
        headers.insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        // Answers differ by interface and not by URL, change without notice and may be secret: nobody may keep one.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
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
