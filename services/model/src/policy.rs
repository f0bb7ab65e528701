//! The policy block `<!--#imds`: what a VM's owner takes away from it.
//!
//! In comes the block's text; out goes a [`Policy`], or everything in it that is not understood: who mends one thing
//! should not meet the next only then. It can only narrow: a policy that is misread could serve more than its owner
//! allowed, so a broken one is an error as a whole, and the VM is then not served at all.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::identity::Audience;
use crate::request::Emulation;
use crate::yaml::{self, Placed, YamlError};

/// How far an answer may travel, as the TTL of its IP packets: 1 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HopLimit(u8);

impl HopLimit {
    /// No router passes it on.
    pub const NEAREST: Self = Self(1);

    /// A limit, if it is one.
    #[must_use]
    pub fn new(hops: u64) -> Option<Self> {
        let hops = u8::try_from(hops).ok()?;
        (1..=64).contains(&hops).then_some(Self(hops))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for HopLimit {
    /// As far as anybody's.
    fn default() -> Self {
        Self(64)
    }
}

/// Whether EC2's session tokens may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ec2Tokens {
    /// Yes.
    #[default]
    Optional,
    /// No.
    Required,
}

/// From which hardware address a VM may ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MacRule {
    /// Any: it may have bridges and containers inside.
    #[default]
    Any,
    /// That of the NIC it asks through, as its configuration says.
    Own,
}

/// What a VM's owner has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Answer at all.
    pub enabled: bool,
    /// The dialects it is shown; `None`: the node's choice.
    pub emulate: Option<Emulation>,
    /// See [`Ec2Tokens`].
    pub ec2_tokens: Ec2Tokens,
    /// See [`HopLimit`].
    pub hop_limit: HopLimit,
    /// See [`MacRule`].
    pub mac: MacRule,
    /// Whom it may ask identity tokens for; `None`: anybody.
    pub audiences: Option<Vec<Audience>>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            enabled: true,
            emulate: None,
            ec2_tokens: Ec2Tokens::default(),
            hop_limit: HopLimit::default(),
            mac: MacRule::default(),
            audiences: None,
        }
    }
}

/// What is wrong with a policy. Lines and columns count from the block's first line. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    /// Not YAML, or not a mapping.
    #[error("{0}")]
    Yaml(#[from] YamlError),
    /// A key that there is not.
    #[error("an unknown key{}; the keys are {}", at(*.place), keys())]
    UnknownKey {
        /// Line and column.
        place: Option<(u64, u64)>,
    },
    /// A key that stands there before.
    #[error("`{key}` is given twice; remove one of them{}", at(*.place))]
    Twice {
        /// The key.
        key: &'static str,
        /// Line and column of the later one.
        place: Option<(u64, u64)>,
    },
    /// A value that the key does not have.
    #[error("`{key}` must be {wanted}{}", at(*.place))]
    Value {
        /// The key.
        key: &'static str,
        /// What it takes.
        wanted: &'static str,
        /// Line and column.
        place: Option<(u64, u64)>,
    },
}

/// How many things are told that are wrong with one policy: more than it has keys, and little enough to log.
pub const MAX_FLAWS: usize = 16;

/// What is wrong with something, by line: one thing at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaws<E> {
    /// The first of them.
    pub first: E,
    /// The others, fewer than [`MAX_FLAWS`].
    pub more: Vec<E>,
}

impl<E> Flaws<E> {
    /// The same things, told otherwise.
    pub fn map<F>(self, mut told: impl FnMut(E) -> F) -> Flaws<F> {
        Flaws { first: told(self.first), more: self.more.into_iter().map(told).collect() }
    }
}

impl<E> From<E> for Flaws<E> {
    fn from(first: E) -> Self {
        Self { first, more: Vec::new() }
    }
}

fn at(place: Option<(u64, u64)>) -> String {
    place.map(|(line, column)| format!(" (line {line}, column {column})")).unwrap_or_default()
}

/// Most audiences a policy may name.
const MAX_AUDIENCES: usize = 32;

/// A key of the block.
struct Key {
    name: &'static str,
    /// What it takes, behind "must be".
    wanted: &'static str,
    /// Decides what the value says; `None`: it is none of those that the key takes.
    decide: fn(&mut Policy, &Value) -> Option<()>,
}

