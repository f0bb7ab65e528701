//! Whether the service could read a file, told by whoever is not the service.
//!
//! In come a path and `/etc/group`; out goes `Ok`, or what on the way to the file does not let the service through. The
//! service is what `debian/pve-imds.service` makes of it: root, but without the capability that opens every file to root, and
//! in one more group. Access control lists are not looked at, nor groups that are not in `/etc/group`.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The group that the unit names, which debian/pve-imds.sysusers makes.
pub(super) const GROUP: &str = "pve-imds-token";

/// root, as a user and as a group.
const ROOT: u32 = 0;

/// In which groups the service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Service {
    /// `None`: this machine has no such group.
    pub(super) group: Option<u32>,
}

/// What it takes to get by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// To read a file.
    Read,
    /// To go through a directory.
    Search,
}

/// What does not let the service through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the service cannot {} {} (owner {owner}, group {group}, mode {mode:04o})", if *.needs == Needs::Read { "read" } else { "go through" }, .path.display())]
pub(super) struct Closed {
    path: PathBuf,
    needs: Needs,
    owner: u32,
    group: u32,
    mode: u32,
}

impl Service {
    /// As this machine's groups are.
    pub(super) fn here() -> Self {
        Self { group: fs::read_to_string("/etc/group").ok().and_then(|groups| gid(&groups, GROUP)) }
    }

    /// Whether it could read this file. The directories are those of the path as it is written, and those that it leads to.
    ///
    /// # Errors
    /// The outer one: somebody else may not even look.
    pub(super) fn reads(self, file: &Path) -> io::Result<Result<(), Closed>> {
        let real = file.canonicalize()?;
        let above = file.ancestors().skip(1).chain(real.ancestors().skip(1));
        // The outermost first: it is the one to be mended first.
        let mut way: Vec<_> = above.map(|path| (path, Needs::Search)).collect();
        way.sort_by_key(|(path, _)| path.components().count());
        way.push((&real, Needs::Read));
        for (path, needs) in way {
            let closed = |metadata: &Metadata| Closed {
                path: path.to_owned(),
                needs,
                owner: metadata.uid(),
                group: metadata.gid(),
                mode: metadata.mode() & 0o7777,
            };
            let metadata = fs::metadata(path)?;
            if !self.passes(needs, metadata.uid(), metadata.gid(), metadata.mode()) {
                return Ok(Err(closed(&metadata)));
            }
        }
        Ok(Ok(()))
    }

    /// The table: of the three parts of a mode one alone counts (path_resolution(7)).
    fn passes(self, needs: Needs, owner: u32, group: u32, mode: u32) -> bool {
        let bits = match (owner == ROOT, group == ROOT || Some(group) == self.group) {
            (true, _) => mode >> 6,
            (false, true) => mode >> 3,
            (false, false) => mode,
        };
        let needed = match needs {
            Needs::Read => 0o4,
            Needs::Search => 0o1,
        };
        bits & needed != 0
    }
}

impl Closed {
    /// The command that opens it.
    pub(super) fn mend(&self) -> String {
        let path = self.path.display();
        match (self.owner == ROOT, self.needs) {
            (true, Needs::Read) => format!("chmod u+r {path}"),
            (true, Needs::Search) => format!("chmod u+x {path}"),
            (false, Needs::Read) => {
                format!(
                    "chgrp {GROUP} {path} && chmod g+r {path}; and have whoever writes it do so each time (mode 0640)"
                )
            }
            (false, Needs::Search) => format!("chgrp {GROUP} {path} && chmod g+x {path}"),
        }
    }
}

