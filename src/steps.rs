//! The steps of the daemon's life, by name: start, upgrade, rebuild and stop are made of them.
//!
//! Each step that has been passed is an event of the target `pve_imds::step`, and so are those of the kernel programs'
//! hand ([`bpf`](pve_imds_transport::bpf)). They are there to be died at: whoever claims that nothing leaks through a
//! dead daemon can kill it between any two of them. In builds for tests `pve-imds-observability` has the axe.

/// What has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The lock is ours.
    LockTaken,
    /// The next epoch stands in the lock file.
    EpochRecorded,
    /// The VMs' configurations have been read.
    InventoryOpen,
    /// The interfaces have been listed.
    LinksListed,
    /// Our two devices are there and quiet.
    DevicesMade,
    /// The kernel programs are loaded, with new maps.
    ProgramsLoaded,
    /// The AF_XDP socket is bound.
    SocketBound,
    /// `funnel` knows the socket.
    SocketInMap,
    /// A guest that was guarded before is steered to its new seat.
    GuestSwapped,
    /// All that were guarded before are.
    GuestsSeated,
    /// `return` runs.
    ReturnAttached,
    /// `funnel` runs: guests are served from here on.
    FunnelAttached,
    /// Our devices are up.
    DevicesRaised,
    /// The guard's thread runs.
    GuardStarted,
    /// A guest that was not guarded is.
    GuestGuarded,
    /// Metrics and health can be asked for.
    ManagementOpen,
    /// systemd has been told.
    Ready,
    /// Something we stand on is gone.
    RebuildBegun,
    /// The ring of the lost session has ended.
    RingAborted,
    /// What was left of the lost devices is removed.
    DevicesDiscarded,
    /// The new session serves.
    RebuildDone,
    /// We were asked to stop.
    Stopping,
    /// Answers under way have arrived, or had their time.
    Drained,
    /// Nobody reads frames any more.
    RingEnded,
    /// The guard's thread has ended.
    GuardEnded,
}

impl Step {
    /// All there are, in the order of a life.
    pub(crate) const ALL: [Self; 25] = [
        Self::LockTaken,
        Self::EpochRecorded,
        Self::InventoryOpen,
        Self::LinksListed,
        Self::DevicesMade,
        Self::ProgramsLoaded,
        Self::SocketBound,
        Self::SocketInMap,
        Self::GuestSwapped,
        Self::GuestsSeated,
        Self::ReturnAttached,
        Self::FunnelAttached,
        Self::DevicesRaised,
        Self::GuardStarted,
        Self::GuestGuarded,
        Self::ManagementOpen,
        Self::Ready,
        Self::RebuildBegun,
        Self::RingAborted,
        Self::DevicesDiscarded,
        Self::RebuildDone,
        Self::Stopping,
        Self::Drained,
        Self::RingEnded,
        Self::GuardEnded,
    ];

    /// Its name.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::LockTaken => "lock_taken",
            Self::EpochRecorded => "epoch_recorded",
            Self::InventoryOpen => "inventory_open",
            Self::LinksListed => "links_listed",
            Self::DevicesMade => "devices_made",
            Self::ProgramsLoaded => "programs_loaded",
            Self::SocketBound => "socket_bound",
            Self::SocketInMap => "socket_in_map",
            Self::GuestSwapped => "guest_swapped",
            Self::GuestsSeated => "guests_seated",
            Self::ReturnAttached => "return_attached",
            Self::FunnelAttached => "funnel_attached",
            Self::DevicesRaised => "devices_raised",
            Self::GuardStarted => "guard_started",
            Self::GuestGuarded => "guest_guarded",
            Self::ManagementOpen => "management_open",
            Self::Ready => "ready",
            Self::RebuildBegun => "rebuild_begun",
            Self::RingAborted => "ring_aborted",
            Self::DevicesDiscarded => "devices_discarded",
            Self::RebuildDone => "rebuild_done",
            Self::Stopping => "stopping",
            Self::Drained => "drained",
            Self::RingEnded => "ring_ended",
            Self::GuardEnded => "guard_ended",
        }
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
