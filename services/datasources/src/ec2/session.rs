//! `/latest/api/token`: sessions (IMDSv2), which a client asks for with PUT and shows again in a header.
//!
//! In come a request's headers and the VM that asks; out goes a token, or whether one that is shown is good. A token is
//! sealed with this node's key and names node, VM, UUID and end ([`Pass`]); nothing of it is kept, so it outlives the
//! daemon, and every node of the cluster can open it. What such a token is for: a proxy or a web page that can be talked
//! into a GET in somebody's name can rarely be talked into a PUT and a header of its own. Refused: to hand one out to
//! whoever could not be given its user data, because boots begin here.

use std::sync::Arc;

use bytes::Bytes;
use http::header::ETAG;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use pve_imds_backends::clock::Clock;
use pve_imds_backends::keys::NodeKeys;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::session::{Envelope, Pass, TOKEN_HEADER, TTL_HEADER, TokenUse, Ttl, Unfit};
use pve_imds_model::vm::Vm;

use crate::reply::{Body, Kind, Reply};
use crate::subject::Subject;

/// Seconds a session shall last; echoed, because the SDKs for Rust and Go give up without.
const TTL: HeaderName = HeaderName::from_static(TTL_HEADER);

/// The token.
const TOKEN: HeaderName = HeaderName::from_static(TOKEN_HEADER);

/// The answer to PUT.
///
/// # Errors
/// [`Subject::may_enter`]'s; [`Outcome::BadRequest`] without a time that EC2 knows;
/// [`Outcome::NodeKeyUnreadable`] if there is nothing to seal with.
pub(crate) fn issue(
    headers: &HeaderMap,
    subject: &Subject<'_>,
    keys: &NodeKeys,
    clock: &Clock,
) -> Result<Response<Body>, Fault> {
    let ttl = only(headers, &TTL).ok().flatten().and_then(|value| Ttl::parse(value.to_str().ok()?));
    let ttl = ttl.ok_or_else(Fault::bad_request)?;
    subject.may_enter()?;
    let token = seal(subject, &Pass::new(subject.vm, ttl, clock.now()), keys)?;
    let mut response = Reply::new(Kind::Text, Bytes::from(token)).with_status(StatusCode::OK);
    // It is another one each time.
    response.headers_mut().remove(ETAG);
    response.headers_mut().insert(TTL, HeaderValue::from(ttl.seconds()));
    Ok(response)
}

fn seal(subject: &Subject<'_>, pass: &Pass, keys: &NodeKeys) -> Result<String, Fault> {
    let fault = || Fault::unavailable(Outcome::NodeKeyUnreadable, RetryAfter::DEFAULT);
    let (key, head) = keys.of(subject.node).zip(Envelope::head(subject.node)).ok_or_else(fault)?;
    let sealed = key.seal(&head, &pass.to_bytes()).map_err(|error| fault().because(error))?;
    Envelope { node: subject.node.to_owned(), sealed }.token().ok_or_else(fault)
}

/// What a request says of a session, and whether `vm` may go on.
pub(crate) fn judge(
    headers: &HeaderMap,
    vm: &Arc<Vm>,
    keys: &NodeKeys,
    clock: &Clock,
) -> (TokenUse, Result<(), Fault>) {
    let shown = only(headers, &TOKEN)
        .and_then(|token| token.map(|token| open(token.as_bytes(), keys)?.admits(vm, clock.now())).transpose());
    match (shown, vm.requires_tokens()) {
        (Ok(None), false) => (TokenUse::None, Ok(())),
        (Ok(None), true) => (TokenUse::None, Err(Fault::unauthorized(Outcome::TokenRequired))),
        (Ok(Some(())), _) => (TokenUse::Valid, Ok(())),
        // Where it is not required too, as EC2: clients take a 401 for the end of their session and begin another.
        (Err(why), _) => (TokenUse::Invalid, Err(Fault::unauthorized(Outcome::TokenInvalid).because(why))),
    }
}

fn open(token: &[u8], keys: &NodeKeys) -> Result<Pass, Unfit> {
    let Envelope { node, sealed } = Envelope::parse(token).ok_or(Unfit::Malformed)?;
    let head = Envelope::head(&node).ok_or(Unfit::Malformed)?;
    let key = keys.of(&node).ok_or(Unfit::UnknownNode)?;
    let pass = key.open(&head, &sealed).ok_or(Unfit::Altered)?;
    Pass::from_bytes(&pass).ok_or(Unfit::Malformed)
}

/// A header that may stand there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Unfit> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(Unfit::Malformed),
    }
}

#[cfg(test)]
mod tests;
