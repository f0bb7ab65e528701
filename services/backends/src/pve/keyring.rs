//! The files with the nodes' private keys: `nodes/<node>/pve-ssl.key`.
//!
//! In comes the tree, from time to time; out go the keys that could be read, into [`NodeKeys`], and what of that is news.
//! Proxmox makes such a file once and writes it in place, so half of one may be found; nobody counts its writes. A node's
//! key stays while its file cannot be read and goes when the file is missing twice, or the node is, from `nodes` or from the
//! cluster ([`Members`]): what is left behind of a removed node opens nothing here. Refused: to keep the bytes of a file,
//! or more keys than a cluster has nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pve_imds_model::chain;
use tokio::time::Instant;

use super::files::{self, ReadError};
use super::inventory::Digest;
use super::members::Members;
use super::nodes::is_node_name;
use crate::keys::{NodeKeys, SealingKey};

/// The file of a node.
pub(super) const KEY: &str = "pve-ssl.key";

/// How long what was read counts: a client whose token a new key does not open just asks for another.
const KEEP: Duration = Duration::from_secs(2);

/// Most nodes whose keys are read, our own first, then by name. The largest clusters have some dozens.
const MAX_NODES: usize = 256;

/// What a look at the files found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A key of this node is known, or another one than before.
    Read(Arc<str>),
    /// The file cannot be used. What it said last stays. Told once per reason.
    Unreadable(Arc<str>, Arc<str>),
    /// This node's key is not known any more.
    Gone(Arc<str>),
    /// Our own is not known, since the beginning or from now on.
    Lacking(Arc<str>),
}

/// Follows the files.
pub(super) struct Keyring {
    own: Arc<str>,
    known: BTreeMap<Arc<str>, Known>,
    /// When to look again.
    due: Option<Instant>,
    lacking: bool,
    /// As they could be read last.
    members: Option<Members>,
    keys: NodeKeys,
}

/// What is known of one file.
#[derive(Default)]
struct Known {
    key: Option<Arc<SealingKey>>,
    /// Of the bytes that the key was derived from.
    digest: Option<Digest>,
    missed: bool,
    complaint: Option<Arc<str>>,
}

impl Keyring {
    pub(super) fn new(own: &str, keys: NodeKeys) -> Self {
        Self { own: own.into(), known: BTreeMap::new(), due: None, lacking: false, members: None, keys }
    }

    /// Reads the files again, if it is time to.
    pub(super) fn look(&mut self, dir: &Path, now: Instant) -> Vec<News> {
        if self.due.is_some_and(|due| now < due) {
            return Vec::new();
        }
        self.due = Some(now + KEEP);
        let mut news = Vec::new();
        // What is no tree now, or is one by half, has lost no nodes.
        if let Ok(Some(members)) = Members::read(dir) {
            self.members = Some(members);
        }
        let dir = dir.join("nodes");
        let listed = files::names(&dir);
        if let Ok(names) = &listed {
            let is_member = |name: &str| self.members.as_ref().is_none_or(|members| members.has(name));
            let others = names.iter().filter(|name| is_node_name(name) && ***name != *self.own && is_member(name));
            let nodes: Vec<Arc<str>> = names
                .contains(&*self.own)
                .then(|| Arc::clone(&self.own))
                .into_iter()
                .chain(others.map(|name| name.as_str().into()))
                .take(MAX_NODES)
                .collect();
            let gone = |node: &Arc<str>, known: &Known| known.key.is_some().then(|| News::Gone(Arc::clone(node)));
            self.known.retain(|node, known| {
                let stays = nodes.contains(node);
                news.extend(gone(node, known).filter(|_| !stays));
                stays
            });
            for node in nodes {
                let known = self.known.entry(Arc::clone(&node)).or_default();
                news.extend(known.look(&node, &dir.join(&*node).join(KEY)));
            }
        }
        if news.iter().any(|news| matches!(news, News::Read(_) | News::Gone(_))) {
            let keys = self.known.iter().filter_map(|(node, known)| Some((Arc::clone(node), known.key.clone()?)));
            self.keys.set(keys.collect());
        }
        let lacks = self.keys.of(&self.own).is_none();
        if lacks && !std::mem::replace(&mut self.lacking, lacks) {
            let why = listed.as_ref().err().map(|error| chain(error).into());
            let why = why.or_else(|| self.known.get(&self.own)?.complaint.clone());
            let missing = || Arc::from(format!("there is no {}", dir.join(&*self.own).join(KEY).display()));
            news.push(News::Lacking(why.unwrap_or_else(missing)));
        }
        self.lacking = lacks;
        news
    }
}

