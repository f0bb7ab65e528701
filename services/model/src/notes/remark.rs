//! What whoever wrote the Notes should hear.
//!
//! In come the oddities of the Notes in the order of their lines; out go as many remarks as somebody can read, and one
//! that says how many there would have been. A broken block is always told: there is at most one of each name, and of a
//! policy all that is wrong with it. Refused is everything that stands in the Notes.

use std::borrow::Cow;
use std::fmt;

use super::Flaw;
use super::block::Name;
use super::slip::Slip;
use crate::fault::Outcome;
use crate::vm::Nic;

/// How many lines that do nothing are told of: as many as of the lines of a configuration.
pub const MAX_REMARKS: usize = crate::conf::MAX_WARNINGS;

/// Something in the Notes that does not do what it seems to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {}{what}", block.map(|name| format!("{name}: ")).unwrap_or_default())]
pub struct Remark {
    /// Line of the Notes, from 1.
    pub line: usize,
    /// Character of the line, from 1.
    pub column: usize,
    /// The block's name, if it is about one.
    pub block: Option<&'static str>,
    /// Why.
    pub what: Oddity,
    /// What a guest that needs the block is told; none where it is served without.
    pub outcome: Option<Outcome>,
}

/// What is odd about a line. Quotes nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Oddity {
    /// The block cannot be used.
    #[error(transparent)]
    Broken(#[from] Flaw),
    /// There are places for secrets, and nothing that says they are to be filled.
    #[error(
        "it has places for secrets, as `{{{{ secret \"name\" }}}}`, and the opening line says no `secrets=`: it is served as written"
    )]
    Unfilled,
    /// Nothing in this version reads blocks of this name, not even to restrict something.
    #[error("blocks of this name have no effect in this version")]
    Unheeded,
    /// A line that looks like an opening and is none.
    #[error(
        "this opens no block: {slip}; it must read `<!--#{name}` from the start of the line, then a blank or nothing"
    )]
    Misspelt {
        /// The name that was probably meant.
        name: &'static str,
        /// What is wrong.
        slip: Slip,
    },
    /// A line that looks like the opening of a block that there is not.
    #[error(
        "there is no such block: meta data is made of the VM's own configuration; there are {}",
        readable().join(", ")
    )]
    NoSuchBlock,
    /// The network is for cards that the VM does not have.
    #[error(
        "it speaks of none of this VM's NICs, so OpenStack's and EC2's clients get DHCP; say `macaddress` as here: {0}"
    )]
    NobodysNetwork(NicList),
    /// A line that looks like the end of something and is none.
    #[error("this ends nothing: no block is open here, and no comment; an opening is lost, or a block ends twice")]
    Stray,
    /// Here [`MAX_REMARKS`] are told, and this many are not.
    #[error("so much of lines that do nothing; from this one on there are {0} more")]
    More(usize),
}

/// NICs and their hardware addresses, to be read. Of the configuration, not of the Notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicList(Box<str>);

impl NicList {
    pub(super) fn of(nics: &[Nic]) -> Self {
        let told = nics.iter().map(|Nic { index, mac, .. }| {
            let mac = mac
                .as_deref()
                .map_or(Cow::Borrowed("no address in the configuration"), |mac| mac.to_ascii_lowercase().into());
            format!("net{index} ({mac})")
        });
        Self(told.collect::<Vec<_>>().join(", ").into())
    }
}

impl fmt::Display for NicList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The names of the blocks that this version reads.
fn readable() -> Vec<&'static str> {
    Name::ALL.iter().filter(|name| **name != Name::Pxe).map(|name| name.word()).collect()
}

/// The remarks on lines that do nothing.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    told: Vec<Remark>,
    more: Option<Remark>,
}

impl Remarks {
    /// The next one, in the order of the lines.
    pub(super) fn push(&mut self, remark: Remark) {
        if self.told.len() < MAX_REMARKS {
            self.told.push(remark);
            return;
        }
        let before = match self.more {
            Some(Remark { what: Oddity::More(before), .. }) => before,
            _ => 0,
        };
        let first = self.more.take().unwrap_or(remark);
        self.more = Some(Remark { what: Oddity::More(before + 1), ..first });
    }

    /// They and `others`, of which there are few, by line; and at last what is missing.
    pub(super) fn with(mut self, others: impl Iterator<Item = Remark>) -> Vec<Remark> {
        self.told.extend(others);
        self.told.sort_by_key(|remark| (remark.line, remark.column));
        self.told.extend(self.more);
        self.told
    }
}
