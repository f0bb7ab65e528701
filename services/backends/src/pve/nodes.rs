//! What can be told of a tree before anything in it is read: whether it is one, and whether this node is in it.
//!
//! In come a directory and a node's name; out comes a [`Look`]. Refused: to wait for a mount that hangs, and to take what
//! cannot be told for a fault. pmxcfs may be starting, and whoever hangs is there.

use std::fs;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// For how long a start waits for this.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// Names of nodes that are told; a cluster rarely has more.
const MAX_TOLD: usize = 16;

/// What a directory of configurations looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is certain that there is no such directory.
    Missing,
    /// There is nothing in it that a tree consists of.
    Empty,
    /// It has nodes and this one is not among them; those that are, sorted.
    NoSuchNode(Vec<String>),
    /// Nothing speaks against it, as far as can be told.
    Fine,
}

impl Look {
    /// Looks at `dir` for [`LOOK_TIME`] at most.
    #[must_use]
    pub fn at(dir: &Path, node: &str) -> Self {
        let (tell, told) = channel();
        let (dir, node) = (dir.to_owned(), node.to_owned());
        // Nobody waits any more for what comes too late.
        let aside = thread::Builder::new().name("pve-look".into()).spawn(move || _ = tell.send(look(&dir, &node)));
        aside.ok().and_then(|_| told.recv_timeout(LOOK_TIME).ok()).unwrap_or(Self::Fine)
    }
}

fn look(dir: &Path, node: &str) -> Look {
    let is_absent = |path: PathBuf| fs::metadata(path).is_err_and(|error| error.kind() == NotFound);
    match fs::metadata(dir) {
        Ok(found) if !found.is_dir() => return Look::Missing,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Look::Missing,
        Ok(_) | Err(_) => {}
    }
    let nodes = dir.join("nodes");
    if is_absent(nodes.clone()) {
        let empty = is_absent(dir.join(".vmlist")) && is_absent(dir.join("qemu-server"));
        return if empty { Look::Empty } else { Look::Fine };
    }
    if !is_absent(nodes.join(node)) {
        return Look::Fine;
    }
    let Ok(found) = fs::read_dir(nodes) else { return Look::Fine };
    let names = found.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| is_node_name(name)).take(MAX_TOLD).collect();
    names.sort();
    Look::NoSuchNode(names)
}

/// A node's name is a host name's first label. It becomes part of a path, so nothing else may.
#[must_use]
pub fn is_node_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_known_by_what_is_in_it() {
        let (none, others): (&[&str], _) = (&[], Look::NoSuchNode(vec!["pve2".into(), "pve3".into()]));
        for (holds, expected) in [
            (none, Look::Empty),
            (&["something"], Look::Empty),
            (&["qemu-server"], Look::Fine),
            (&[".vmlist"], Look::Fine),
            (&["nodes/pve1/qemu-server"], Look::Fine),
            (&["nodes/pve1", "nodes/pve2"], Look::Fine),
            (&["nodes/pve3", "nodes/pve2", "nodes/no name"], others.clone()),
            (&["qemu-server", ".vmlist", "nodes/pve3", "nodes/pve2"], others),
            (&["nodes"], Look::NoSuchNode(vec![])),
        ] {
            let dir = tempfile::tempdir().unwrap();
            holds.iter().for_each(|name| fs::create_dir_all(dir.path().join(name)).unwrap());
            assert_eq!(Look::at(dir.path(), "pve1"), expected, "{holds:?}");
        }
        for missing in ["/nonexistent", "/dev/null", "/dev/null/x"] {
            assert_eq!(Look::at(Path::new(missing), "pve1"), Look::Missing, "{missing}");
        }
    }
}
