//! The blocks that a VM's Notes hold for us.
//!
//! In come the decoded Notes; out goes each block we know, whole, or the reason why it cannot be used. Refused is the
//! half of anything: a block that is not closed, stands twice, does not decode or has an attribute nobody knows is an
//! error and not a guess, because a typo in `secrets=` must not serve placeholders. Text outside blocks is the
//! operator's own. Nothing here prints what a block holds.

mod block;
mod encoding;

use std::fmt;

use self::block::{Block, Name};
pub use self::encoding::{Encoding, MAX_DECODED};
use crate::network::{BadNetwork, NetworkText};

/// What the Notes say. `None`: no such block. `Some(Err(_))`: there is one and it is broken; half of it is never used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// `<!--#user-data`
    pub user_data: Option<Result<UserData, BlockError>>,
    /// `<!--#network-config`
    pub network_config: Option<Result<NetworkText, BlockError>>,
    /// What whoever wrote them should hear, by line.
    pub remarks: Vec<Remark>,
}

/// Something in the Notes that does not do what it seems to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {block}: {what}")]
pub struct Remark {
    /// Line of the Notes, from 1.
    pub line: usize,
    /// The block's name.
    pub block: &'static str,
    /// Why.
    pub what: Oddity,
}

/// What is odd about a line. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Oddity {
    /// The block cannot be used.
    #[error(transparent)]
    Broken(#[from] Flaw),
    /// The block asks for secrets, and this version renders none.
    #[error("the block says `secrets=`, and this version renders no secrets: it is never served")]
    Secrets,
    /// Nothing in this version reads blocks of this name, not even to restrict something.
    #[error("blocks of this name have no effect in this version")]
    Unheeded,
    /// A line that looks like an opening and is none.
    #[error("this opens no block; it must read `<!--#{0}`, from the start of the line")]
    Misspelt(&'static str),
}

/// The text of a `user-data` block.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData {
    /// The secret set that `secrets=` names (1 to 64 letters, digits, `-` and `_`); with one, the text holds
    /// placeholders and is never served as it stands.
    pub secrets: Option<String>,
    /// The text, byte for byte.
    pub text: Vec<u8>,
}

/// User data may hold what its owner should not have written there: its text is never printed.
impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserData").field("secrets", &self.secrets).field("bytes", &self.text.len()).finish()
    }
}

/// Why a block cannot be used, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {flaw}")]
pub struct BlockError {
    /// Line of the Notes where the block opens, from 1.
    pub line: usize,
    /// Why.
    pub flaw: Flaw,
}

