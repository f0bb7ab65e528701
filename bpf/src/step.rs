//! The steps at which a start, an upgrade or a guard can be interrupted, by name.
//!
//! Each is said on the log target `pve_imds::step` right after it was taken, in the thread that took it: whoever
//! listens there can stop the process between any two of them. Nothing else hangs on these words.

use std::fmt;

/// A step that changes what the kernel holds for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The programs and their maps are in the kernel, attached to nothing.
    Loaded,
    /// An interface has its slot.
    Assigned,
    /// A link is made and runs; it would vanish with this process.
    Linked,
    /// That link is pinned and stays.
    Pinned,
    /// A link that was pinned runs another program.
    Swapped,
    /// A pin that guards nothing any more is removed.
    Cleared,
    /// An interface has no slot any more.
    Released,
}

impl Step {
    /// Every step there is, in the order of a start.
    pub const ALL: &'static [Self] =
        &[Self::Loaded, Self::Assigned, Self::Linked, Self::Pinned, Self::Swapped, Self::Cleared, Self::Released];

    /// The word for it: the field `step` of the event.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Assigned => "assigned",
            Self::Linked => "linked",
            Self::Pinned => "pinned",
            Self::Swapped => "swapped",
            Self::Cleared => "cleared",
            Self::Released => "released",
        }
    }

    /// Says that it was taken.
    pub(crate) fn taken(self) {
        tracing::trace!(target: "pve_imds::step", step = self.word());
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
