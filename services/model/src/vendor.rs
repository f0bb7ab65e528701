//! Vendor data of the node: files that choose their VMs, and how what a VM gets of them becomes one document.
//!
//! In come a file's bytes; out comes a [`File`], or the first thing in it that is not understood, with its line. In come a
//! VM, its pool and its own block; out goes what its client reads. Choosing is done letter by letter and by what stands in
//! the VM's configuration, as [`exclude`](crate::exclude) does. Refused: a file that chooses nobody, because whoever wrote
//! it meant somebody. Pure; files are opened elsewhere.

mod mime;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use crate::exclude::Tag;
use crate::pools::PoolId;
use crate::vm::{Vm, Weight};
use crate::yaml::{self, Placed, YamlError};

pub use mime::multipart;

/// What opens and closes the header: a line that is only this.
const MARK: &str = "---";

/// A file of vendor data.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    name: Box<str>,
    choice: Choice,
    text: Arc<[u8]>,
}

/// Whom it is for: VMs that have one of the tags, and VMs in one of the pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Choice {
    all: bool,
    tags: BTreeSet<Tag>,
    pools: BTreeSet<PoolId>,
}

impl Choice {
    fn is_empty(&self) -> bool {
        !self.all && self.tags.is_empty() && self.pools.is_empty()
    }

    fn chooses(&self, vm: &Vm, pool: Option<&PoolId>) -> bool {
        self.all || self.tags.iter().any(|tag| tag.is_of(vm)) || pool.is_some_and(|pool| self.pools.contains(pool))
    }
}

/// The text may hold what is not for the log.
impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, choice, text } = self;
        f.debug_struct("File").field("name", name).field("choice", choice).field("bytes", &text.len()).finish()
    }
}

/// Why a file cannot be used. Quotes nothing of it but tags and pools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFile {
    /// Its dialects carry text.
    #[error("line {line}: not UTF-8")]
    NotUtf8 {
        /// From 1.
        line: usize,
    },
    /// It begins with something else.
    #[error("line 1: must be `---`, which opens the header")]
    NoHeader,
    /// It is all header.
    #[error("line 1: no second line `---` closes the header")]
    Unclosed,
    /// The header is not a mapping of the keys there are.
    #[error("{0}; the header's keys are `all: true` or `tags` and `pools`, which are lists")]
    Yaml(YamlError),
    /// Not what Proxmox takes for one: nobody would be chosen.
    #[error("{word:?} is no {what}{}", at(*.place))]
    Name {
        /// As written.
        word: String,
        /// What it should be.
        what: &'static str,
        /// Line and column.
        place: Option<(u64, u64)>,
    },
    /// `all` goes alone, and is true.
    #[error("`all` must be true and stand alone{}", at(*.place))]
    All {
        /// Line and column.
        place: Option<(u64, u64)>,
    },
    /// Nobody would get it.
    #[error("line 1: the header chooses no VM; say `all: true`, `tags` or `pools`")]
    Nobody,
    /// There is nothing behind the header.
    #[error("line {line}: nothing follows the header")]
    Empty {
        /// From 1.
        line: usize,
    },
}

fn at(place: Option<(u64, u64)>) -> String {
    place.map(|(line, column)| format!(" (line {line}, column {column})")).unwrap_or_default()
}

impl File {
    /// Reads a file of this name: a header between two lines `---`, in YAML, and behind it the payload, byte for byte.
    ///
    /// # Errors
    /// [`BadFile`]
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, BadFile> {
        let text = str::from_utf8(bytes).map_err(|error| {
            let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
            BadFile::NotUtf8 { line: 1 + before.iter().filter(|byte| **byte == b'\n').count() }
        })?;
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        if !is_mark(first) {
            return Err(BadFile::NoHeader);
        }
        let mut lines = rest.split_inclusive('\n');
        let length = |line: &str| (!is_mark(line)).then_some(line.len());
        let header: usize = lines.by_ref().map_while(length).sum();
        let (header, behind) = rest.split_at(header);
        let (mark, payload) = behind.split_once('\n').unwrap_or((behind, ""));
        if !is_mark(mark) {
            return Err(BadFile::Unclosed);
        }
        let choice = Choice::parse(header)?;
        if payload.trim().is_empty() {
            return Err(BadFile::Empty { line: header.lines().count() + 3 });
        }
        Ok(Self { name: name.into(), choice, text: payload.as_bytes().into() })
    }

