//! Files below `/etc/pve`: bounded reads, the lists of VMs, nothing remembered.
//!
//! In comes a directory; out come bytes and names that were checked. Every call opens, looks and reads anew: pmxcfs builds
//! its status files when their attributes are fetched, so a descriptor kept open shows old content for ever. Every call
//! may block for as long as the mount hangs. Refused: files over 1 MiB (pmxcfs allows no larger one), anything that is not
//! a regular file, names that are no VM's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind::NotADirectory, ErrorKind::NotFound};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pve_imds_model::vm::VmId;
use rustix::io::Errno;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::nodes::is_node_name;
use crate::bounded::{self, Links, Unread};

/// pmxcfs refuses larger files (`MEMDB_MAX_FILE_SIZE`), so a larger one is no configuration.
const MAX_FILE: usize = 1 << 20;

/// Many times a private key's file, in bytes.
const MAX_KEY: usize = 16 << 10;

/// Two readers of a long status file can take each other's buffer; the next read is whole again.
const STATUS_TRIES: usize = 3;

/// Why something below the tree could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{}", .0.display())]
    Io(PathBuf, #[source] io::Error),
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    #[error("{} is larger than {limit} bytes", .0.display(), limit = .1)]
    TooLarge(PathBuf, usize),
    #[error("{} is not what Proxmox writes there", .0.display())]
    Malformed(PathBuf),
    #[error("{} holds neither .vmlist nor nodes nor qemu-server", .0.display())]
    NoTree(PathBuf),
}

impl ReadError {
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Io(_, error) if error.kind() == NotFound)
    }
}

/// Where a node's configurations are. One for all its VMs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The node.
    pub(super) owner: Arc<str>,
    /// Its directory.
    pub(super) dir: PathBuf,
}

/// Where a VM's configuration is, and which edition of it the cluster knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// The node's directory, which holds the file.
    pub(super) place: Arc<Place>,
    /// Changes with every write to the file. `None`: nobody counts, only reading tells.
    pub(super) version: Option<u64>,
}

/// All VMs there are.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Changes with every write to any of their files, and says that the list is complete: `.vmlist`'s. `None`: a walk
    /// over the directories came by them, and may have missed a file that was being renamed.
    pub(super) version: Option<u64>,
    /// The VMs.
    pub(super) vms: BTreeMap<VmId, Listed>,
}

/// What `.version` says: numbers that change with what they count, in no order, and only within one life of pmxcfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Counts {
    /// Which life that is: when it changes, every count has begun anew.
    #[serde(rename = "starttime")]
    pub(super) start_time: u64,
    /// What `.vmlist` calls its `version`.
    pub(super) vmlist: Option<u64>,
    /// Writes of `user.cfg`.
    #[serde(rename = "user.cfg")]
    pub(super) users: Option<u64>,
    /// Writes of `datacenter.cfg`.
    #[serde(rename = "datacenter.cfg")]
    pub(super) datacenter: Option<u64>,
}

/// The directory and whose it is.
#[derive(Debug)]
pub(super) struct Tree {
    dir: PathBuf,
    node: Arc<str>,
}

impl Tree {
    pub(super) fn new(dir: PathBuf, node: &str) -> Self {
        Self { dir, node: node.into() }
    }

    /// Where it is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What `.version` counts. Absent: nobody counts, or not now.
    pub(super) fn counts(&self) -> Result<Counts, ReadError> {
        self.status(".version", |bytes| serde_json::from_slice(bytes).ok())
    }

    /// A file of the whole cluster.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The VMs by `.vmlist`; where there is none, or none that can be understood, by a walk.
    pub(super) fn list(&self) -> Result<Listing, ReadError> {
        match self.counted() {
            Err(ReadError::Malformed(_)) => self.walk(),
            Err(error) if error.is_absent() => self.walk(),
            counted => counted,
        }
    }

    /// The VMs by `.vmlist` alone.
    pub(super) fn counted(&self) -> Result<Listing, ReadError> {
        self.status(".vmlist", |bytes| self.listing(bytes))
    }

