//! The files of one name, one below each node's directory: what they said last.
//!
//! In comes a directory of nodes; out go what could be read of each node's file and what of that is news. Proxmox makes such
//! a file once and writes it in place, so half of one may be found; nobody counts its writes. What it said stays while the
//! file cannot be read, and goes when the file is missing twice, or the node is, or it holds a key of no use. Refused: to keep the bytes of a file, or
//! more files than a cluster has nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use pve_imds_model::{chain, words};

use super::super::files::{self, ReadError};
use super::super::inventory::Digest;
use super::super::members::Members;
use super::super::nodes::is_node_name;
use crate::keys::BadKey;

/// Most nodes whose keys are read, our own first, then by name. The largest clusters have some dozens.
pub(super) const MAX_NODES: usize = 256;

words! {
    /// A file that each node has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in super::super) enum NodeFile {
        /// Its private key.
        Key => "pve-ssl.key",
        /// The certificate of that key.
        Certificate => "pve-ssl.pem",
    }
}

/// What a look at the files of one name found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum News {
    /// What it says is known, or is something else than before.
    Read(Arc<str>),
    /// The file cannot be used. What it said last stays. Told once per reason.
    Unreadable(Arc<str>, Arc<str>),
    /// What this node's file says is not known any more.
    Gone(Arc<str>),
}

impl News {
    /// Whether something is in force that was not, or the other way round.
    pub(super) fn is_change(&self) -> bool {
        !matches!(self, Self::Unreadable(..))
    }
}

/// The files of one name.
pub(super) struct Files<T> {
    name: NodeFile,
    parse: fn(&[u8]) -> Result<T, BadKey>,
    known: BTreeMap<Arc<str>, Known<T>>,
}

/// What is known of one file.
pub(super) struct Known<T> {
    said: Option<Arc<T>>,
    /// Of the bytes that said so.
    digest: Option<Digest>,
    missed: bool,
    complaint: Option<Arc<str>>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { said: None, digest: None, missed: false, complaint: None }
    }
}

impl<T> Files<T> {
    pub(super) fn new(name: NodeFile, parse: fn(&[u8]) -> Result<T, BadKey>) -> Self {
        Self { name, parse, known: BTreeMap::new() }
    }

    /// Reads them again: those of `own` and of the other nodes below `dir` that are `members`, if it is known who is.
    ///
    /// # Errors
    /// The directory cannot be listed. What was known stays.
    pub(super) fn look(
        &mut self,
        dir: &Path,
        own: &Arc<str>,
        members: Option<&Members>,
    ) -> Result<Vec<News>, ReadError> {
        let names = files::names(dir)?;
        let is_member = |name: &str| members.is_none_or(|members| members.has(name));
        let others = names.iter().filter(|name| is_node_name(name) && ***name != **own && is_member(name));
        let nodes: Vec<Arc<str>> = names
            .contains(&**own)
            .then(|| Arc::clone(own))
            .into_iter()
            .chain(others.map(|name| name.as_str().into()))
            .take(MAX_NODES)
            .collect();
        let mut news = Vec::new();
        self.known.retain(|node, known| {
            let stays = nodes.contains(node);
            news.extend((!stays && known.said.is_some()).then(|| News::Gone(Arc::clone(node))));
            stays
        });
        for node in nodes {
            let known = self.known.entry(Arc::clone(&node)).or_default();
            news.extend(known.look(&node, &dir.join(&*node).join(self.name.word()), self.parse));
        }
        Ok(news)
    }

    /// What they say, by node.
    pub(super) fn said(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<T>)> {
        self.known.iter().filter_map(|(node, known)| Some((node, known.said.as_ref()?)))
    }

    /// What that node's says.
    pub(super) fn of(&self, node: &str) -> Option<&Arc<T>> {
        self.known.get(node)?.said.as_ref()
    }

    /// Why there is nothing of a node, or nothing new: a line for each file below `dir` that cannot be used.
    pub(super) fn doubts(&self, dir: &Path) -> impl Iterator<Item = Arc<str>> {
        self.known.iter().filter_map(move |(node, known)| match (&known.complaint, &known.said) {
            (Some(complaint), _) => Some(Arc::clone(complaint)),
            (None, None) => Some(missing(&dir.join(&**node).join(self.name.word()))),
            (None, Some(_)) => None,
        })
    }

    /// Why that node's cannot be used, if that is known.
    pub(super) fn complaint(&self, node: &str) -> Option<&Arc<str>> {
        self.known.get(node)?.complaint.as_ref()
    }
}

impl<T> Known<T> {
    /// The table for one file.
    pub(super) fn look(&mut self, node: &Arc<str>, path: &Path, parse: fn(&[u8]) -> Result<T, BadKey>) -> Option<News> {
        let reason = match read(path, parse, self.digest) {
            Ok(Read::Same) => {
                (self.missed, self.complaint) = (false, None);
                return None;
            }
            Ok(Read::Other(digest, said)) => {
                *self = Self { said: Some(Arc::new(said)), digest: Some(digest), ..Self::default() };
                return Some(News::Read(Arc::clone(node)));
            }
            Ok(Read::Bad(error)) => {
                if error.is_of_the_whole() {
                    *self = Self { complaint: self.complaint.take(), ..Self::default() };
                }
                format!("{}: {error}", path.display()).into()
            }
            Err(error) if error.is_absent() => {
                let known = std::mem::replace(&mut self.missed, true).then(|| std::mem::take(self).said).flatten();
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

    /// What it said last.
    pub(super) fn said(&self) -> Option<&Arc<T>> {
        self.said.as_ref()
    }

    /// Why it cannot be used, if it is there.
    pub(super) fn complaint(&self) -> Option<&Arc<str>> {
        self.complaint.as_ref()
    }
}

pub(super) fn missing(path: &Path) -> Arc<str> {
    format!("there is no {}", path.display()).into()
}

/// What a file holds.
enum Read<T> {
    /// What it held before.
    Same,
    Other(Digest, T),
    Bad(BadKey),
}

fn read<T>(path: &Path, parse: fn(&[u8]) -> Result<T, BadKey>, known: Option<Digest>) -> Result<Read<T>, ReadError> {
    let bytes = files::read_secret(path)?;
    let digest = Digest::of(&bytes);
    if known == Some(digest) {
        return Ok(Read::Same);
    }
    Ok(match parse(&bytes) {
        Ok(said) => Read::Other(digest, said),
        Err(error) => Read::Bad(error),
    })
}