impl Known {
    /// The table for one file.
    fn look(&mut self, node: &Arc<str>, path: &Path) -> Option<News> {
        let reason = match read(path) {
            Ok((digest, _)) if self.digest == Some(digest) => {
                (self.missed, self.complaint) = (false, None);
                return None;
            }
            Ok((digest, Ok(key))) => {
                *self = Self { key: Some(Arc::new(key)), digest: Some(digest), ..Self::default() };
                return Some(News::Read(Arc::clone(node)));
            }
            Ok((_, Err(reason))) => reason,
            Err(error) if error.is_absent() => {
                let known = std::mem::replace(&mut self.missed, true).then(|| std::mem::take(self).key).flatten();
                self.missed = true;
                return known.map(|_| News::Gone(Arc::clone(node)));
            }
            Err(error) => chain(&error).into(),
        };
        self.missed = false;
        let news = self.complaint.as_ref() != Some(&reason);
        self.complaint = Some(Arc::clone(&reason));
        news.then(|| News::Unreadable(Arc::clone(node), reason))
    }
}

/// A file's digest and the key in it.
fn read(path: &Path) -> Result<(Digest, Result<SealingKey, Arc<str>>), ReadError> {
    let bytes = files::read_secret(path)?;
    let key = SealingKey::derive(&bytes).map_err(|error| format!("{}: {error}", path.display()).into());
    Ok((Digest::of(&bytes), key))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::key_pem;

    fn word(news: &News) -> String {
        match news {
            News::Read(node) => format!("read {node}"),
            News::Unreadable(node, _) => format!("unreadable {node}"),
            News::Gone(node) => format!("gone {node}"),
            News::Lacking(_) => "lacking".to_owned(),
        }
    }

    /// What becomes of a node's directory.
    enum Deed {
        Key,
        Half,
        Remove,
        RemoveNode,
        Nothing,
    }

    #[test]
    fn keys_come_change_and_go() {
        use Deed::{Half, Key, Nothing, Remove, RemoveNode};
        let tree = tempfile::tempdir().unwrap();
        let keys = NodeKeys::default();
        let mut keyring = Keyring::new("a", keys.clone());
        let mut now = Instant::now();
        for (at, (node, deed, expected, known)) in [
            ("a", Nothing, &["lacking"][..], ""),
            ("a", Nothing, &[], ""),
            ("a", Key, &["read a"], "a"),
            ("a", Nothing, &[], "a"),
            ("b", Half, &["unreadable b"], "a"),
            ("b", Nothing, &[], "a"),
            ("b", Key, &["read b"], "ab"),
            ("b", Key, &["read b"], "ab"),
            ("b", Half, &["unreadable b"], "ab"),
            ("b", Remove, &[], "ab"),
            ("b", Nothing, &["gone b"], "a"),
            ("b", Nothing, &[], "a"),
            ("b", Key, &["read b"], "ab"),
            ("b", RemoveNode, &["gone b"], "a"),
            ("no name", Key, &[], "a"),
            ("a", Remove, &[], "a"),
            ("a", Key, &["read a"], "a"),
            ("a", Half, &["unreadable a"], "a"),
            ("a", RemoveNode, &["gone a", "lacking"], ""),
            ("a", Half, &["unreadable a"], ""),
            ("a", Key, &["read a"], "a"),
        ]
        .into_iter()
        .enumerate()
        {
            let dir = tree.path().join("nodes").join(node);
            let write = |bytes: &[u8]| {
                fs::create_dir_all(&dir).unwrap();
                fs::write(dir.join(KEY), bytes).unwrap();
            };
            match deed {
                Key => write(&key_pem().unwrap()),
                Half => write(&key_pem().unwrap()[..90]),
                Remove => fs::remove_file(dir.join(KEY)).unwrap(),
                RemoveNode => fs::remove_dir_all(&dir).unwrap(),
                Nothing => {}
            }
            let early = keyring.look(tree.path(), now);
            assert!(at == 0 || early.is_empty(), "row {at}: not yet");
            now += KEEP;
            let found = if at == 0 { early } else { keyring.look(tree.path(), now) };
            assert_eq!(found.iter().map(word).collect::<Vec<_>>(), expected, "row {at}");
            let nodes: String = ["a", "b", "no name"].into_iter().filter(|node| keys.of(node).is_some()).collect();
            assert_eq!(nodes, known, "row {at}");
        }
        // The mount is gone.
        fs::remove_dir_all(tree.path().join("nodes")).unwrap();
        for _ in 0..3 {
            now += KEEP;
            assert_eq!(keyring.look(tree.path(), now), []);
        }
        assert!(keys.of("a").is_some());
    }

    #[test]
    fn a_node_that_was_removed_from_the_cluster_opens_nothing() {
        let tree = tempfile::tempdir().unwrap();
        for node in ["a", "b"] {
            fs::create_dir_all(tree.path().join("nodes").join(node)).unwrap();
            fs::write(tree.path().join("nodes").join(node).join(KEY), key_pem().unwrap()).unwrap();
        }
        let keys = NodeKeys::default();
        let mut keyring = Keyring::new("a", keys.clone());
        let mut now = Instant::now();
        let both = r#"{"nodename":"a","nodelist":{"a":{"id":1},"b":{"id":2}}}"#;
        for (members, expected, known) in [
            (None, &["read a", "read b"][..], "ab"),
            (Some(both), &[], "ab"),
            (Some(r#"{"nodename":"a","nodelist":{"a":{"id":1}}}"#), &["gone b"], "a"),
            // Half a file, and none while pmxcfs starts again.
            (Some(r#"{"nodename":"a","#), &[], "a"),
            (None, &[], "a"),
            (Some(both), &["read b"], "ab"),
            (Some(r#"{"nodename":"a","version":0}"#), &["gone b"], "a"),
        ] {
            match members {
                Some(text) => fs::write(tree.path().join(".members"), text).unwrap(),
                None => _ = fs::remove_file(tree.path().join(".members")),
            }
            let found = keyring.look(tree.path(), now);
            now += KEEP;
            assert_eq!(found.iter().map(word).collect::<Vec<_>>(), expected, "{members:?}");
            let nodes: String = ["a", "b"].into_iter().filter(|node| keys.of(node).is_some()).collect();
            assert_eq!(nodes, known, "{members:?}");
        }
    }

    #[test]
    fn there_are_not_more_than_a_cluster_has() {
        let tree = tempfile::tempdir().unwrap();
        let pem = key_pem().unwrap();
        for node in (0..=MAX_NODES).map(|number| format!("n{number:03}")) {
            let dir = tree.path().join("nodes").join(node);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(KEY), &pem).unwrap();
        }
        let keys = NodeKeys::default();
        let mut keyring = Keyring::new("n256", keys.clone());
        assert_eq!(keyring.look(tree.path(), Instant::now()).len(), MAX_NODES);
        assert!(keys.of("n256").is_some() && keys.of("n254").is_some() && keys.of("n255").is_none());
    }
}