    /// What the bytes of a `.vmlist` say.
    fn listing(&self, bytes: &[u8]) -> Option<Listing> {
        #[derive(Deserialize)]
        struct VmList {
            // Always there, and so the proof that this is the list: one without guests has nothing else.
            version: u64,
            #[serde(default)]
            ids: BTreeMap<String, Guest>,
        }
        #[derive(Deserialize)]
        struct Guest {
            node: String,
            #[serde(rename = "type")]
            kind: String,
            version: u64,
        }

        let list: VmList = serde_json::from_slice(bytes).ok()?;
        let mut places = BTreeMap::new();
        let mut vms = BTreeMap::new();
        for (id, Guest { node, kind, version }) in list.ids {
            let Some(vmid) = VmId::parse(&id).filter(|_| kind == "qemu" && is_node_name(&node)) else { continue };
            let place = places.entry(node).or_insert_with_key(|node| self.place(node));
            vms.insert(vmid, Listed { place: Arc::clone(place), version: Some(version) });
        }
        Some(Listing { version: Some(list.version), vms })
    }

    /// The VMs by the files there are: below `nodes`, else in `qemu-server`. pmxcfs allows a VMID once in a cluster;
    /// elsewhere our own node's file wins, then the first by node name.
    fn walk(&self) -> Result<Listing, ReadError> {
        let mut vms = BTreeMap::new();
        let nodes = match names(&self.dir.join("nodes")) {
            Err(error) if error.is_absent() => None,
            nodes => Some(nodes?),
        };
        let Some(nodes) = nodes else {
            let place = Place { owner: Arc::clone(&self.node), dir: self.dir.join("qemu-server") };
            return match names(&place.dir) {
                Err(error) if error.is_absent() => Err(ReadError::NoTree(self.dir.clone())),
                found => {
                    collect(&mut vms, place.into(), &found?);
                    Ok(Listing { version: None, vms })
                }
            };
        };
        let others = nodes.iter().map(String::as_str).filter(|node| is_node_name(node) && **node != *self.node);
        for node in iter::once(&*self.node).chain(others) {
            let place = self.place(node);
            match names(&place.dir) {
                // A node's directory without VMs, or a file among the nodes.
                Err(ReadError::Io(_, error)) if matches!(error.kind(), NotFound | NotADirectory) => {}
                found => collect(&mut vms, place, &found?),
            }
        }
        Ok(Listing { version: None, vms })
    }

    /// The directory of a node's configurations.
    fn configs(&self, node: &str) -> PathBuf {
        self.dir.join("nodes").join(node).join("qemu-server")
    }

    fn place(&self, node: &str) -> Arc<Place> {
        Arc::new(Place { owner: node.into(), dir: self.configs(node) })
    }

    /// Where changes to be heard of happen: the directories of `listing`, our own, which may hold none yet, and that of
    /// the cluster's files.
    pub(super) fn dirs(&self, listing: &Listing) -> BTreeSet<PathBuf> {
        let own = self.configs(&self.node);
        let own = if own.is_dir() { own } else { self.dir.join("qemu-server") };
        let mut dirs = BTreeSet::from([own, self.dir.clone()]);
        for Listed { place, .. } in listing.vms.values() {
            if !dirs.contains(&place.dir) {
                dirs.insert(place.dir.clone());
            }
        }
        dirs
    }

    fn status<T>(&self, name: &str, parse: impl Fn(&[u8]) -> Option<T>) -> Result<T, ReadError> {
        let path = self.dir.join(name);
        for _ in 0..STATUS_TRIES {
            if let Some(value) = parse(&read(&path)?) {
                return Ok(value);
            }
        }
        Err(ReadError::Malformed(path))
    }
}

/// The VMID in the name of a configuration file: `^[1-9][0-9]*\.conf$`, in range. Proxmox writes through
/// `106.conf.tmp.4711`, which is none.
pub(super) fn config_name(name: &str) -> Option<VmId> {
    VmId::parse(name.strip_suffix(".conf")?)
}

impl Listed {
    /// The VM's file.
    pub(super) fn path(&self, vmid: VmId) -> PathBuf {
        self.place.dir.join(format!("{vmid}.conf"))
    }
}

fn collect(vms: &mut BTreeMap<VmId, Listed>, place: Arc<Place>, names: &BTreeSet<String>) {
    for vmid in names.iter().filter_map(|name| config_name(name)) {
        vms.entry(vmid).or_insert_with(|| Listed { place: Arc::clone(&place), version: None });
    }
}

