//! `/pxe…`: what a machine that boots from the network is told. In this version each of them boots from its disk.
//!
//! In comes a request from anybody, known or not; out goes one script. It has neither `ETag` nor 304: iPXE takes every
//! status but 200 for a failure, and would try again instead of booting.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, Response};
use http_body_util::{BodyExt, Full};
use pve_imds_model::ipxe;

use crate::reply::Body;

/// The answer to `method`, GET or HEAD.
pub(crate) fn exit(method: &Method) -> Response<Body> {
    let body = if method == Method::HEAD { "" } else { ipxe::EXIT };
    let body = Full::new(Bytes::from_static(body.as_bytes())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(ipxe::EXIT.len()));
    response
}
