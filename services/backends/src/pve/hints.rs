//! inotify's hints that a configuration was written through this node.
//!
//! In come the directories to listen to; out go VMIDs. A hint may be missing, late, or wrong: it only says where to look
//! sooner. Only finished writes, moves and removals count, so that a file is not read half written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use notify::event::{AccessKind, AccessMode, Flag, ModifyKind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use pve_imds_model::vm::VmId;

use super::files::config_name;

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
    /// Listens to nothing yet. `hint` is called on inotify's thread; `None` stands for "some were lost".
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
        | EventKind::Remove(_) => event.paths.iter().filter_map(|path| vmid(path)).map(Some).collect(),
        _ => Vec::new(),
    }
}

fn vmid(path: &Path) -> Option<VmId> {
    config_name(path.file_name()?.to_str()?)
}