/// The names in a directory, sorted; those that are not text are nobody's.
pub(super) fn names(dir: &Path) -> Result<BTreeSet<String>, ReadError> {
    let failed = |error| ReadError::Io(dir.to_owned(), error);
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// The bytes of one file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    read_into(&mut bytes, path, MAX_FILE)?;
    Ok(bytes)
}

/// The bytes of a file that holds a private key, wiped when dropped. There is room for all of them from the start, so
/// that none are left behind where they were first.
pub(super) fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, ReadError> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_KEY + 1));
    read_into(&mut bytes, path, MAX_KEY)?;
    Ok(bytes)
}

fn read_into(bytes: &mut Vec<u8>, path: &Path, limit: usize) -> Result<(), ReadError> {
    bounded::read_into(bytes, path, Links::Refused, limit).map_err(|unread| match unread {
        // A link; a socket, a device that is not there.
        Unread::Io(error) if matches!(Errno::from_io_error(&error), Some(Errno::LOOP | Errno::NXIO)) => {
            ReadError::NotRegular(path.to_owned())
        }
        Unread::Io(error) => ReadError::Io(path.to_owned(), error),
        Unread::NotRegular => ReadError::NotRegular(path.to_owned()),
        Unread::TooLarge => ReadError::TooLarge(path.to_owned(), limit),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;
    use crate::testing::PveTree;

    const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/cluster-files");

    fn tree(tree: &PveTree) -> Tree {
        Tree::new(tree.path().to_owned(), "pvetest")
    }

    /// What a listing says, one word a VM.
    fn said(listing: &Listing) -> Vec<String> {
        let how = if listing.version.is_some() { "counted" } else { "walked" };
        let vms = listing.vms.iter();
        vms.map(|(vmid, listed)| format!("{how} {vmid} {} {:?}", listed.place.owner, listed.version)).collect()
    }

    #[test]
    fn only_a_vms_file_has_a_vms_name() {
        for (name, expected) in [
            ("106.conf", Some(106)),
            ("999999999.conf", Some(999_999_999)),
            ("106.conf.tmp.4711", None),
            ("0106.conf", None),
            ("99.conf", None),
            ("1000000000.conf", None),
            ("106", None),
            ("106.CONF", None),
            (".conf", None),
            ("-106.conf", None),
            ("106.conf.conf", None),
        ] {
            assert_eq!(config_name(name).map(VmId::get), expected, "{name}");
        }
    }

    #[test]
    fn the_list_names_vms_their_owners_and_their_counts() {
        let pve = PveTree::cluster("pvetest").unwrap();
        fs::copy(format!("{FIXTURES}/vmlist.json"), pve.path().join(".vmlist")).unwrap();
        let listing = tree(&pve).list().unwrap();
        assert_eq!(said(&listing), ["counted 100 other Some(6)", "counted 105 pvetest Some(8)"]);
    }

    #[test]
    fn every_prefix_and_every_changed_byte_of_a_status_file_is_read() {
        let tree = Tree::new(PathBuf::from("/pve"), "pvetest");
        let holds = |bytes: &[u8]| {
            let _ = serde_json::from_slice::<Counts>(bytes);
            // Whatever a list says, no file outside a node's directory is read for it.
            for (vmid, listed) in tree.listing(bytes).map(|list| list.vms).unwrap_or_default() {
                let owner = Path::new(&*listed.place.owner);
                assert_eq!(owner.components().count(), 1, "{owner:?}");
                assert_eq!(
                    listed.path(vmid),
                    Path::new("/pve/nodes").join(owner).join(format!("qemu-server/{vmid}.conf"))
                );
            }
        };
        for name in ["vmlist.json", "vmlist-empty.json", "version-cluster.json", "members-cluster.json"] {
            let whole = fs::read(format!("{FIXTURES}/{name}")).unwrap();
            (0..=whole.len()).for_each(|length| holds(&whole[..length]));
            let mut changed = whole.clone();
            for at in 0..whole.len() {
                for byte in 0..=255 {
                    changed[at] = byte;
                    holds(&changed);
                }
                changed[at] = whole[at];
            }
        }
    }

    #[test]
    fn a_list_without_guests_is_a_list() {
        let pve = PveTree::cluster("pvetest").unwrap();
        fs::copy(format!("{FIXTURES}/vmlist-empty.json"), pve.path().join(".vmlist")).unwrap();
        assert!(matches!(tree(&pve).list(), Ok(list) if list.version == Some(0) && list.vms.is_empty()));
    }

    #[test]
    fn a_nodes_name_in_the_list_is_no_path() {
        let pve = PveTree::cluster("pvetest").unwrap();
        for (node, listed) in [("pve-1", true), ("../../etc", false), ("..", false), ("", false), ("a/b", false)] {
            let list = serde_json::json!({"version": 1, "ids": {"106": {"node": node, "type": "qemu", "version": 1}}});
            fs::write(pve.path().join(".vmlist"), list.to_string()).unwrap();
            assert_eq!(said(&tree(&pve).list().unwrap()).len(), usize::from(listed), "{node}");
        }
    }

    #[test]
    fn the_counts_are_of_one_life_of_the_file_system() {
        let pve = PveTree::plain("pvetest").unwrap();
        assert!(matches!(tree(&pve).counts(), Err(error) if error.is_absent()));
        fs::copy(format!("{FIXTURES}/version-cluster.json"), pve.path().join(".version")).unwrap();
        assert_eq!(
            tree(&pve).counts().unwrap(),
            Counts { start_time: 1_796_172_582, vmlist: Some(42), users: Some(5), datacenter: Some(3) }
        );
    }

    #[test]
    fn without_a_list_that_can_be_understood_the_directories_are_walked() {
        for list in [
            None,
            Some(""),
            Some("{\"version\": 1, \"ids\": {\"106\""),
            Some("[]"),
            Some("{}"),
            Some("{\"version\": 1, \"ids\": 3}"),
        ] {
            let mut pve = PveTree::uncounted("pvetest").unwrap();
            pve.put(106, "name: here\n").unwrap();
            pve.put(107, "name: there\n").unwrap();
            pve.migrate(107, "other").unwrap();
            if let Some(list) = list {
                fs::write(pve.path().join(".vmlist"), list).unwrap();
            }
            assert_eq!(said(&tree(&pve).list().unwrap()), ["walked 106 pvetest None", "walked 107 other None"]);
        }
    }

    #[test]
    fn of_two_files_of_one_vm_ours_counts() {
        for (node, expected) in [("b", "walked 106 b None"), ("c", "walked 106 a None")] {
            let pve = PveTree::uncounted("a").unwrap();
            for owner in ["a", "b"] {
                let dir = pve.path().join("nodes").join(owner).join("qemu-server");
                fs::create_dir_all(&dir).unwrap();
                fs::write(dir.join("106.conf"), "name: x\n").unwrap();
            }
            assert_eq!(said(&Tree::new(pve.path().to_owned(), node).list().unwrap()), [expected]);
        }
    }

    #[test]
    fn a_plain_directory_of_configurations_is_a_tree() {
        let mut pve = PveTree::plain("pvetest").unwrap();
        pve.put(106, "name: x\n").unwrap();
        assert_eq!(said(&tree(&pve).list().unwrap()), ["walked 106 pvetest None"]);
    }

    #[test]
    fn an_empty_directory_and_a_missing_one_are_no_tree() {
        let mut pve = PveTree::cluster("pvetest").unwrap();
        let _stopped = pve.stop().unwrap();
        assert!(matches!(tree(&pve).list(), Err(ReadError::NoTree(_))));
        assert!(matches!(Tree::new(pve.path().join("x"), "pvetest").list(), Err(ReadError::NoTree(_))));
    }

    #[test]
    fn a_file_may_be_a_mebibyte_long_and_no_longer() {
        let pve = PveTree::plain("pvetest").unwrap();
        let path = pve.config(106);
        fs::write(&path, vec![b'#'; 1 << 20]).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1 << 20);
        fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
        assert!(matches!(read(&path), Err(ReadError::TooLarge(..))));
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_without_waiting() {
        let pve = PveTree::plain("pvetest").unwrap();
        let path = |name: &str| pve.path().join(name);
        fs::write(path("file"), "name: x\n").unwrap();
        symlink(path("file"), path("link")).unwrap();
        assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        for name in ["link", "fifo", "qemu-server"] {
            assert!(matches!(read(&path(name)), Err(ReadError::NotRegular(_))), "{name}");
        }
    }
}
