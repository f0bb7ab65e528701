//! The steps at which a start, an upgrade or a guard can be interrupted, by name.
//!
//! Each is said on the log target `pve_imds::step` right after it was taken, in the thread that took it: whoever
//! listens there can stop the process between any two of them. Nothing else hangs on these words.

use crate::words;

words! {
    /// A step that changes what the kernel holds for us, in the order of a start.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Step {
        /// The programs and their maps are in the kernel, attached to nothing.
        Loaded => "loaded",
        /// An interface has its slot.
        Assigned => "assigned",
        /// A link is made and runs; it would vanish with this process.
        Linked => "linked",
        /// That link, or one that had lost its pin, is pinned and stays.
        Pinned => "pinned",
        /// A link that was pinned runs another program.
        Swapped => "swapped",
        /// Another link of ours beside the pinned one is taken off.
        Detached => "detached",
        /// A pin that guards nothing any more is removed.
        Cleared => "cleared",
        /// An interface has no slot any more.
        Released => "released",
    }
}

impl Step {
    /// Says that it was taken.
    pub(crate) fn taken(self) {
        tracing::trace!(target: "pve_imds::step", step = self.word());
    }
}
