//! The files of the whole cluster that decide about VMs: `user.cfg` for pools, `datacenter.cfg` for what tags are worth.
//!
//! In comes the tree and what `.version` counts of a file; out comes whether it says something else now. Where nobody
//! counts it is read each time and compared by digest. Refused: to replace what is known by a failure, and, for as long as
//! somebody may be writing, by half a file or none. pmxcfs can also be unmounted between the list of VMs and this. Without
//! its pools a VM has no right more, but an operator who left a pool out would find it served: so what then counts is told.

use std::panic;
use std::path::Path;
use std::sync::Arc;

use pve_imds_model::chain;
use tokio::time::Instant;

use super::files;
use super::inventory::Digest;
use super::outline::Outline;
use super::unread::Stance;
use super::verdict::{Doubt, Found, Sign, Verdict};

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
    /// Proxmox leaves it empty when there is nothing to say.
    may_be_blank: bool,
    said: Arc<T>,
    /// Of the bytes that said so; none for a file that is not there.
    digest: Option<Digest>,
    /// Their lines.
    outline: Outline,
    seen: Option<Edition>,
    doubt: Doubt,
    complaint: Option<Arc<str>>,
}

/// An edition that was not known yet.
struct Fresh<T> {
    said: T,
    digest: Option<Digest>,
    outline: Outline,
    /// By what it is known to be half of something, whatever stood there before.
    flaw: Option<Sign>,
}

/// What a look at the file came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Followed {
    /// It says what it said.
    Same,
    /// It says something else.
    Changed,
    /// It cannot be used; what it said last stays. With the reason, if that was not told yet.
    Kept(Option<Arc<str>>),
}

impl<T: Default + PartialEq> Follow<T> {
    /// Nothing is known yet: as if the file were not there.
    pub(super) fn new(parse: fn(&[u8]) -> T) -> Self {
        Self {
            parse,
            may_be_blank: false,
            said: Arc::default(),
            digest: None,
            outline: Outline::default(),
            seen: None,
            doubt: Doubt::default(),
            complaint: None,
        }
    }

    /// The same, of a file that Proxmox leaves empty when there is nothing to say.
    pub(super) fn often_blank(parse: fn(&[u8]) -> T) -> Self {
        Self { may_be_blank: true, ..Self::new(parse) }
    }

    /// What it said last.
    pub(super) fn said(&self) -> &Arc<T> {
        &self.said
    }

    /// What is wrong with it, what counts meanwhile, and since when at the latest.
    pub(super) fn trouble(&self, now: Instant) -> Option<(Stance, Arc<str>, Instant)> {
        match &self.complaint {
            Some(why) => Some((Stance::Kept, Arc::clone(why), now)),
            None => self.doubt.lasting(now).map(|(since, sign)| (Stance::Believed, sign.to_string().into(), since)),
        }
    }

    /// Reads the file, unless it is counted and the count is known.
    pub(super) fn look(&mut self, path: &Path, edition: Option<Edition>, now: Instant) -> Followed {
        if edition.is_some() && self.seen == edition {
            return Followed::Same;
        }
        let fresh = self.fetch(path);
        let found = match &fresh {
            Ok(None) => Found::Same,
            Ok(Some(fresh)) => self.found(fresh),
            Err(_) => Found::Unreadable,
        };
        if self.doubt.judge(found, !self.outline.is_empty(), now) == Verdict::Keep {
            let reason = match (fresh, found) {
                (Err(reason), _) => reason,
                (Ok(_), Found::Half(sign)) => sign.to_string().into(),
                // The table keeps nothing else.
                (Ok(_), _) => Arc::default(),
            };
            self.seen = None;
            let news = self.complaint.as_ref() != Some(&reason);
            self.complaint = Some(Arc::clone(&reason));
            return Followed::Kept(news.then_some(reason));
        }
        self.seen = edition;
        self.complaint = None;
        let Ok(Some(Fresh { said, digest, outline, flaw })) = fresh else { return Followed::Same };
        self.doubt.believe(flaw.filter(|sign| self.is_odd(*sign)), now);
        (self.said, self.digest, self.outline) = (Arc::new(said), digest, outline);
        Followed::Changed
    }