    /// The file's name, by which files are ordered.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The payload.
    #[must_use]
    pub fn text(&self) -> &Arc<[u8]> {
        &self.text
    }
}

fn is_mark(line: &str) -> bool {
    line.trim_end_matches(['\n', '\r']) == MARK
}

/// As it is written. What is there is there: `tags:` with nothing behind it was meant to choose somebody.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct Header {
    all: Key<bool>,
    tags: Key<Vec<Placed<String>>>,
    pools: Key<Vec<Placed<String>>>,
}

struct Key<T>(Option<Placed<T>>);

impl<T> Default for Key<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Key<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Placed::deserialize(deserializer).map(|value| Self(Some(value)))
    }
}

impl Choice {
    fn parse(header: &str) -> Result<Self, BadFile> {
        // The header's first line is the file's second.
        let below = |place: Option<(u64, u64)>| place.map(|(line, column)| (line + 1, column));
        let Header { all, tags, pools } = match header.lines().all(|line| line.trim().is_empty()) {
            true => Header::default(),
            false => yaml::read_once(header.as_bytes())
                .map_err(|error| BadFile::Yaml(YamlError { place: below(error.place), ..error }))?,
        };
        let choice = Self {
            all: all.0.is_some(),
            tags: each(tags, "tag", Tag::parse, below)?,
            pools: each(pools, "pool's path", PoolId::parse, below)?,
        };
        match all.0 {
            Some(all) if !all.value || !choice.tags.is_empty() || !choice.pools.is_empty() => {
                Err(BadFile::All { place: below(all.place) })
            }
            _ if choice.is_empty() => Err(BadFile::Nobody),
            _ => Ok(choice),
        }
    }
}

/// The names of a list.
fn each<T: Ord>(
    list: Key<Vec<Placed<String>>>,
    what: &'static str,
    parse: impl Fn(&str) -> Option<T>,
    below: impl Fn(Option<(u64, u64)>) -> Option<(u64, u64)>,
) -> Result<BTreeSet<T>, BadFile> {
    let items = list.0.map(|list| list.value).unwrap_or_default();
    let name = |Placed { value, place }: Placed<String>| {
        parse(&value).ok_or_else(|| BadFile::Name { place: below(place), word: value, what })
    };
    items.into_iter().map(name).collect()
}

/// All files of the node, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files(Vec<File>);

impl Files {
    /// Puts them in order.
    #[must_use]
    pub fn new(mut files: Vec<File>) -> Self {
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Self(files)
    }

    /// Whether the node has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What those weigh that choose this VM.
    #[must_use]
    pub fn weight(&self, vm: &Vm, pool: Option<&PoolId>) -> Weight {
        Weight::new(self.of(vm, pool).map(|file| file.text.len()).sum())
    }

    /// Those that choose this VM.
    pub fn of<'a>(&'a self, vm: &'a Vm, pool: Option<&'a PoolId>) -> impl Iterator<Item = &'a File> {
        self.0.iter().filter(move |file| file.choice.chooses(vm, pool))
    }
}

/// One document of the node's files and of the VM's own block, in this order: where they say the same, cloud-init lets the
/// later part win. What is alone stays as it was written.
#[must_use]
pub fn combine<'a>(files: &[&'a File], own: Option<&'a [u8]>) -> Cow<'a, [u8]> {
    match (files, own.filter(|text| !text.is_empty())) {
        ([], None) => Cow::Borrowed(&[]),
        ([], Some(own)) => Cow::Borrowed(own),
        ([file], None) => Cow::Borrowed(&file.text),
        (files, own) => {
            let parts: Vec<(&str, &[u8])> =
                files.iter().map(|file| (&*file.name, &*file.text)).chain(own.map(|own| (OWN, own))).collect();
            Cow::Owned(multipart(&parts))
        }
    }
}

/// What the VM's own part is called.
pub const OWN: &str = "vendor-data";

#[cfg(test)]
mod tests;
