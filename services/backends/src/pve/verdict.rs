//! The table for one file: what it turned out to be, and what becomes of what was known.
//!
//! In comes a look at one file; out goes whether it replaces the good state, which only whole files do, and whether it has
//! stayed half for so long that it is believed all the same and somebody must hear of it. Pure.

use std::time::Duration;

use tokio::time::Instant;

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

/// By what half a file is known. Proxmox leaves none of the first five. The others it leaves only when it is told to (`qm
/// set --delete smbios1`), and then they count a little later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Sign {
    /// There is no file where there was one. Of a file of the cluster: a VM's is then forgotten or on its way.
    #[error("it is not there any more")]
    Gone,
    /// White space, or nothing.
    #[error("it is empty")]
    Blank,
    /// The last line has no end.
    #[error("its last line has no end, as while it is being written")]
    OpenLine,
    /// A line that nobody can have meant.
    #[error("it is damaged: line {line} is none that Proxmox writes")]
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
    /// Several of the last lines are gone, and all before them are as they were.
    #[error("its last lines are not in it any more, as while it is being written")]
    Cut,
}

impl Sign {
    /// Whether it stays a fault for as long as the file stays so.
    fn stays(self) -> bool {
        match self {
            Self::Gone | Self::Blank | Self::OpenLine | Self::Damaged { .. } | Self::Bare => true,
            Self::NoUuid | Self::Cut => false,
        }
    }
}

/// What becomes of what we knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Confirm,
    Replace,
    Keep,
}

/// The table for one file: what it is now, whether one with content was served before, for how long it has been half.
fn judge(found: Found, before: bool, half_for: Duration) -> Verdict {
    match (found, before) {
        (Found::Same, _) => Verdict::Confirm,
        (Found::Content, _) => Verdict::Replace,
        (Found::Half(_), true) if half_for < WRITING => Verdict::Keep,
        (Found::Half(_), _) => Verdict::Replace,
        (Found::Unreadable, _) => Verdict::Keep,
    }
}

/// What is remembered of a file's faults from look to look.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Since when it has been half, in this way or that.
    half_since: Option<Instant>,
    /// What is wrong with the edition that is believed, and since when.
    flaw: Option<(Instant, Sign)>,
}

impl Doubt {
    /// The table, at this time.
    pub(super) fn judge(&mut self, found: Found, before: bool, now: Instant) -> Verdict {
        self.half_since = matches!(found, Found::Half(_)).then(|| self.half_since.unwrap_or(now));
        judge(found, before, self.half_since.map_or(Duration::ZERO, |since| now.duration_since(since)))
    }

    /// Another edition is believed. `flaw`: by what it is known to be half all the same.
    pub(super) fn believe(&mut self, flaw: Option<Sign>, now: Instant) {
        let since = self.half_since.or_else(|| self.flaw.map(|(since, _)| since)).unwrap_or(now);
        self.flaw = flaw.filter(|sign| sign.stays()).map(|sign| (since, sign));
    }

    /// What is wrong with the edition that is believed.
    pub(super) fn flaw(&self) -> Option<Sign> {
        self.flaw.map(|(_, sign)| sign)
    }

    /// The same and since when, once nobody can be writing any more.
    pub(super) fn lasting(&self, now: Instant) -> Option<(Instant, Sign)> {
        self.flaw.filter(|(since, _)| now.duration_since(*since) >= WRITING)
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

    #[test]
    fn what_is_believed_and_not_whole_is_told_once_nobody_writes_any_more() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let (blank, damaged, cut) = (Sign::Blank, Sign::Damaged { line: 1 }, Sign::Cut);
        let mut doubt = Doubt::default();
        for (second, found, before, verdict, lasting) in [
            // It was there already.
            (0, Found::Half(blank), false, Verdict::Replace, None),
            (4, Found::Same, false, Verdict::Confirm, None),
            (5, Found::Same, false, Verdict::Confirm, Some((0, blank))),
            (6, Found::Unreadable, false, Verdict::Keep, Some((0, blank))),
            (7, Found::Half(damaged), false, Verdict::Replace, None),
            (12, Found::Same, false, Verdict::Confirm, Some((7, damaged))),
            (13, Found::Content, true, Verdict::Replace, None),
            // It comes.
            (20, Found::Half(damaged), true, Verdict::Keep, None),
            (24, Found::Half(blank), true, Verdict::Keep, None),
            (25, Found::Half(blank), true, Verdict::Replace, Some((20, blank))),
            (30, Found::Content, false, Verdict::Replace, None),
            // It may be meant.
            (40, Found::Half(cut), true, Verdict::Keep, None),
            (45, Found::Half(cut), true, Verdict::Replace, None),
            (90, Found::Same, true, Verdict::Confirm, None),
        ] {
            assert_eq!(doubt.judge(found, before, at(second)), verdict, "{second}");
            if verdict == Verdict::Replace {
                let flaw = if let Found::Half(sign) = found { Some(sign) } else { None };
                doubt.believe(flaw, at(second));
            }
            let lasting = lasting.map(|(since, sign)| (at(since), sign));
            assert_eq!(doubt.lasting(at(second)), lasting, "{second}");
        }
    }
}