    /// What it is, after what was known.
    fn found(&self, fresh: &Fresh<T>) -> Found {
        match fresh.flaw {
            // Who lives with such a line may go on editing the others.
            Some(Sign::Damaged { .. }) if matches!(self.doubt.flaw(), Some(Sign::Damaged { .. })) => Found::Content,
            Some(sign) => Found::Half(sign),
            None if fresh.outline.is_cut_from(&self.outline) && fresh.said != *self.said => Found::Half(Sign::Cut),
            None => Found::Content,
        }
    }

    /// Whether a file that stays so is a fault. Where there never was anything, as without Proxmox, nothing is missing.
    fn is_odd(&self, sign: Sign) -> bool {
        let was_there = !self.outline.is_empty() || self.doubt.flaw().is_some();
        match sign {
            Sign::Blank => was_there && !self.may_be_blank,
            Sign::Gone => was_there,
            _ => true,
        }
    }

    /// Reads and parses. `Ok(None)`: the bytes we know, or none as before.
    fn fetch(&self, path: &Path) -> Result<Option<Fresh<T>>, Arc<str>> {
        let bytes = match files::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.is_absent() => {
                let gone =
                    || Fresh { said: T::default(), digest: None, outline: Outline::default(), flaw: Some(Sign::Gone) };
                return Ok(self.digest.map(|_| gone()));
            }
            Err(error) => return Err(chain(&error).into()),
        };
        let digest = Digest::of(&bytes);
        if self.digest == Some(digest) {
            return Ok(None);
        }
        let parse = self.parse;
        let said = panic::catch_unwind(|| parse(&bytes)).map_err(|_| Arc::from("the parser failed"))?;
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        Ok(Some(Fresh { said, digest: Some(digest), outline: Outline::of(lines), flaw: flaw(&bytes) }))
    }
}

