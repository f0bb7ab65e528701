//! The request metrics: names, and handles that are looked up once for each set of labels.
//!
//! All labels are words of closed sets (endpoint × status × outcome), so a guest cannot grow them, and no label names
//! a guest: 1,000 guests share the same series.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{PoisonError, RwLock};

use http::StatusCode;
use metrics::{Counter, Gauge, Histogram, Unit};
use pve_imds_model::fault::Outcome;
use pve_imds_model::request::Endpoint;

use crate::rescue;

const REQUESTS: &str = "pve_imds_http_requests_total";
const ABORTED: &str = "pve_imds_http_requests_aborted_total";
const DURATION: &str = "pve_imds_http_request_duration_seconds";
const IN_FLIGHT: &str = "pve_imds_http_in_flight_requests";
const BYTES: &str = "pve_imds_http_response_bytes_total";

/// Says what the request metrics mean; once, after the recorder is installed.
pub fn describe() {
    metrics::describe_counter!(REQUESTS, "Requests answered to the last byte, by endpoint, status code and outcome.");
    metrics::describe_counter!(
        ABORTED,
        "Requests whose guest went away, or whose answer broke off, before the last byte."
    );
    metrics::describe_histogram!(
        DURATION,
        Unit::Seconds,
        "Seconds from a request's head to the last byte of its answer."
    );
    metrics::describe_gauge!(IN_FLIGHT, "Requests in progress: their answer has not ended.");
    metrics::describe_counter!(BYTES, Unit::Bytes, "Bytes of answers' bodies handed to the transport.");
    // A series that begins with its first event hides that event from `increase()`.
    for endpoint in Endpoint::ALL.iter().copied() {
        for outcome in Outcome::ALL.iter().copied() {
            requests(endpoint, code(rescue::status(outcome, endpoint)), outcome).absolute(0);
        }
        aborted(endpoint).absolute(0);
        // A histogram is there as soon as somebody has asked for it.
        let _ = duration(endpoint);
    }
    metrics::gauge!(IN_FLIGHT).set(0.0);
    metrics::counter!(BYTES).absolute(0);
}

fn requests(endpoint: Endpoint, code: &'static str, outcome: Outcome) -> Counter {
    metrics::counter!(REQUESTS, "endpoint" => endpoint.word(), "code" => code, "outcome" => outcome.word())
}

fn aborted(endpoint: Endpoint) -> Counter {
    metrics::counter!(ABORTED, "endpoint" => endpoint.word())
}

fn duration(endpoint: Endpoint) -> Histogram {
    metrics::histogram!(DURATION, "endpoint" => endpoint.word())
}

/// The handles, made when first needed and kept. They belong to the recorder that is in place when they are made.
#[derive(Debug)]
pub struct Meters {
    requests: Table<(Endpoint, &'static str, Outcome), Counter>,
    aborted: Table<Endpoint, Counter>,
    duration: Table<Endpoint, Histogram>,
    pub(super) in_flight: Gauge,
    pub(super) bytes: Counter,
}

impl Meters {
    /// No handle but those without labels.
    #[must_use]
    pub fn new() -> Self {
        Self {
            requests: Table::default(),
            aborted: Table::default(),
            duration: Table::default(),
            in_flight: metrics::gauge!(IN_FLIGHT),
            bytes: metrics::counter!(BYTES),
        }
    }

    pub(super) fn answered(&self, endpoint: Endpoint, status: StatusCode, outcome: Outcome) {
        let code = code(status);
        let key = (endpoint, code, outcome);
        self.requests.with(key, || requests(endpoint, code, outcome), |counter| counter.increment(1));
    }

    pub(super) fn aborted(&self, endpoint: Endpoint) {
        self.aborted.with(endpoint, || aborted(endpoint), |counter| counter.increment(1));
    }

    pub(super) fn took(&self, endpoint: Endpoint, seconds: f64) {
        self.duration.with(endpoint, || duration(endpoint), |histogram| histogram.record(seconds));
    }
}

impl Default for Meters {
    fn default() -> Self {
        Self::new()
    }
}

/// Handles by their labels.
#[derive(Debug)]
struct Table<K, H> {
    handles: RwLock<HashMap<K, H>>,
}

impl<K, H> Default for Table<K, H> {
    fn default() -> Self {
        Self { handles: RwLock::default() }
    }
}

impl<K: Eq + Hash, H> Table<K, H> {
    /// Uses the handle for `key`; only the first use of all registers it.
    fn with(&self, key: K, register: impl FnOnce() -> H, then: impl FnOnce(&H)) {
        if let Some(handle) = self.handles.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return then(handle);
        }
        then(self.handles.write().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert_with(register));
    }
}

/// The status as a label: those we send, and one word for what else a datasource may think of.
fn code(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200 => "200",
        204 => "204",
        206 => "206",
        304 => "304",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        409 => "409",
        413 => "413",
        416 => "416",
        429 => "429",
        500 => "500",
        503 => "503",
        _ => "other",
    }
}
