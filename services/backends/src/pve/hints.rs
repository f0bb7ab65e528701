//! inotify's hints that something was written through this node.
//!
//! In come the directories to listen to; out go VMIDs, or that it was a file of the whole cluster. A hint may be missing, late, or wrong: it only says where to look
//! sooner. Only finished writes, moves and removals count, so that a file is not read half written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use notify::event::{AccessKind, AccessMode, Flag, ModifyKind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use pve_imds_model::vm::VmId;

use super::files::config_name;
use super::follow::CLUSTER_FILES;

/// The directories being listened to.
#[derive(Debug)]
pub(super) struct Hints {
    watcher: RecommendedWatcher,
    armed: BTreeMap<PathBuf, Identity>,
}

/// Which directory a path led to when it was armed: device, inode, and the life of pmxcfs, because a new mount may use
/// the numbers of the old one. Its watches are gone and nothing says so.
type Identity = (u64, u64, Option<u64>);

impl Hints {
    /// Listens to nothing yet. `hint` is called on inotify's thread; `None` stands for no VM's file, or for
    /// "some were lost".
    pub(super) fn new(hint: impl Fn(Option<VmId>) + Send + 'static) -> notify::Result<Self> {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            event.iter().flat_map(read).for_each(&hint);
        })?;
        Ok(Self { watcher, armed: BTreeMap::new() })
    }

    /// Listens to exactly `dirs`, as far as they exist. Whether one of them is new: what happened there before is unheard.
    pub(super) fn arm(&mut self, dirs: &BTreeSet<PathBuf>, start_time: Option<u64>) -> bool {
        let gone: Vec<_> = self.armed.keys().filter(|dir| !dirs.contains(*dir)).cloned().collect();
        for dir in gone {
            self.disarm(&dir);
        }
        let mut new = false;
        for dir in dirs {
            let identity = fs::metadata(dir).ok().map(|dir| (dir.dev(), dir.ino(), start_time));
            if self.armed.get(dir).copied() == identity {
                continue;
            }
            self.disarm(dir);
            if let Some(identity) = identity
                && self.watcher.watch(dir, RecursiveMode::NonRecursive).is_ok()
            {
                self.armed.insert(dir.clone(), identity);
                new = true;
            }
        }
        new
    }

    /// Listens to nothing: the tree has failed, and when it is back it may be another.
    pub(super) fn disarm_all(&mut self) {
        self.arm(&BTreeSet::new(), None);
    }

    fn disarm(&mut self, dir: &Path) {
        if self.armed.remove(dir).is_some() {
            // Fails for a directory that has vanished, and its watch with it.
            _ = self.watcher.unwatch(dir);
        }
    }
}

/// What an event hints at.
fn read(event: &notify::Event) -> Vec<Option<VmId>> {
    if event.attrs.flag() == Some(Flag::Rescan) {
        return vec![None];
    }
    match event.kind {
        // Reading a file is an event too: ours would follow each other for ever.
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Name(_))
        | EventKind::Remove(_) => event.paths.iter().filter_map(|path| subject(path)).collect(),
        _ => Vec::new(),
    }
}

/// Whose file it is: a VM's, the cluster's, or nobody's.
fn subject(path: &Path) -> Option<Option<VmId>> {
    let name = path.file_name()?.to_str()?;
    if CLUSTER_FILES.contains(&name) { Some(None) } else { config_name(name).map(Some) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    /// More than inotify ever takes, and reached only by a test that fails.
    const LONG: Duration = Duration::from_secs(5);

    fn hints() -> (Hints, Receiver<Option<VmId>>) {
        let (tx, rx) = channel();
        (Hints::new(move |vmid| _ = tx.send(vmid)).unwrap(), rx)
    }

    fn heard(rx: &Receiver<Option<VmId>>) -> Option<u32> {
        rx.recv_timeout(LONG).unwrap().map(VmId::get)
    }

    #[test]
    fn finished_writes_moves_and_removals_are_heard_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (mut hints, rx) = hints();
        assert!(hints.arm(&BTreeSet::from([dir.path().to_owned()]), None));
        let path = |name: &str| dir.path().join(name);

        // None of these is a hint; the first one that is comes after all of them.
        let mut file = fs::File::create(path("106.conf")).unwrap();
        std::io::Write::write_all(&mut file, b"name: half").unwrap();
        fs::write(path("107.conf.tmp.4711"), "name: x\n").unwrap();
        fs::write(path("notes.txt"), "x").unwrap();
        fs::read(path("106.conf")).unwrap();
        fs::rename(path("107.conf.tmp.4711"), path("107.conf")).unwrap();
        assert_eq!(heard(&rx), Some(107));
        drop(file);
        while heard(&rx) != Some(106) {}
        fs::remove_file(path("107.conf")).unwrap();
        assert_eq!(heard(&rx), Some(107));
    }

    #[test]
    fn a_directory_in_place_of_another_is_listened_to_anew() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("qemu-server");
        let dirs = BTreeSet::from([dir.clone()]);
        let (mut hints, rx) = hints();
        assert!(!hints.arm(&dirs, Some(1)), "it does not exist");
        fs::create_dir(&dir).unwrap();
        assert!(hints.arm(&dirs, Some(1)));
        assert!(!hints.arm(&dirs, Some(1)), "nothing is new");
        fs::rename(&dir, root.path().join("old")).unwrap();
        fs::create_dir(&dir).unwrap();
        assert!(hints.arm(&dirs, Some(1)));
        fs::write(dir.join("106.conf"), "name: x\n").unwrap();
        assert_eq!(heard(&rx), Some(106));
        assert!(hints.arm(&dirs, Some(2)), "another life of pmxcfs");
        hints.disarm_all();
        assert!(hints.arm(&dirs, Some(2)));
    }

    #[test]
    fn lost_events_are_a_hint_at_nobody_in_particular() {
        let event = notify::Event::new(EventKind::Other).set_flag(Flag::Rescan);
        assert_eq!(read(&event), [None]);
    }
}
