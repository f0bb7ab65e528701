//! The blocks that a VM's Notes hold for us.
//!
//! In come the decoded Notes; out goes each block we know, whole, or the reason why it cannot be used. Refused is the
//! half of anything: a block that is not closed, stands twice, does not decode or has an attribute nobody knows is an
//! error and not a guess, because a typo in `secrets=` must not serve placeholders. Text outside blocks is the
//! operator's own; lines of it that look like a block's opening or end are remarked on. Nothing here prints what a block
//! holds.

mod attribute;
mod block;
mod encoding;
mod remark;
mod slip;

use std::fmt;

pub use self::attribute::AttributeName;
use self::block::{Block, Name, Part};
use self::encoding::Encoding;
pub use self::encoding::{MAX_DECODED, Undecodable};
use self::remark::Remarks;
pub use self::remark::{MAX_REMARKS, NicList, Oddity, Remark};
pub use self::slip::Slip;
use self::slip::{META_DATA, Meant, Slipped};
use crate::fault::Outcome;
use crate::network::{BadNetwork, NetworkText};
use crate::network_data::is_for_any;
use crate::policy::{BadPolicy, Flaws, Policy};
use crate::secrets::{SetName, has_places};
use crate::vm::Nic;
use crate::yaml::YamlError;

/// What the Notes say. `None`: no such block. `Some(Err(_))`: there is one and it is broken; half of it is never used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// `<!--#user-data`
    pub user_data: Option<Result<UserData, BlockError>>,
    /// `<!--#network-config`
    pub network_config: Option<Result<NetworkText, BlockError>>,
    /// `<!--#vendor-data`
    pub vendor_data: Option<Result<VendorData, BlockError>>,
    /// `<!--#imds`
    pub policy: Option<Result<Policy, BlockError>>,
    /// What whoever wrote them should hear, by line.
    pub remarks: Vec<Remark>,
}

/// The text of a `user-data` block.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData {
    /// The secret set that `secrets=` names; with one, the text holds
    /// placeholders and is never served as it stands.
    pub secrets: Option<SetName>,
    /// The text, byte for byte.
    pub text: Vec<u8>,
}

/// User data may hold what its owner should not have written there: its text is never printed.
impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserData").field("secrets", &self.secrets).field("bytes", &self.text.len()).finish()
    }
}

/// The text of a `vendor-data` block.
#[derive(Clone, PartialEq, Eq)]
pub struct VendorData(Vec<u8>);

impl VendorData {
    /// The text, byte for byte.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// As for [`UserData`].
impl fmt::Debug for VendorData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VendorData").field("bytes", &self.0.len()).finish()
    }
}

/// Why a block cannot be used, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {flaw}")]
pub struct BlockError {
    /// Line of the Notes, from 1: where the flaw is, or where the block opens if it cannot be told.
    pub line: usize,
    /// Character of the line, from 1.
    pub column: usize,
    /// Why.
    pub flaw: Flaw,
}

/// What is wrong with a block. Quotes nothing of it, but the name of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Mark and name are beyond doubt, and yet it is not an opening.
    #[error(
        "the opening cannot be read: {0}; it must read `<!--#name` from the start of the line, then a blank or nothing"
    )]
    Opening(Slip),
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
    #[error("unknown attribute{} on the opening line; there is `encoding`, and `secrets` for user-data", named(*.0))]
    UnknownAttribute(Option<AttributeName>),
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
    #[error(transparent)]
    NotDecodable(Undecodable),
    /// The text is no network configuration.
    #[error("not a network configuration: {0}")]
    Network(BadNetwork),
    /// The text is no policy.
    #[error("not a policy: {0}")]
    Policy(BadPolicy),
}

impl Flaw {
    /// What a guest is told that asks for a document which the block should have said.
    #[must_use]
    pub fn outcome(self) -> Outcome {
        if self == Self::SetName { Outcome::SetNameInvalid } else { Outcome::NotesInvalid }
    }
}