/// By what a file is known to be half. Both consist of `word:…` and, in one of them, of remarks.
pub(super) fn flaw(bytes: &[u8]) -> Option<Sign> {
    let is_stray = |line: &&[u8]| {
        let line = line.trim_ascii();
        !line.is_empty() && !line.starts_with(b"#") && !line.contains(&b':')
    };
    let mut lines = (1..).zip(bytes.split(|byte| *byte == b'\n'));
    if bytes.trim_ascii().is_empty() {
        Some(Sign::Blank)
    } else if !bytes.ends_with(b"\n") {
        Some(Sign::OpenLine)
    } else {
        lines.find(|(_, line)| is_stray(line)).map(|(line, _)| Sign::Damaged { line })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::super::verdict::WRITING;
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
            (Text("a:\n"), Some((1, 1)), "same", ""),
            (Text("a:\n"), Some((1, 2)), "changed", "a:\n"),
            (Text("b:\n"), Some((1, 2)), "same", "a:\n"),
            (Text("b:\n"), Some((2, 2)), "changed", "b:\n"),
            (Text("b:\n"), Some((2, 1)), "same", "b:\n"),
            (Text("c:\n"), None, "changed", "c:\n"),
            (Text("d:\n"), None, "changed", "d:\n"),
            (Unreadable, None, "kept, told", "d:\n"),
            (Unreadable, Some((2, 3)), "kept", "d:\n"),
            (Text("e:\n"), Some((2, 3)), "changed", "e:\n"),
            (Unreadable, Some((2, 4)), "kept, told", "e:\n"),
            (Text("bad"), Some((2, 4)), "kept, told", "e:\n"),
            (Absent, Some((2, 5)), "kept, told", "e:\n"),
            (Text("e:\n"), Some((2, 5)), "same", "e:\n"),
            (Absent, Some((2, 6)), "kept, told", "e:\n"),
            (Unreadable, Some((2, 6)), "kept, told", "e:\n"),
            (Absent, Some((2, 6)), "kept, told", "e:\n"),
            (Absent, Some((2, 6)), "kept", "e:\n"),
        ]
        .into_iter()
        .enumerate()
        {
            make(&path, &is);
            let followed = follow.look(&path, edition, Instant::now());
            assert_eq!((kept(&followed), follow.said().as_str()), (expected, said), "row {at}");
        }
    }

    #[test]
    fn half_a_file_or_none_counts_when_it_stays_and_is_told() {
        use Is::{Absent, Text};
        const WHOLE: &str = "user:root@pam:1:\n\npool:a::106:\npool:b::107:\n\nacl:1:/:root@pam:x:\n";
        let half = "user:root@pam:1:\n\npool:a::10";
        // What it is, what it is when it stays: of a file that is never empty, and of one that may be.
        for (is, why, may_be_blank_why) in [
            (Absent, Some("it is not there any more"), Some("it is not there any more")),
            (Text(""), Some("it is empty"), None),
            (Text("\n \n"), Some("it is empty"), None),
            (Text(half), Some("its last line has no end"), Some("its last line has no end")),
            (Text("\u{0}\u{1}\n:\n"), Some("it is damaged: line 1"), Some("it is damaged: line 1")),
            (Text("user:root@pam:1:\n\npool:a::106:\n"), None, None),
        ] {
            for (mut follow, why) in [(Follow::new(text), why), (Follow::often_blank(text), may_be_blank_why)] {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("user.cfg");
                let mut now = Instant::now();
                let begun = now;
                make(&path, &Text(WHOLE));
                assert_eq!(follow.look(&path, None, now), Followed::Changed);
                make(&path, &is);
                assert_eq!(kept(&follow.look(&path, Some((1, 1)), now)), "kept, told", "{why:?}");
                now += WRITING - Duration::from_millis(1);
                assert_eq!(kept(&follow.look(&path, Some((1, 1)), now)), "kept", "{why:?}");
                assert_eq!(follow.said().as_str(), WHOLE);
                assert!(matches!(follow.trouble(now), Some((Stance::Kept, ..))));

                now += Duration::from_millis(1);
                assert_eq!(follow.look(&path, Some((1, 1)), now), Followed::Changed, "{why:?}");
                assert_ne!(follow.said().as_str(), WHOLE);
                for _ in 0..2 {
                    let told = follow.trouble(now).map(|(stance, told, since)| (stance, told.to_string(), since));
                    let expected = why.map(|why| (Stance::Believed, why, begun));
                    let cut =
                        |why: String| why.get(..expected.map_or(0, |(_, why, _)| why.len())).unwrap_or("").to_owned();
                    let told = told.map(|(stance, why, since)| (stance, cut(why), since));
                    assert_eq!(told, expected.map(|(stance, why, since)| (stance, why.to_owned(), since)));
                    now += WRITING;
                    assert_eq!(follow.look(&path, None, now), Followed::Same, "{why:?}");
                }
                make(&path, &Text(WHOLE));
                assert_eq!(follow.look(&path, None, now), Followed::Changed, "{why:?}");
                assert_eq!(follow.trouble(now), None, "{why:?}");
            }
        }
    }

    #[test]
    fn what_never_was_there_is_not_missed_and_an_edit_is_no_cut() {
        use Is::{Absent, Text};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("user.cfg");
        let (mut follow, mut now) = (Follow::new(text), Instant::now());
        for (is, expected) in [
            (Absent, "same"),
            (Text(""), "changed"),
            (Absent, "changed"),
            (Text("a:\nb:\nc:\n# d\n"), "changed"),
            (Text("a:\nb:\nc:\n"), "changed"),
            (Text("a:\nc:\n"), "changed"),
            (Text("a:\n"), "changed"),
        ] {
            make(&path, &is);
            assert_eq!(kept(&follow.look(&path, None, now)), expected);
            now += WRITING;
            assert_eq!(kept(&follow.look(&path, None, now)), "same");
            assert_eq!(follow.trouble(now), None);
        }
        // One that is not whole when it is seen first is believed, and told of.
        let mut follow = Follow::new(text);
        make(&path, &Text("a:"));
        assert_eq!(follow.look(&path, None, now), Followed::Changed);
        assert_eq!(follow.trouble(now), None);
        assert!(matches!(follow.trouble(now + WRITING), Some((Stance::Believed, ..))));
    }
}
