//! What the inventory counts.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::inventory::Inventory;
use super::reload::{Look, Tidings};

const VMS: &str = "pve_imds_inventory_vms";
const STALE: &str = "pve_imds_inventory_stale";
const UNREADABLE: &str = "pve_imds_inventory_unreadable";
const SIGNING: &str = "pve_imds_identity_signing";
const RELOADS: &str = "pve_imds_inventory_reloads_total";

/// Says what these metrics mean, to the recorder that is installed.
pub fn describe() {
    describe_gauge!(VMS, "VMs of the cluster whose configuration is known.");
    describe_gauge!(STALE, "1 while the configurations cannot be read and the last good ones are served.");
    describe_gauge!(
        UNREADABLE,
        "Files of VMs and of the cluster that cannot be used now, while the others can, or that are used though they \
         are empty or damaged and stay so."
    );
    describe_gauge!(
        SIGNING,
        "1 while this node has a key that signs identity tokens; while it has none they are refused to everybody."
    );
    describe_counter!(
        RELOADS,
        "Looks at the configurations by result: `changed` there was something new, `incomplete` some file could not \
         be used, `failed` the VMs could not be listed. Looks that found nothing are not counted."
    );
    stands(&Inventory::empty());
    signs(false);
    // A series that begins with its first event hides that event from `increase()`.
    for result in Tidings::ALL {
        counter!(RELOADS, "result" => result.word()).absolute(0);
    }
}

/// How the inventory stands.
#[expect(clippy::cast_precision_loss, reason = "there are not 2^52 files")]
pub(super) fn stands(inventory: &Inventory) {
    gauge!(VMS).set(inventory.len() as f64);
    gauge!(UNREADABLE).set(inventory.unread_count() as f64);
    gauge!(STALE).set(if inventory.is_stale() { 1.0 } else { 0.0 });
}

/// Whether tokens can be signed.
pub(super) fn signs(can: bool) {
    gauge!(SIGNING).set(if can { 1.0 } else { 0.0 });
}

/// How a look ended.
pub(super) fn looked(look: &Look) {
    if let Some(tidings) = look.tidings() {
        counter!(RELOADS, "result" => tidings.word()).increment(1);
    }
}
