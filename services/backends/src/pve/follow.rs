//! The files of the whole cluster that decide about VMs: `user.cfg` for pools, `datacenter.cfg` for what tags are worth.
//!
//! In comes the tree and what `.version` counts of a file; out comes whether it says something else now. Where nobody
//! counts it is read each time and compared by digest. Refused: to replace what is known by a failure, or by an absence
//! that is not told twice, because pmxcfs can be unmounted between the list of VMs and this.

use std::panic;
use std::path::Path;
use std::sync::Arc;

use pve_imds_model::chain;

use super::files;
use super::inventory::Digest;

/// Who has an account, a right, a pool.
pub(super) const USERS: &str = "user.cfg";

/// The settings of the whole cluster.
pub(super) const DATACENTER: &str = "datacenter.cfg";

/// All of them.
pub(super) const CLUSTER_FILES: [&str; 2] = [USERS, DATACENTER];

/// Which edition of a file was read: the life of pmxcfs, and the count in it.
pub(super) type Edition = (u64, u64);

/// A file, what it said when it could be read last, and how that is known.
pub(super) struct Follow<T> {
    parse: fn(&[u8]) -> T,
    said: Arc<T>,
    /// Of the bytes that said so; none for a file that is not there.
    digest: Option<Digest>,
    seen: Option<Edition>,
    missed: bool,
    complaint: Option<Arc<str>>,
}

/// What a look at the file came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Followed {
    /// It says what it said.
    Same,
    /// It says something else.
    Changed,
    /// It could not be read; what it said last stays. With the reason, if that was not told yet.
    Kept(Option<Arc<str>>),
}

impl<T: Default> Follow<T> {
    /// Nothing is known yet: as if the file were not there.
    pub(super) fn new(parse: fn(&[u8]) -> T) -> Self {
        Self { parse, said: Arc::default(), digest: None, seen: None, missed: false, complaint: None }
    }

    /// What it said last.
    pub(super) fn said(&self) -> &Arc<T> {
        &self.said
    }

    /// Why it cannot be read now, if it cannot.
    pub(super) fn complaint(&self) -> Option<Arc<str>> {
        self.complaint.clone()
    }

    /// Reads the file, unless it is counted and the count is known.
    pub(super) fn look(&mut self, path: &Path, edition: Option<Edition>) -> Followed {
        if edition.is_some() && self.seen == edition {
            return Followed::Same;
        }
        let (digest, said) = match self.fetch(path) {
            Ok(Some((digest, said))) => (Some(digest), Some(said)),
            Ok(None) => (self.digest, None),
            Err(None) if self.digest.is_none() => (None, None),
            Err(None) if self.missed => (None, Some(T::default())),
            Err(reason) => {
                self.seen = None;
                self.missed = reason.is_none();
                // A first absence is not worth a word: the next look tells what it means.
                let news = reason.is_some() && self.complaint != reason;
                self.complaint.clone_from(&reason);
                return Followed::Kept(reason.filter(|_| news));
            }
        };
        self.seen = edition;
        self.digest = digest;
        self.missed = false;
        self.complaint = None;
        match said {
            Some(said) => {
                self.said = Arc::new(said);
                Followed::Changed
            }
            None => Followed::Same,
        }
    }

    /// Reads and parses. `Ok(None)`: the bytes we know. `Err(None)`: there is no such file.
    fn fetch(&self, path: &Path) -> Result<Option<(Digest, T)>, Option<Arc<str>>> {
        let bytes = files::read(path).map_err(|error| (!error.is_absent()).then(|| chain(&error).into()))?;
        let digest = Digest::of(&bytes);
        if self.digest == Some(digest) {
            return Ok(None);
        }
        let parse = self.parse;
        let said = panic::catch_unwind(|| parse(&bytes)).map_err(|_| Some("the parser failed".into()))?;
        Ok(Some((digest, said)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn text(bytes: &[u8]) -> String {
        assert_ne!(bytes, b"bad", "as a parser's fault");
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// What a file holds, or that it is something else.
    enum Is<'a> {
        Text(&'a str),
        Absent,
        Unreadable,
    }

    fn make(path: &Path, is: &Is<'_>) {
        _ = fs::remove_file(path);
        _ = fs::remove_dir(path);
        match is {
            Is::Text(text) => fs::write(path, text).unwrap(),
            Is::Absent => {}
            Is::Unreadable => fs::create_dir(path).unwrap(),
        }
    }

    fn kept(followed: &Followed) -> &str {
        match followed {
            Followed::Same => "same",
            Followed::Changed => "changed",
            Followed::Kept(Some(_)) => "kept, told",
            Followed::Kept(None) => "kept",
        }
    }

    #[test]
    fn a_file_is_followed_by_its_count_and_by_its_bytes() {
        use Is::{Absent, Text, Unreadable};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("user.cfg");
        let mut follow = Follow::new(text);
        for (at, (is, edition, expected, said)) in [
            (Absent, None, "same", ""),
            (Absent, Some((1, 1)), "same", ""),
            (Text("a"), Some((1, 1)), "same", ""),
            (Text("a"), Some((1, 2)), "changed", "a"),
            (Text("b"), Some((1, 2)), "same", "a"),
            (Text("b"), Some((2, 2)), "changed", "b"),
            (Text("b"), Some((2, 1)), "same", "b"),
            (Text("c"), None, "changed", "c"),
            (Text("d"), None, "changed", "d"),
            (Unreadable, None, "kept, told", "d"),
            (Unreadable, Some((2, 3)), "kept", "d"),
            (Text("e"), Some((2, 3)), "changed", "e"),
            (Unreadable, Some((2, 4)), "kept, told", "e"),
            (Text("bad"), Some((2, 4)), "kept, told", "e"),
            (Absent, Some((2, 5)), "kept", "e"),
            (Text("e"), Some((2, 5)), "same", "e"),
            (Absent, Some((2, 6)), "kept", "e"),
            (Unreadable, Some((2, 6)), "kept, told", "e"),
            (Absent, Some((2, 6)), "kept", "e"),
            (Absent, Some((2, 6)), "changed", ""),
            (Absent, Some((2, 7)), "same", ""),
        ]
        .into_iter()
        .enumerate()
        {
            make(&path, &is);
            let followed = follow.look(&path, edition);
            assert_eq!((kept(&followed), follow.said().as_str()), (expected, said), "row {at}");
        }
    }
}
