//! What should have been read and could not be, or was read and is not whole: which file, since when and why.
//!
//! In come the failures and the successes of the looks; out goes what is still wrong, for health, metrics and the
//! answers. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use pve_imds_model::vm::VmId;
use tokio::time::Instant;

/// Why something is the last good state, or not known at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// From when on it has been.
    pub since: Instant,
    /// What cannot be read, and why.
    pub why: Arc<str>,
}

/// What counts while a file is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// What it said last, if anything.
    Kept,
    /// What it says now, though it looks like half of something: it has stayed so.
    Believed,
}

/// A file that an [`Inventory`](super::Inventory) is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    /// One of the whole cluster.
    Cluster(&'static str),
    /// A VM's configuration.
    Config(VmId),
}

/// Its name, without a directory.
impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(name) => f.write_str(name),
            Self::Config(vmid) => write!(f, "{vmid}.conf"),
        }
    }
}

/// The files that cannot be used, whether something is known of them from before or not, and those that are used though
/// they are not whole.
#[derive(Clone, Debug, Default)]
pub struct Unread(BTreeMap<File, (Stance, Trouble)>);

impl Unread {
    /// What is wrong with this one, if anything is.
    #[must_use]
    pub fn get(&self, file: File) -> Option<&Trouble> {
        self.0.get(&file).map(|(_, trouble)| trouble)
    }

    /// All of them, those of the cluster first, then by VMID.
    pub fn iter(&self) -> impl Iterator<Item = (File, Stance, &Trouble)> {
        self.0.iter().map(|(file, (stance, trouble))| (*file, *stance, trouble))
    }

    /// Whether this one is not whole and counts all the same.
    pub(super) fn is_believed(&self, file: File) -> bool {
        matches!(self.0.get(&file), Some((Stance::Believed, _)))
    }

    /// How many they are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Something is wrong with `file`, since `since` if that was not told yet. Whether it is new, or the reason is.
    pub(super) fn miss(&mut self, file: File, stance: Stance, why: &Arc<str>, since: Instant) -> bool {
        let new = || (stance, Trouble { since, why: Arc::from("") });
        let (stood, trouble) = self.0.entry(file).or_insert_with(new);
        let news = (*stood, &trouble.why) != (stance, why);
        *stood = stance;
        trouble.why = Arc::clone(why);
        news
    }

    /// There is nothing wrong with `file`, or no such file is wanted. Whether that is new.
    pub(super) fn heal(&mut self, file: File) -> bool {
        self.0.remove(&file).is_some()
    }
}

impl FromIterator<(File, Stance, Trouble)> for Unread {
    fn from_iter<I: IntoIterator<Item = (File, Stance, Trouble)>>(files: I) -> Self {
        Self(files.into_iter().map(|(file, stance, trouble)| (file, (stance, trouble))).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_reason_is_news_once_and_the_time_is_that_of_the_first() {
        let (begun, later) = (Instant::now(), Instant::now() + Duration::from_secs(9));
        let file = File::Config(VmId::new(106).unwrap());
        let (one, other) = (Arc::from("one"), Arc::from("other"));
        let mut unread = Unread::default();
        assert!(!unread.heal(file));
        for (stance, why, now, news) in [
            (Stance::Kept, &one, begun, true),
            (Stance::Kept, &one, later, false),
            (Stance::Kept, &other, later, true),
            (Stance::Kept, &one, later, true),
            (Stance::Believed, &one, later, true),
            (Stance::Believed, &one, later, false),
        ] {
            assert_eq!(unread.miss(file, stance, why, now), news, "{stance:?} {why}");
            assert_eq!(unread.get(file), Some(&Trouble { since: begun, why: Arc::clone(why) }));
            assert_eq!(unread.is_believed(file), stance == Stance::Believed);
        }
        assert!(unread.heal(file));
        assert!(unread.miss(file, Stance::Kept, &one, later));
        assert_eq!(unread.get(file).map(|trouble| trouble.since), Some(later));
        assert!(unread.miss(File::Cluster("user.cfg"), Stance::Kept, &one, later));
        assert_eq!(unread.iter().map(|(file, ..)| file.to_string()).collect::<Vec<_>>(), ["user.cfg", "106.conf"]);
    }
}
