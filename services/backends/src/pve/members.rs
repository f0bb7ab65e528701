//! `.members`: which nodes the cluster has.
//!
//! In comes the file; out go [`Members`]. The directories below `nodes` do not tell: that of a node that was removed
//! stays, with its key. Refused: to take a file that cannot be understood for a cluster without nodes.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::files::{self, ReadError};

/// The file, below the tree.
const FILE: &str = ".members";

/// The nodes.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Members {
    /// The node that says so, which is one of them.
    nodename: String,
    /// All, by name. A node that has never been in a cluster does not say.
    #[serde(default)]
    nodelist: BTreeMap<String, IgnoredAny>,
    /// So does a lone node.
    #[serde(default)]
    cluster: Option<Cluster>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Cluster {
    name: String,
    /// 1: its majority is here. Proxmox always says; whoever does not has none.
    #[serde(default)]
    quorate: u8,
}

impl Members {
    /// Reads the file of this tree. `None`: nobody writes one here, so whoever has a directory counts.
    ///
    /// # Errors
    /// It is there and cannot be read or understood, as while pmxcfs begins or ends.
    pub(super) fn read(tree: &Path) -> Result<Option<Self>, ReadError> {
        let path = tree.join(FILE);
        match files::read(&path) {
            Ok(bytes) => Self::parse(&bytes).map(Some).ok_or(ReadError::Malformed(path)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// What the cluster is called; a lone node is in none.
    pub(super) fn cluster(&self) -> Option<&str> {
        self.cluster.as_ref().map(|cluster| &*cluster.name)
    }

    /// Whether the node that says so is part of the cluster's majority; a lone node is.
    pub(super) fn is_quorate(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.quorate != 0)
    }

    /// Whether the cluster has such a node.
    pub(super) fn has(&self, node: &str) -> bool {
        self.nodename == node || self.nodelist.contains_key(node)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/cluster-files");

    #[test]
    fn a_cluster_has_the_nodes_that_are_listed_and_a_lone_node_itself() {
        for (file, cluster, has, lacks) in [
            ("members-cluster.json", Some("prod"), &["pve1", "pve2", "pve3"][..], &["pve4", "", "pvetest"][..]),
            ("members-standalone.json", None, &["pvetest"], &["pve1", ""]),
        ] {
            let members = Members::parse(&fs::read(format!("{FIXTURES}/{file}")).unwrap()).unwrap();
            assert_eq!(members.cluster(), cluster);
            assert!(has.iter().all(|node| members.has(node)), "{members:?}");
            assert!(!lacks.iter().any(|node| members.has(node)), "{members:?}");
        }
    }

    #[test]
    fn half_a_file_says_nothing() {
        let tree = tempfile::tempdir().unwrap();
        assert!(matches!(Members::read(tree.path()), Ok(None)));
        let whole = fs::read(format!("{FIXTURES}/members-cluster.json")).unwrap();
        let text = whole.trim_ascii_end();
        for length in 0..text.len() {
            fs::write(tree.path().join(FILE), &text[..length]).unwrap();
            assert!(matches!(Members::read(tree.path()), Err(ReadError::Malformed(_))), "its first {length} bytes");
        }
        fs::write(tree.path().join(FILE), text).unwrap();
        assert!(matches!(Members::read(tree.path()), Ok(Some(_))));
        for other in ["{}", "[]", "{\"nodelist\":{}}", "{\"nodename\":1}", "\u{0}"] {
            assert_eq!(Members::parse(other.as_bytes()), None, "{other}");
        }
    }
}
