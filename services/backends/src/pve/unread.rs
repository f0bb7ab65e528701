//! What should have been read and could not be: which file, since when and why.
//!
//! In come the failures and the successes of the looks; out goes what is still missing, for health, metrics and the
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

/// The files that cannot be used, whether something is known of them from before or not.
#[derive(Clone, Debug, Default)]
pub struct Unread(BTreeMap<File, Trouble>);

impl Unread {
    /// Why this one cannot be used, if it cannot.
    #[must_use]
    pub fn get(&self, file: File) -> Option<&Trouble> {
        self.0.get(&file)
    }

    /// All of them, those of the cluster first, then by VMID.
    pub fn iter(&self) -> impl Iterator<Item = (File, &Trouble)> {
        self.0.iter().map(|(file, trouble)| (*file, trouble))
    }

    /// How many they are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// `file` cannot be used now. Whether that, or the reason, is new.
    pub(super) fn miss(&mut self, file: File, why: &Arc<str>, now: Instant) -> bool {
        let new = || Trouble { since: now, why: Arc::from("") };
        let trouble = self.0.entry(file).or_insert_with(new);
        let news = trouble.why != *why;
        trouble.why = Arc::clone(why);
        news
    }

    /// There is nothing wrong with `file`, or no such file is wanted. Whether that is new.
    pub(super) fn heal(&mut self, file: File) -> bool {
        self.0.remove(&file).is_some()
    }
}

impl FromIterator<(File, Trouble)> for Unread {
    fn from_iter<I: IntoIterator<Item = (File, Trouble)>>(files: I) -> Self {
        Self(files.into_iter().collect())
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
        for (why, now, news) in [(&one, begun, true), (&one, later, false), (&other, later, true), (&one, later, true)]
        {
            assert_eq!(unread.miss(file, why, now), news, "{why}");
            assert_eq!(unread.get(file), Some(&Trouble { since: begun, why: Arc::clone(why) }));
        }
        assert!(unread.heal(file));
        assert!(unread.miss(file, &one, later));
        assert_eq!(unread.get(file).map(|trouble| trouble.since), Some(later));
        assert!(unread.miss(File::Cluster("user.cfg"), &one, later));
        assert_eq!(unread.iter().map(|(file, _)| file.to_string()).collect::<Vec<_>>(), ["user.cfg", "106.conf"]);
    }
}