fn named(attribute: Option<AttributeName>) -> String {
    attribute.map(|name| format!(" `{name}`")).unwrap_or_default()
}

impl Notes {
    /// Reads the decoded Notes of a VM that has these NICs.
    #[must_use]
    pub fn parse(text: &str, nics: &[Nic]) -> Self {
        let text = text.replace("\r\n", "\n");
        let mut opened = [Opened::default(); Name::ALL.len()];
        let mut remarks = Remarks::default();
        for part in block::parts(&text) {
            match part {
                Part::Block(block) => {
                    if block.name == Name::Pxe {
                        remarks.push(remark(block.name, block.line, 1, Oddity::Unheeded));
                    }
                    opened[block.name as usize].push(block);
                }
                Part::Misspelt(line, Slipped { meant: Meant::Block(name), slip, column, .. }) => {
                    remarks.push(remark(name, line, column, Oddity::Misspelt { name: name.word(), slip }));
                }
                Part::Misspelt(line, Slipped { meant: Meant::MetaData, column, .. }) => {
                    let what = Oddity::NoSuchBlock;
                    remarks.push(Remark { line, column, block: Some(META_DATA), what, outcome: None });
                }
                Part::Stray { line, column } => {
                    remarks.push(Remark { line, column, block: None, what: Oddity::Stray, outcome: None });
                }
            }
        }
        let policy = opened[Name::Imds as usize].read_each(|block| {
            let attributes = Attributes::read(block)?;
            let flaws = |flaws: Flaws<BadPolicy>| flaws.map(|flaw| attributes.policy(block, flaw));
            Policy::parse(&attributes.decode(block)?).map_err(flaws)
        });
        let further = match &policy {
            Some(Err(flaws)) => flaws.more.clone(),
            _ => Vec::new(),
        };
        let mut notes = Self {
            user_data: opened[Name::UserData as usize].read(|block| {
                let attributes = Attributes::read(block)?;
                Ok(UserData { text: attributes.decode(block)?, secrets: attributes.secrets })
            }),
            network_config: opened[Name::NetworkConfig as usize].read(|block| {
                let attributes = Attributes::read(block)?;
                NetworkText::new(attributes.decode(block)?).map_err(|error| attributes.network(block, error))
            }),
            vendor_data: opened[Name::VendorData as usize]
                .read(|block| Ok(VendorData(Attributes::read(block)?.decode(block)?))),
            policy: policy.map(|read| read.map_err(|flaws| flaws.first)),
            remarks: Vec::new(),
        };
        let unfilled = matches!(&notes.user_data, Some(Ok(UserData { secrets: None, text })) if has_places(text));
        let unfilled = opened[Name::UserData as usize].first.filter(|_| unfilled);
        let unfilled = unfilled.map(|block| remark(block.name, block.line, 1, Oddity::Unfilled));
        let network = opened[Name::NetworkConfig as usize].first.filter(|_| notes.leaves_out(nics));
        let network = network.map(|block| remark(block.name, block.line, 1, Oddity::NobodysNetwork(NicList::of(nics))));
        let broken = notes.broken().chain(further.iter().map(|error| (Name::Imds, error)));
        let broken = broken.map(|(name, error)| remark(name, error.line, error.column, error.flaw.into()));
        notes.remarks = remarks.with(unfilled.into_iter().chain(network).chain(broken));
        notes
    }

    /// Whether there is a network configuration, and it is for none of these NICs as far as Nova's document goes.
    fn leaves_out(&self, nics: &[Nic]) -> bool {
        let Some(Ok(network)) = &self.network_config else { return false };
        !nics.is_empty() && !is_for_any(network.plan(), nics)
    }

    /// The secret set that user data asks for, if its block can be used and says so.
    #[must_use]
    pub fn secret_set(&self) -> Option<&SetName> {
        self.user_data.as_ref()?.as_ref().ok()?.secrets.as_ref()
    }

