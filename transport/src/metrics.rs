//! What this room counts. Names follow Prometheus' conventions; labels are closed sets.

use metrics::{Counter, counter, describe_counter};
use std::sync::LazyLock;

use crate::ether::Refused;
use crate::wire::Account;

/// Why a frame or packet that reached us was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It means nothing to us.
    Frame(Refused),
    /// Its slot, generation or epoch belongs to nobody.
    NoSuchGuest,
    /// The guest's share of connections is used up.
    NoShare,
    /// No TCP for our port.
    NotTcp,
}

impl Dropped {
    fn label(self) -> &'static str {
        match self {
            Self::Frame(Refused::Truncated) => "truncated",
            Self::Frame(Refused::NoTag) => "no_tag",
            Self::Frame(Refused::NotOurs) => "not_ours",
            Self::NoSuchGuest => "no_such_guest",
            Self::NoShare => "no_share",
            Self::NotTcp => "not_tcp",
        }
    }
}

/// Why a connection ended before its peer was done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The handshake was not finished in time.
    HandshakeTime,
    /// Too many were being opened; it was the oldest of them.
    HalfOpenEvicted,
    /// No request came in time.
    IdleTime,
    /// The head of a request was not whole in time.
    HeadTime,
    /// The head is no HTTP: answered 400.
    BadHead,
    /// The head is too large or has too many fields: answered 431.
    HeadTooLarge,
    /// The peer ended its half in the middle of a head.
    HeadIncomplete,
    /// The service failed in the middle of its answer.
    AnswerFailed,
    /// The peer took nothing of its answer for too long.
    Stalled,
    /// The answer was complete and the connection closed on our side; the rest of it was not taken in time.
    Undelivered,
    /// Everything was delivered, and the peer did not close its half in time.
    HalfClosed,
    /// The peer reset it.
    ResetByPeer,
    /// The peer opened another one from the same address and port.
    Replaced,
    /// It made room for a newer one of the same guest.
    Evicted,
}

impl Ended {
    /// Every reason there is.
    pub const ALL: [Self; 14] = [
        Self::HandshakeTime,
        Self::HalfOpenEvicted,
        Self::IdleTime,
        Self::HeadTime,
        Self::BadHead,
        Self::HeadTooLarge,
        Self::HeadIncomplete,
        Self::AnswerFailed,
        Self::Stalled,
        Self::Undelivered,
        Self::HalfClosed,
        Self::ResetByPeer,
        Self::Replaced,
        Self::Evicted,
    ];

    /// The word for it in metrics and in README.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::HandshakeTime => "handshake_time",
            Self::HalfOpenEvicted => "half_open_evicted",
            Self::IdleTime => "idle_time",
            Self::HeadTime => "head_time",
            Self::BadHead => "bad_head",
            Self::HeadTooLarge => "head_too_large",
            Self::HeadIncomplete => "head_incomplete",
            Self::AnswerFailed => "answer_failed",
            Self::Stalled => "stalled",
            Self::Undelivered => "undelivered",
            Self::HalfClosed => "half_closed",
            Self::ResetByPeer => "reset_by_peer",
            Self::Replaced => "replaced",
            Self::Evicted => "evicted",
        }
    }

    /// Why hyper gave up a connection. `None`: the stack knows better, because it ended the connection itself.
    pub(crate) fn of(error: &hyper::Error) -> Option<Self> {
        match error {
            error if error.is_parse_too_large() => Some(Self::HeadTooLarge),
            error if error.is_parse() => Some(Self::BadHead),
            error if error.is_incomplete_message() => Some(Self::HeadIncomplete),
            error if error.is_user() => Some(Self::AnswerFailed),
            _ => None,
        }
    }
}

const DROPPED: &str = "pve_imds_transport_dropped_total";
const HEALED: &str = "pve_imds_transport_healed_total";
const CONNECTIONS: &str = "pve_imds_transport_connections_total";
const ENDED: &str = "pve_imds_transport_connections_ended_total";

/// Describes the metrics of this room. Call once after the recorder is installed.
pub fn describe() {
    describe_counter!(DROPPED, "Frames and packets that reached the daemon and were not served, by reason");
    describe_counter!(HEALED, "Segments (slot) and ring chunks (ring) that the kernel lost on their way, given back");
    describe_counter!(CONNECTIONS, "TCP connections of guests that were established");
    describe_counter!(ENDED, "TCP connections of guests that ended early, by reason");
    // A series that begins with its first end hides that end from `increase()`.
    for reason in Ended::ALL {
        counter!(ENDED, "reason" => reason.word()).absolute(0);
    }
}

/// Off the fast path: a guest that sends nonsense pays with a lookup of ours.
pub(crate) fn dropped(reason: Dropped) {
    counter!(DROPPED, "reason" => reason.label()).increment(1);
}

pub(crate) fn connection() {
    static CONNECTION: LazyLock<Counter> = LazyLock::new(|| counter!(CONNECTIONS));
    CONNECTION.increment(1);
}

/// The kernel lost frames on their way to us. A count below zero is as much a repair as one above.
pub(crate) fn healed(account: Account, lost: i32) {
    let label = match account {
        Account::Slot(_) => "slot",
        Account::Ring => "ring",
    };
    tracing::debug!(account = label, lost, "gave back what was lost on the way");
    counter!(HEALED, "account" => label).increment(u64::from(lost.unsigned_abs()));
}

/// Off the fast path: a connection whose peer was done with it ends without.
pub(crate) fn ended(reason: Ended) {
    counter!(ENDED, "reason" => reason.word()).increment(1);
}
