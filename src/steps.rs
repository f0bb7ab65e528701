//! The steps of the daemon's life, by name: start, upgrade, rebuild and stop are made of them.
//!
//! Each step that has been passed is an event of the target `pve_imds::step`, and so are those of the kernel programs'
//! hand ([`bpf`](pve_imds_transport::bpf)). They are there to be died at: whoever claims that nothing leaks through a
//! dead daemon can kill it between any two of them. In builds for tests `pve-imds-observability` has the axe.

use pve_imds_model::words;

words! {
    /// What has just been done.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Step {
        /// The lock is ours.
        LockTaken => "lock_taken",
        /// The next epoch stands in the lock file.
        EpochRecorded => "epoch_recorded",
        /// The VMs' configurations have been read.
        InventoryOpen => "inventory_open",
        /// The interfaces have been listed.
        LinksListed => "links_listed",
        /// Our two devices are there and quiet.
        DevicesMade => "devices_made",
        /// The kernel programs are loaded, with new maps.
        ProgramsLoaded => "programs_loaded",
        /// The AF_XDP socket is bound.
        SocketBound => "socket_bound",
        /// `funnel` knows the socket.
        SocketInMap => "socket_in_map",
        /// A guest that was guarded before is steered to its new seat.
        GuestSwapped => "guest_swapped",
        /// All that were guarded before are.
        GuestsSeated => "guests_seated",
        /// `return` runs.
        ReturnAttached => "return_attached",
        /// `funnel` runs: guests are served from here on.
        FunnelAttached => "funnel_attached",
        /// Our devices are up.
        DevicesRaised => "devices_raised",
        /// The guard's thread runs.
        GuardStarted => "guard_started",
        /// A guest that was not guarded is.
        GuestGuarded => "guest_guarded",
        /// Metrics and health can be asked for.
        ManagementOpen => "management_open",
        /// systemd has been told.
        Ready => "ready",
        /// Something we stand on is gone.
        RebuildBegun => "rebuild_begun",
        /// The ring of the lost session has ended.
        RingAborted => "ring_aborted",
        /// What was left of the lost devices is removed.
        DevicesDiscarded => "devices_discarded",
        /// The new session serves.
        RebuildDone => "rebuild_done",
        /// We were asked to stop.
        Stopping => "stopping",
        /// Answers under way have arrived, or had their time.
        Drained => "drained",
        /// Nobody reads frames any more.
        RingEnded => "ring_ended",
        /// The guard's thread has ended.
        GuardEnded => "guard_ended",
    }
}

/// It has been passed.
pub(crate) fn passed(step: Step) {
    tracing::trace!(target: "pve_imds::step", step = step.word());
}

/// The names of all steps, those of the kernel programs' hand too. For tests.
#[must_use]
pub fn words() -> Vec<&'static str> {
    let theirs = pve_imds_transport::bpf::Step::ALL.iter().map(|step| step.word());
    Step::ALL.iter().map(|step| step.word()).chain(theirs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_a_name_of_its_own() {
        let (all, distinct) = (words(), words().into_iter().collect::<std::collections::BTreeSet<_>>());
        assert_eq!(all.len(), distinct.len());
    }
}