/// The number of a group (group(5)).
fn gid(groups: &str, name: &str) -> Option<u32> {
    let line = groups.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn who_may_read_is_told_by_one_part_of_the_mode() {
        const OURS: Option<u32> = Some(990);
        for (needs, owner, group, mode, ours, expected) in [
            (Needs::Read, 0, 0, 0o600, OURS, true),
            (Needs::Read, 0, 33, 0o640, OURS, true),
            (Needs::Read, 0, 0, 0o060, OURS, false),
            (Needs::Read, 0, 990, 0o044, OURS, false),
            (Needs::Read, 500, 990, 0o640, OURS, true),
            (Needs::Read, 500, 990, 0o604, OURS, false),
            (Needs::Read, 500, 990, 0o640, None, false),
            (Needs::Read, 500, 0, 0o640, None, true),
            (Needs::Read, 500, 500, 0o640, OURS, false),
            (Needs::Read, 500, 500, 0o600, OURS, false),
            (Needs::Read, 500, 500, 0o604, OURS, true),
            (Needs::Read, 500, 500, 0o611, OURS, false),
            (Needs::Search, 0, 0, 0o700, OURS, true),
            (Needs::Search, 0, 0, 0o600, OURS, false),
            (Needs::Search, 500, 990, 0o2750, OURS, true),
            (Needs::Search, 500, 990, 0o2740, OURS, false),
            (Needs::Search, 500, 990, 0o2750, None, false),
            (Needs::Search, 500, 500, 0o711, OURS, true),
            (Needs::Search, 500, 500, 0o700, OURS, false),
            (Needs::Search, 500, 500, 0o744, OURS, false),
        ] {
            let passes = Service { group: ours }.passes(needs, owner, group, mode);
            assert_eq!(passes, expected, "{needs:?} {owner}:{group} {mode:04o} {ours:?}");
        }
    }

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let groups = "root:x:0:\nmy-pve-imds-token:x:1:\npve-imds-token2:x:2:\npve-imds-token:x:990:kim\nbroken\n";
        assert_eq!((gid(groups, GROUP), gid(groups, "root"), gid(groups, "broken")), (Some(990), Some(0), None));
        assert_eq!(gid("", GROUP), None);
    }

    /// Whoever owns the files here, an owner's bits that are missing close them to root as well as to that owner's others.
    #[test]
    fn what_is_closed_is_named_the_outermost_first() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let (inner, token, link) = (base.join("inner"), base.join("inner/token"), base.join("link"));
        fs::create_dir(&inner).unwrap();
        fs::write(&token, "x").unwrap();
        symlink(&token, &link).unwrap();
        set(&base, 0o755);
        let service = Service { group: None };
        for (file, directory, expected) in [
            (0o644, 0o755, None),
            (0o200, 0o755, Some(("read", &token))),
            (0o644, 0o400, Some(("go through", &inner))),
            (0o200, 0o400, Some(("go through", &inner))),
        ] {
            set(&token, file);
            set(&inner, directory);
            for path in [&token, &link] {
                let Ok(judged) = service.reads(path) else {
                    // Nobody but root gets to see what is in a directory that is closed to him.
                    assert_eq!(directory, 0o400);
                    continue;
                };
                let told = judged.map_err(|closed| closed.to_string());
                let expected = expected.map(|(deed, path)| format!("the service cannot {deed} {} (", path.display()));
                match (&told, &expected) {
                    (Ok(()), None) => {}
                    (Err(told), Some(expected)) => assert!(told.starts_with(expected), "{told}"),
                    _ => panic!("{file:o} {directory:o}: {told:?}"),
                }
            }
        }
        set(&inner, 0o755);
        assert!(service.reads(&base.join("none")).is_err());
    }

    #[test]
    fn what_opens_it_is_a_command() {
        let closed = |needs, owner| Closed { path: "/run/a".into(), needs, owner, group: 7, mode: 0 };
        for (needs, owner, mend) in [
            (Needs::Search, 500, "chgrp pve-imds-token /run/a && chmod g+x /run/a"),
            (Needs::Read, 500, "chgrp pve-imds-token /run/a && chmod g+r /run/a"),
            (Needs::Search, 0, "chmod u+x /run/a"),
            (Needs::Read, 0, "chmod u+r /run/a"),
        ] {
            assert!(closed(needs, owner).mend().starts_with(mend), "{}", closed(needs, owner).mend());
        }
    }
}
