//! The one body type that goes each way, and how to make one.

use std::error::Error;

use bytes::Bytes;
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};

/// Whatever stopped a body before its end.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What a guest sends.
pub type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// What a guest gets.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is these bytes.
pub fn full(bytes: impl Into<Bytes>) -> ResponseBody {
    boxed(Full::new(bytes.into()))
}

/// A body without bytes.
#[must_use]
pub fn empty() -> ResponseBody {
    boxed(Empty::new())
}

/// Any body of bytes, made into the one type; for the edge, where requests come in from the HTTP server.
pub fn boxed<B>(body: B) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}