    fn broken(&self) -> impl Iterator<Item = (Name, &BlockError)> {
        let all = [
            (Name::UserData, failure(self.user_data.as_ref())),
            (Name::NetworkConfig, failure(self.network_config.as_ref())),
            (Name::VendorData, failure(self.vendor_data.as_ref())),
            (Name::Imds, failure(self.policy.as_ref())),
        ];
        all.into_iter().filter_map(|(name, error)| Some((name, error?)))
    }
}

fn failure<T>(block: Option<&Result<T, BlockError>>) -> Option<&BlockError> {
    block?.as_ref().err()
}

/// A flaw, and where it is as seen from the opening.
struct Found {
    /// Lines below the opening.
    below: usize,
    /// Character of that line, from 1.
    column: usize,
    flaw: Flaw,
}

/// Of the block as a whole.
impl From<Flaw> for Found {
    fn from(flaw: Flaw) -> Self {
        Self { below: 0, column: 1, flaw }
    }
}

fn remark(name: Name, line: usize, column: usize, what: Oddity) -> Remark {
    let outcome = match what {
        Oddity::Broken(flaw) => name.broken(flaw),
        Oddity::Unfilled
        | Oddity::Unheeded
        | Oddity::Misspelt { .. }
        | Oddity::NoSuchBlock
        | Oddity::NobodysNetwork(_)
        | Oddity::Stray
        | Oddity::More(_) => None,
    };
    Remark { line, column, block: Some(name.word()), what, outcome }
}

/// The blocks of one name.
#[derive(Clone, Copy, Default)]
struct Opened<'t> {
    first: Option<Block<'t>>,
    /// Line of the second one. It spoils the first, for nobody can say which was meant, and a third spoils no more.
    second: Option<usize>,
}

impl<'t> Opened<'t> {
    fn push(&mut self, block: Block<'t>) {
        match self.first {
            None => self.first = Some(block),
            Some(_) => _ = self.second.get_or_insert(block.line),
        }
    }

