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

const DROPPED: &str = "pve_imds_transport_dropped_total";
const HEALED: &str = "pve_imds_transport_healed_total";
const CONNECTIONS: &str = "pve_imds_transport_connections_total";

/// Describes the metrics of this room. Call once after the recorder is installed.
pub fn describe() {
    describe_counter!(DROPPED, "Frames and packets that reached the daemon and were not served, by reason");
    describe_counter!(HEALED, "Segments (slot) and ring chunks (ring) that the kernel lost on their way, given back");
    describe_counter!(CONNECTIONS, "TCP connections of guests that were established");
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