/// What is wrong with a block. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// No `-->` before the next block or the end.
    #[error("the block is not closed; end it with a line that holds only `-->`")]
    Unclosed,
    /// A block of this name stands earlier.
    #[error("a block of this name stands already on line {first}; remove one of them")]
    Twice {
        /// Line of the earlier one.
        first: usize,
    },
    /// Something on the opening line that is no attribute of this block.
    #[error("unknown attribute on the opening line; there is `encoding`, and `secrets` for user-data")]
    UnknownAttribute,
    /// An attribute twice.
    #[error("attribute `{0}` is given twice; remove one of them")]
    AttributeTwice(&'static str),
    /// `secrets=` with a name that is no set's name.
    #[error("`secrets` does not name a set: 1 to 64 letters, digits, `-` and `_`")]
    SetName,
    /// `encoding=` with anything but `base64` and `gzip+base64`.
    #[error("unknown encoding; there are `base64` and `gzip+base64`")]
    UnknownEncoding,
    /// The text is not what `encoding=` says.
    #[error("the text is not {0}")]
    NotDecodable(Encoding),
    /// The text is longer than [`MAX_DECODED`] once decoded.
    #[error("the decoded text is longer than {MAX_DECODED} bytes")]
    TooLong,
    /// The text is no network configuration; the place it names counts from the block's first line.
    #[error("not a network configuration: {0}")]
    Network(#[from] BadNetwork),
}

impl Notes {
    /// Reads decoded Notes.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.replace("\r\n", "\n");
        let blocks = block::find(&text);
        let mut notes = Self {
            remarks: Vec::new(),
            user_data: the_one(&blocks, Name::UserData, |block| {
                let attributes = Attributes::read(block)?;
                Ok(UserData { text: attributes.decode(block)?, secrets: attributes.secrets })
            }),
            network_config: the_one(&blocks, Name::NetworkConfig, |block| {
                let attributes = Attributes::read(block)?;
                Ok(NetworkText::new(attributes.decode(block)?)?)
            }),
        };
        notes.remarks = notes.remark(&blocks, block::misspelt(&text));
        notes
    }

    fn remark(&self, blocks: &[Block<'_>], misspelt: Vec<(usize, Name)>) -> Vec<Remark> {
        let broken =
            |block: Name, error: &BlockError| Remark { line: error.line, block: block.word(), what: error.flaw.into() };
        let of = |block: &Block<'_>, what| Remark { line: block.line, block: block.name.word(), what };
        let user_data = self.user_data.as_ref().and_then(|block| block.as_ref().err());
        let network_config = self.network_config.as_ref().and_then(|block| block.as_ref().err());
        let wants_secrets = matches!(&self.user_data, Some(Ok(UserData { secrets: Some(_), .. })));
        let mut remarks: Vec<Remark> = blocks
            .iter()
            .filter_map(|block| match block.name {
                Name::UserData => wants_secrets.then(|| of(block, Oddity::Secrets)),
                Name::NetworkConfig => None,
                Name::VendorData | Name::Pxe | Name::Imds => Some(of(block, Oddity::Unheeded)),
            })
            .collect();
        remarks.extend(user_data.map(|error| broken(Name::UserData, error)));
        remarks.extend(network_config.map(|error| broken(Name::NetworkConfig, error)));
        remarks.extend(misspelt.into_iter().map(|(line, name)| {
            let block = name.word();
            Remark { line, block, what: Oddity::Misspelt(block) }
        }));
        remarks.sort_by_key(|remark| remark.line);
        remarks
    }
}

/// The only block called `name`, read by `read`. A second one spoils it: nobody can say which was meant.
fn the_one<T>(
    blocks: &[Block<'_>],
    name: Name,
    read: impl Fn(&Block<'_>) -> Result<T, Flaw>,
) -> Option<Result<T, BlockError>> {
    let mut named = blocks.iter().filter(|block| block.name == name);
    let first = named.next()?;
    Some(match named.next() {
        Some(second) => Err(BlockError { line: second.line, flaw: Flaw::Twice { first: first.line } }),
        None => read(first).map_err(|flaw| BlockError { line: first.line, flaw }),
    })
}

/// The attributes of an opening line.
struct Attributes {
    secrets: Option<String>,
    encoding: Encoding,
}

impl Attributes {
    fn read(block: &Block<'_>) -> Result<Self, Flaw> {
        let (mut secrets, mut encoding) = (None, None);
        for attribute in block.attributes.split_ascii_whitespace() {
            match attribute.split_once('=') {
                Some(("secrets", name)) if block.name == Name::UserData => {
                    let name = is_set_name(name).then(|| name.to_owned()).ok_or(Flaw::SetName)?;
                    put_once("secrets", &mut secrets, name)?;
                }
                Some(("encoding", word)) => {
                    put_once("encoding", &mut encoding, Encoding::parse(word).ok_or(Flaw::UnknownEncoding)?)?;
                }
                _ => return Err(Flaw::UnknownAttribute),
            }
        }
        Ok(Self { secrets, encoding: encoding.unwrap_or_default() })
    }

    fn decode(&self, block: &Block<'_>) -> Result<Vec<u8>, Flaw> {
        self.encoding.decode(block.text.ok_or(Flaw::Unclosed)?)
    }
}

fn put_once<T>(name: &'static str, place: &mut Option<T>, value: T) -> Result<(), Flaw> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Flaw::AttributeTwice(name)),
    }
}

fn is_set_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

#[cfg(test)]
mod tests;