const KEYS: [Key; 6] = [
    Key { name: "enabled", wanted: "true or false", decide: |policy, value| put(&mut policy.enabled, value.as_bool()) },
    Key {
        name: "emulate",
        wanted: "auto, openstack or ec2",
        decide: |policy, value| put(&mut policy.emulate, Emulation::parse(value.as_str()?).map(Some)),
    },
    Key {
        name: "ec2_tokens",
        wanted: "optional or required",
        decide: |policy, value| {
            let tokens = match value.as_str()? {
                "optional" => Some(Ec2Tokens::Optional),
                "required" => Some(Ec2Tokens::Required),
                _ => None,
            };
            put(&mut policy.ec2_tokens, tokens)
        },
    },
    Key {
        name: "hop_limit",
        wanted: "a number from 1 to 64",
        decide: |policy, value| put(&mut policy.hop_limit, HopLimit::new(value.as_u64()?)),
    },
    Key {
        name: "mac",
        wanted: "any or own",
        decide: |policy, value| {
            let rule = match value.as_str()? {
                "any" => Some(MacRule::Any),
                "own" => Some(MacRule::Own),
                _ => None,
            };
            put(&mut policy.mac, rule)
        },
    },
    Key {
        name: "audiences",
        wanted: "a list of at most 32 texts of 1 to 512 characters",
        decide: |policy, value| put(&mut policy.audiences, audiences(value).map(Some)),
    },
];

fn put<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

/// `a, b and c`
fn keys() -> String {
    let [first @ .., last] = KEYS.map(|key| key.name);
    format!("{} and {last}", first.join(", "))
}

impl Policy {
    /// Reads the block's text. An empty one decides nothing.
    ///
    /// # Errors
    /// What is not understood, as far as it is YAML.
    pub fn parse(text: &[u8]) -> Result<Self, Flaws<BadPolicy>> {
        let Written { policy, flaws, .. } = yaml::read_each::<Option<Written>>(text)
            .map_err(|error| Flaws::from(BadPolicy::Yaml(error)))?
            .unwrap_or_default();
        let mut flaws = flaws.into_iter();
        match flaws.next() {
            None => Ok(policy),
            Some(first) => Err(Flaws { first, more: flaws.collect() }),
        }
    }

    /// What the VM is shown where the node shows `node`: never a dialect that the node hides. Tokens that are required
    /// would be worth nothing beside a dialect that has none.
    #[must_use]
    pub fn emulation(&self, node: Emulation) -> Emulation {
        let wanted = match (self.emulate, self.ec2_tokens) {
            (Some(emulate), _) => emulate,
            (None, Ec2Tokens::Required) => Emulation::Ec2,
            (None, Ec2Tokens::Optional) => Emulation::Auto,
        };
        match (wanted, node) {
            (Emulation::Auto, node) => node,
            // EC2 is shown everywhere, somewhere without its listing: it can be all there is.
            (Emulation::Ec2, _) | (Emulation::Openstack, Emulation::Ec2) => Emulation::Ec2,
            (Emulation::Openstack, Emulation::Auto | Emulation::Openstack) => Emulation::Openstack,
        }
    }
}

/// What stands in a block.
#[derive(Default)]
struct Written {
    /// What it says, as far as that is understood.
    policy: Policy,
    /// Which of [`KEYS`] are there.
    seen: [bool; KEYS.len()],
    /// What is wrong, as it stands there.
    flaws: Vec<BadPolicy>,
}

impl Written {
    /// What the value of a key says. A key with nothing behind it is there: `hop_limit:` was meant to limit something.
    fn take(&mut self, at: usize, key: Option<(u64, u64)>, Placed { value, place }: &Placed<Value>) {
        let Key { name, wanted, decide } = &KEYS[at];
        if std::mem::replace(&mut self.seen[at], true) {
            self.flaw(BadPolicy::Twice { key: name, place: key });
        } else if decide(&mut self.policy, value).is_none() {
            self.flaw(BadPolicy::Value { key: name, wanted, place: *place });
        }
    }

    fn flaw(&mut self, flaw: BadPolicy) {
        if self.flaws.len() < MAX_FLAWS {
            self.flaws.push(flaw);
        }
    }
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
                let mut written = Written::default();
                while let Some(Placed { value: name, place }) = map.next_key::<Placed<Value>>()? {
                    match KEYS.iter().position(|key| name.as_str() == Some(key.name)) {
                        Some(at) => written.take(at, place, &map.next_value()?),
                        None => {
                            map.next_value::<IgnoredAny>()?;
                            written.flaw(BadPolicy::UnknownKey { place });
                        }
                    }
                }
                Ok(written)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

fn audiences(value: &Value) -> Option<Vec<Audience>> {
    let items = value.as_array().filter(|items| items.len() <= MAX_AUDIENCES)?;
    items.iter().map(|item| Audience::parse(item.as_str()?)).collect()
}

#[cfg(test)]
mod tests;
