//! One request's record: what is known of it so far, and what is said when it has ended. It ends exactly once.

use std::fmt;
use std::sync::Arc;

use http::{Method, Request, StatusCode, Uri};
use pve_imds_model::fault::Outcome;
use pve_imds_model::request::{Endpoint, Link, Peer};
use tokio::time::Instant;
use tracing::Span;
use tracing::field::Empty;

use super::TelemetryLayer;
use super::meters::Meters;
use crate::bounds::LOGGED_PATH;
use crate::budget::{Line, LogBudget};
use crate::rescue::answer;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The last byte of the answer was handed on.
    Whole,
    /// The guest went away, or the answer broke off.
    Aborted,
    /// Something panicked.
    Panicked,
}

/// What the head of the answer says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) endpoint: Endpoint,
    pub(super) outcome: Outcome,
}

/// The record.
#[derive(Debug)]
pub(super) struct Watch {
    span: Span,
    meters: Arc<Meters>,
    budget: LogBudget,
    link: Link,
    peer: Option<Peer>,
    method: &'static str,
    // Shares the request's bytes; nothing of it but the path is ever looked at.
    uri: Uri,
    started: Instant,
    answer: Option<Answer>,
    bytes: u64,
    ended: bool,
}

impl Watch {
    pub(super) fn start<B>(layer: &TelemetryLayer, request: &Request<B>) -> Self {
        let (link, peer) = (layer.link, request.extensions().get::<Peer>().copied());
        let method = method(request.method());
        let span = tracing::info_span!(
            target: "pve_imds::access",
            "request",
            method,
            path = %Path(request.uri().path()),
            tap = %link.tap,
            peer = %Origin(peer),
            vmid = Empty,
            endpoint = Empty,
            token = Empty,
            status = Empty,
            outcome = Empty,
            bytes = Empty,
            duration_us = Empty,
        );
        layer.meters.in_flight.increment(1.0);
        Self {
            span,
            meters: Arc::clone(&layer.meters),
            budget: layer.budget.clone(),
            link,
            peer,
            method,
            uri: request.uri().clone(),
            started: Instant::now(),
            answer: None,
            bytes: 0,
            ended: false,
        }
    }

    /// Runs a step of the request inside its span. If the step panics, the request has ended.
    pub(super) fn during<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let span = self.span.clone();
        let _entered = span.enter();
        let ending = OnUnwind(self);
        let value = step();
        std::mem::forget(ending);
        value
    }

    /// What is asked for, when nobody further in lived to say so.
    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint::classify(self.uri.path())
    }

    pub(super) fn answered(&mut self, answer: Answer) {
        self.answer = Some(answer);
    }

    /// Counts bytes of the body; returns all of them so far.
    pub(super) fn sent(&mut self, bytes: u64) -> u64 {
        self.bytes += bytes;
        self.meters.bytes.increment(bytes);
        self.bytes
    }

    /// The request has ended; what comes later changes nothing.
    pub(super) fn finish(&mut self, end: End) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let endpoint = self.answer.map_or_else(|| self.endpoint(), |answer| answer.endpoint);
        if end == End::Panicked {
            // Catch, above, will say what rescue would have said.
            let fault = pve_imds_model::fault::Fault::panic();
            let status = answer(&fault, endpoint).status();
            self.answer = Some(Answer { status, endpoint, outcome: Outcome::Panic });
        }
        let elapsed = self.started.elapsed();
        self.meters.in_flight.decrement(1.0);
        self.meters.took(endpoint, elapsed.as_secs_f64());
        match self.answer {
            Some(answer) if end != End::Aborted => self.meters.answered(endpoint, answer.status, answer.outcome),
            _ => self.meters.aborted(endpoint),
        }
        let said = Said {
            watch: self,
            outcome: self.answer.filter(|_| end != End::Aborted).map_or("aborted", |answer| answer.outcome.word()),
            duration_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
        };
        self.span.record("endpoint", endpoint.word());
        self.span.record("status", self.answer.map(|answer| answer.status.as_u16()));
        self.span.record("outcome", said.outcome);
        self.span.record("bytes", self.bytes);
        self.span.record("duration_us", said.duration_us);
        self.span.in_scope(|| match self.line() {
            Some(line) => tracing::info!(target: "pve_imds::access", "{said}{line}"),
            None => tracing::debug!(target: "pve_imds::access", "{said}"),
        });
    }

    /// A line of the guest's budget. A guest that asks more than it may has none: metrics count it.
    fn line(&self) -> Option<Line> {
        match self.answer {
            Some(Answer { outcome: Outcome::RateLimited, .. }) => None,
            _ => self.budget.take(),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.finish(End::Aborted);
    }
}

/// Ends the record if it is dropped, which happens only when a panic passes.
struct OnUnwind<'a>(&'a mut Watch);

impl Drop for OnUnwind<'_> {
    fn drop(&mut self) {
        self.0.finish(End::Panicked);
    }
}

/// The access line.
struct Said<'a> {
    watch: &'a Watch,
    outcome: &'static str,
    duration_us: u64,
}

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Watch { link, peer, method, uri, answer, bytes, .. } = self.watch;
        write!(f, "{} {} {method} {} ", link.tap, Origin(*peer), Path(uri.path()))?;
        match answer {
            Some(answer) => write!(f, "{}", answer.status.as_u16())?,
            None => f.write_str("-")?,
        }
        write!(f, " {} {bytes} B {} us", self.outcome, self.duration_us)
    }
}

/// Where the request came from.
struct Origin(Option<Peer>);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(peer) => std::net::SocketAddr::new(peer.ip, peer.port).fmt(f),
            None => f.write_str("-"),
        }
    }
}

/// A path as it may be logged: visible ASCII, everything else escaped, and not for ever. `CONNECT` has none.
struct Path<'a>(&'a str);

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        let mut chars = self.0.chars();
        for char in chars.by_ref().take(LOGGED_PATH) {
            if char.is_ascii_graphic() && char != '\\' {
                fmt::Write::write_char(f, char)?;
            } else {
                write!(f, "{}", char.escape_unicode())?;
            }
        }
        if chars.next().is_some() { f.write_str("...") } else { Ok(()) }
    }
}

/// A method as it may be logged: those that exist, and one word for all that a guest may invent.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logged_path_is_visible_and_short() {
        let long = "/x".repeat(4096);
        for (path, expected) in [
            ("/nocloud/meta-data", "/nocloud/meta-data"),
            ("/a b\n\u{1b}[31m", "/a\\u{20}b\\u{a}\\u{1b}[31m"),
            ("/caf\u{e9}\u{202e}", "/caf\\u{e9}\\u{202e}"),
            ("/back\\slash", "/back\\u{5c}slash"),
            ("", "-"),
        ] {
            assert_eq!(Path(path).to_string(), expected);
        }
        assert_eq!(Path(&long).to_string(), format!("{}...", &long[..LOGGED_PATH]));
    }
}