    /// The only block, read by `read`.
    fn read<T>(&self, read: impl Fn(&Block<'t>) -> Result<T, Found>) -> Option<Result<T, BlockError>> {
        Some(self.read_each(|block| read(block).map_err(Flaws::from))?.map_err(|flaws| flaws.first))
    }

    /// The only block, read by a `read` that says all that is wrong with it.
    fn read_each<T>(
        &self,
        read: impl Fn(&Block<'t>) -> Result<T, Flaws<Found>>,
    ) -> Option<Result<T, Flaws<BlockError>>> {
        let first = self.first?;
        Some(match self.second {
            Some(line) => Err(BlockError { line, column: 1, flaw: Flaw::Twice { first: first.line } }.into()),
            None => read(&first).map_err(|flaws| {
                flaws.map(|Found { below, column, flaw }| BlockError { line: first.line + below, column, flaw })
            }),
        })
    }
}

/// The attributes of an opening line.
struct Attributes {
    secrets: Option<SetName>,
    encoding: Encoding,
}

impl Attributes {
    fn read(block: &Block<'_>) -> Result<Self, Found> {
        let attributes = block.attributes.map_err(|Slipped { slip, column, .. }| Found {
            below: 0,
            column,
            flaw: Flaw::Opening(slip),
        })?;
        let (mut secrets, mut encoding) = (None, None);
        for attribute in attributes.split_ascii_whitespace() {
            // Both are slices of one line.
            let within = attribute.as_ptr().addr() - attributes.as_ptr().addr();
            let column = block.name.opening().len() + attributes[..within].chars().count() + 1;
            let flawed = |flaw| Found { below: 0, column, flaw };
            match attribute.split_once('=') {
                Some(("secrets", name)) if block.name == Name::UserData => {
                    let name = SetName::parse(name).ok_or_else(|| flawed(Flaw::SetName))?;
                    put_once("secrets", &mut secrets, name).map_err(flawed)?;
                }
                Some(("encoding", word)) => {
                    let parsed = Encoding::parse(word).ok_or_else(|| flawed(Flaw::UnknownEncoding))?;
                    put_once("encoding", &mut encoding, parsed).map_err(flawed)?;
                }
                _ => return Err(flawed(Flaw::UnknownAttribute(AttributeName::of(attribute)))),
            }
        }
        Ok(Self { secrets, encoding: encoding.unwrap_or_default() })
    }

    fn decode(&self, block: &Block<'_>) -> Result<Vec<u8>, Found> {
        let text = block.text.ok_or(Flaw::Unclosed)?;
        self.encoding.decode(text).map_err(|(why, at)| match at {
            None => Flaw::NotDecodable(why).into(),
            Some(at) => {
                let before = text.get(..at).unwrap_or_default();
                let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
                Found { below: 1 + before.matches('\n').count(), column, flaw: Flaw::NotDecodable(why) }
            }
        })
    }

    fn network(&self, block: &Block<'_>, error: BadNetwork) -> Found {
        let found = |place, told: &dyn Fn(Option<(u64, u64)>) -> BadNetwork| {
            self.within(block, place, |place| Flaw::Network(told(place)))
        };
        match error {
            BadNetwork::Yaml(yaml) => found(yaml.place, &|place| YamlError { place, ..yaml }.into()),
            BadNetwork::Twice { part, place } => found(place, &|place| BadNetwork::Twice { part, place }),
            BadNetwork::Beside { part, place } => found(place, &|place| BadNetwork::Beside { part, place }),
            BadNetwork::NoVersion | BadNetwork::OtherVersion => Flaw::Network(error).into(),
        }
    }

    fn policy(&self, block: &Block<'_>, error: BadPolicy) -> Found {
        let found = |place, told: &dyn Fn(Option<(u64, u64)>) -> BadPolicy| {
            self.within(block, place, |place| Flaw::Policy(told(place)))
        };
        match error {
            BadPolicy::Yaml(yaml) => found(yaml.place, &|place| YamlError { place, ..yaml }.into()),
            BadPolicy::UnknownKey { place } => found(place, &|place| BadPolicy::UnknownKey { place }),
            BadPolicy::Twice { key, place } => found(place, &|place| BadPolicy::Twice { key, place }),
            BadPolicy::Value { key, wanted, place } => found(place, &|place| BadPolicy::Value { key, wanted, place }),
        }
    }

    /// A flaw in the text. What stands in the Notes as it is has its place there; what is packed keeps the place that it
    /// has once it is unpacked.
    fn within(&self, block: &Block<'_>, place: Option<(u64, u64)>, flaw: impl Fn(Option<(u64, u64)>) -> Flaw) -> Found {
        let numbers = place.and_then(|(line, column)| Some((line.try_into().ok()?, column.try_into().ok()?)));
        match (self.encoding, numbers) {
            (Encoding::Plain, Some(place)) => {
                let (below, column) = in_notes(block.text.unwrap_or_default(), place);
                Found { below, column, flaw: flaw(None) }
            }
            _ => flaw(place).into(),
        }
    }
}

/// Where YAML's `place` is among the lines of the Notes, which end at LF. For YAML a lone CR ends a line too.
fn in_notes(text: &str, place: (usize, usize)) -> (usize, usize) {
    let (mut above, column) = place;
    for (number, line) in (1..).zip(text.split('\n')) {
        let mut before = 0;
        for piece in line.strip_suffix('\r').unwrap_or(line).split('\r') {
            if above == 1 {
                return (number, before + column);
            }
            above -= 1;
            before += piece.chars().count() + 1;
        }
    }
    place
}

fn put_once<T>(name: &'static str, place: &mut Option<T>, value: T) -> Result<(), Flaw> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Flaw::AttributeTwice(name)),
    }
}

#[cfg(test)]
mod tests;
