//! What this room counts. Names follow Prometheus' conventions; labels are closed sets.

use std::sync::LazyLock;

use metrics::{Counter, counter, describe_counter};
use pve_imds_bpf::words;

use crate::ether::Refused;
use crate::wire::Account;

words! {
    /// Why a frame or packet that reached us was not served.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Dropped {
        /// Shorter than its headers say.
        Truncated => "truncated",
        /// Its destination is not a tag.
        NoTag => "no_tag",
        /// Neither ARP for us nor IPv4 for us.
        NotOurs => "not_ours",
        /// Its slot, generation or epoch belongs to nobody.
        NoSuchGuest => "no_such_guest",
        /// The guest's share of connections is used up.
        NoShare => "no_share",
        /// No TCP for our port.
        NotTcp => "not_tcp",
    }
}

/// A frame that means nothing to us.
impl From<Refused> for Dropped {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Truncated => Self::Truncated,
            Refused::NoTag => Self::NoTag,
            Refused::NotOurs => Self::NotOurs,
        }
    }
}

words! {
    /// Why a connection ended before its peer was done with it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Ended {
        /// The handshake was not finished in time.
        HandshakeTime => "handshake_time",
        /// Too many were being opened; it was the oldest of them.
        HalfOpenEvicted => "half_open_evicted",
        /// No request came in time.
        IdleTime => "idle_time",
        /// The head of a request was not whole in time.
        HeadTime => "head_time",
        /// The head is no HTTP: answered 400.
        BadHead => "bad_head",
        /// The head is too large or has too many fields: answered 431.
        HeadTooLarge => "head_too_large",
        /// The peer ended its half in the middle of a head.
        HeadIncomplete => "head_incomplete",
        /// The service failed in the middle of its answer.
        AnswerFailed => "answer_failed",
        /// The peer took nothing of its answer for too long.
        Stalled => "stalled",
        /// The answer was complete and the connection closed on our side; the rest of it was not taken in time.
        Undelivered => "undelivered",
        /// Everything was delivered, and the peer did not close its half in time.
        HalfClosed => "half_closed",
        /// The peer reset it.
        ResetByPeer => "reset_by_peer",
        /// The peer opened another one from the same address and port.
        Replaced => "replaced",
        /// It made room for a newer one of the same guest.
        Evicted => "evicted",
    }
}

impl Ended {
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

/// Whose credit can be healed: a guest's, the ring's.
const ACCOUNTS: [&str; 2] = ["slot", "ring"];

/// Describes the metrics of this room. Call once after the recorder is installed.
pub fn describe() {
    describe_counter!(DROPPED, "Frames that reached the daemon and were not served, by reason");
    describe_counter!(
        HEALED,
        "Credit of guests given back for what the kernel lost on the way, by account: slot (segments), ring (chunks)"
    );
    describe_counter!(CONNECTIONS, "TCP connections of guests that were established");
    describe_counter!(ENDED, "TCP connections of guests that ended before the guest was done with them, by reason");
    // A series that begins with its first event hides that event from `increase()`.
    for reason in Dropped::ALL {
        counter!(DROPPED, "reason" => reason.word()).absolute(0);
    }
    for account in ACCOUNTS {
        counter!(HEALED, "account" => account).absolute(0);
    }
    counter!(CONNECTIONS).absolute(0);
    for reason in Ended::ALL {
        counter!(ENDED, "reason" => reason.word()).absolute(0);
    }
}

/// Off the fast path: a guest that sends nonsense pays with a lookup of ours.
pub(crate) fn dropped(reason: impl Into<Dropped>) {
    counter!(DROPPED, "reason" => reason.into().word()).increment(1);
}

pub(crate) fn connection() {
    static CONNECTION: LazyLock<Counter> = LazyLock::new(|| counter!(CONNECTIONS));
    CONNECTION.increment(1);
}

/// The kernel lost frames on their way to us. A count below zero is as much a repair as one above.
pub(crate) fn healed(account: Account, lost: i32) {
    let [slot, ring] = ACCOUNTS;
    let label = match account {
        Account::Slot(_) => slot,
        Account::Ring => ring,
    };
    tracing::debug!(account = label, lost, "gave back what was lost on the way");
    counter!(HEALED, "account" => label).increment(u64::from(lost.unsigned_abs()));
}

/// Off the fast path: a connection whose peer was done with it ends without.
pub(crate) fn ended(reason: Ended) {
    counter!(ENDED, "reason" => reason.word()).increment(1);
}
