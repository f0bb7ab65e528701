//! The table for one listed VM: what its file turned out to be, and what becomes of what was known.
//!
//! In comes a look at one file; out goes whether it replaces the good state, which only whole files do. Pure.

use std::time::Duration;

/// How long half a file, or an empty one, may stand for "being written": Proxmox itself renames, only editors and
/// shells truncate.
pub(super) const WRITING: Duration = Duration::from_secs(5);

/// What a file turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The bytes we know.
    Same,
    /// Other bytes.
    Content,
    /// Other bytes, or none, that look like a part of more.
    Half(Sign),
    /// No bytes.
    Unreadable,
}

/// By what half a file is known. Proxmox leaves none of the first four. The others it leaves only when it is told to (`qm
/// set --delete smbios1`), and then they count a little later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Sign {
    /// White space, or nothing.
    #[error("it is empty")]
    Blank,
    /// The last line has no end.
    #[error("its last line has no end, as while it is being written")]
    OpenLine,
    /// A line that nobody can have meant.
    #[error("it is damaged: line {line} is no line of a configuration")]
    Damaged {
        /// The first of them, from 1.
        line: usize,
    },
    /// No option is in it, and no lock that would say why.
    #[error("nothing of a VM is in it")]
    Bare,
    /// The VM had an UUID and has none: served so it would be another instance to its guest, which would be set up again.
    #[error("the UUID is not in it any more (smbios1), as while it is being written")]
    NoUuid,
    /// Several of the last options are gone, and all before them are as they were.
    #[error("its last lines are not in it any more, as while it is being written")]
    Cut,
}

/// What becomes of what we knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Confirm,
    Replace,
    Keep,
}

/// The table for one listed VM: what its file is now, whether a configuration with content was served before, for how
/// long the file has been half.
pub(super) fn judge(found: Found, before: bool, half_for: Duration) -> Verdict {
    match (found, before) {
        (Found::Same, _) => Verdict::Confirm,
        (Found::Content, _) => Verdict::Replace,
        (Found::Half(_), true) if half_for < WRITING => Verdict::Keep,
        (Found::Half(_), _) => Verdict::Replace,
        (Found::Unreadable, _) => Verdict::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_judged_by_the_table() {
        let (at_once, in_time, late) = (Duration::ZERO, WRITING - Duration::from_millis(1), WRITING);
        for (found, before, half_for, expected) in [
            (Found::Same, true, at_once, Verdict::Confirm),
            (Found::Same, false, at_once, Verdict::Confirm),
            (Found::Content, true, at_once, Verdict::Replace),
            (Found::Content, false, at_once, Verdict::Replace),
            (Found::Half(Sign::Blank), true, at_once, Verdict::Keep),
            (Found::Half(Sign::Blank), true, in_time, Verdict::Keep),
            (Found::Half(Sign::Blank), true, late, Verdict::Replace),
            (Found::Half(Sign::Blank), false, at_once, Verdict::Replace),
            (Found::Half(Sign::OpenLine), true, at_once, Verdict::Keep),
            (Found::Half(Sign::NoUuid), true, in_time, Verdict::Keep),
            (Found::Half(Sign::Damaged { line: 3 }), true, at_once, Verdict::Keep),
            (Found::Half(Sign::Damaged { line: 3 }), true, late, Verdict::Replace),
            (Found::Half(Sign::Bare), true, in_time, Verdict::Keep),
            (Found::Half(Sign::Cut), true, in_time, Verdict::Keep),
            (Found::Half(Sign::OpenLine), true, late, Verdict::Replace),
            (Found::Half(Sign::OpenLine), false, at_once, Verdict::Replace),
            (Found::Unreadable, true, late, Verdict::Keep),
            (Found::Unreadable, false, late, Verdict::Keep),
        ] {
            assert_eq!(judge(found, before, half_for), expected, "{found:?} {before} {half_for:?}");
        }
    }
}
