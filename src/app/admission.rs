//! What the inventory decides about an interface, beside answers: whether it is left out, and how far answers travel.
//!
//! In come the operator's rules and the inventory as it is at the moment; out go a [`Rule`] or none, and a number for
//! each frame that leaves. An interface whose VM is not known (yet), or not for certain, is guarded: only what is known
//! can be left out, and the question is put again whenever the inventory changes.

use std::sync::Arc;

use pve_imds_datasources::backends::pve::{Inventory, Trouble, Unread};
use pve_imds_model::exclude::{Exclude, Rule};
use pve_imds_model::policy::HopLimit;
use pve_imds_model::request::{Directory, Link};
use pve_imds_model::tap::TapName;
use tokio::sync::watch;

/// The inventory, and who is left out of it.
#[derive(Clone, Debug)]
pub struct Admission {
    inventory: Arc<Inventory>,
    exclude: Arc<Exclude>,
}

impl Admission {
    /// `exclude` is what the configuration says.
    #[must_use]
    pub fn new(inventory: Arc<Inventory>, exclude: Exclude) -> Self {
        Self { inventory, exclude: Arc::new(exclude) }
    }

    /// An interface of a guest appeared: what it is known by from now on.
    #[must_use]
    pub fn meet(&self, tap: TapName, index: u32) -> Link {
        Link { tap, index, since: self.inventory.meet() }
    }

    /// The rule that leaves this interface out as things are now.
    #[must_use]
    pub fn rule(&self, link: Link) -> Option<Rule> {
        // Most nodes leave nobody out, and then nothing is looked up.
        if self.exclude.is_empty() {
            return None;
        }
        let Link { tap: TapName { vmid, nic }, .. } = link;
        let record = self.inventory.known(link).filter(|record| record.ready);
        let known = record.as_ref().map(|record| (&*record.vm, record.pool.as_ref()));
        self.exclude.rule(vmid, nic, known)
    }

    /// Whether [`Admission::rule`] can ever say anything.
    #[must_use]
    pub fn leaves_out(&self) -> bool {
        !self.exclude.is_empty()
    }

    /// Changes when [`Admission::rule`] may say something else than before.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inventory.changes()
    }

    /// Why the inventory is the last good state, if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        self.inventory.trouble()
    }

    /// The files that cannot be read, or are not whole, while the others can.
    #[must_use]
    pub fn unread(&self) -> Unread {
        self.inventory.unread()
    }

    /// How far packets to this interface travel (IP's time to live), as its VM's policy says at the moment it is asked.
    /// That costs a nanosecond or two, and a look into the inventory once after each change of it.
    pub fn hops(&self, link: Link) -> impl FnMut() -> u8 + Send + use<> {
        let inventory = Arc::clone(&self.inventory);
        // Listens before it looks: a change in between is seen with the first question.
        let mut changes = inventory.changes();
        let look = move || inventory.find(link).map_or_else(|_| HopLimit::default(), |vm| vm.hop_limit()).get();
        let mut hops = look();
        move || {
            if changes.has_changed().unwrap_or(true) {
                changes.mark_unchanged();
                hops = look();
            }
            hops
        }
    }
}
