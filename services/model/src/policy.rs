//! The policy block `<!--#imds`: what a VM's owner takes away from it.
//!
//! In comes the block's text; out goes a [`Policy`], or the first thing in it that is not understood. It can only
//! narrow: a policy that is misread could serve more than its owner allowed, so a broken one is an error as a whole, and
//! the VM is then not served at all.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

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
    pub audiences: Option<Vec<String>>,
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

/// Why a policy cannot be used. Lines and columns count from the block's first line. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    /// Not a mapping of the keys there are.
    #[error("{0}; the keys are enabled, emulate, ec2_tokens, hop_limit, mac and audiences, each at most once")]
    Yaml(#[from] YamlError),
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

fn at(place: Option<(u64, u64)>) -> String {
    place.map(|(line, column)| format!(" (line {line}, column {column})")).unwrap_or_default()
}

/// Most audiences a policy may name.
const MAX_AUDIENCES: usize = 32;

/// Longest audience, in bytes.
const MAX_AUDIENCE: usize = 512;

impl Policy {
    /// Reads the block's text. An empty one decides nothing.
    ///
    /// # Errors
    /// The first thing that is not understood.
    pub fn parse(text: &[u8]) -> Result<Self, BadPolicy> {
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct Written {
            enabled: Key,
            emulate: Key,
            ec2_tokens: Key,
            hop_limit: Key,
            mac: Key,
            audiences: Key,
        }

        let written = yaml::read_once::<Option<Written>>(text)?.unwrap_or_default();
        let default = Self::default();
        Ok(Self {
            enabled: take("enabled", written.enabled, "true or false", Value::as_bool)?.unwrap_or(default.enabled),
            emulate: take("emulate", written.emulate, "auto, openstack or ec2", |value| {
                Emulation::parse(value.as_str()?)
            })?,
            ec2_tokens: take("ec2_tokens", written.ec2_tokens, "optional or required", |value| {
                match value.as_str()? {
                    "optional" => Some(Ec2Tokens::Optional),
                    "required" => Some(Ec2Tokens::Required),
                    _ => None,
                }
            })?
            .unwrap_or_default(),
            hop_limit: take("hop_limit", written.hop_limit, "a number from 1 to 64", |value| {
                HopLimit::new(value.as_u64()?)
            })?
            .unwrap_or_default(),
            mac: take("mac", written.mac, "any or own", |value| match value.as_str()? {
                "any" => Some(MacRule::Any),
                "own" => Some(MacRule::Own),
                _ => None,
            })?
            .unwrap_or_default(),
            audiences: take(
                "audiences",
                written.audiences,
                "a list of at most 32 texts of 1 to 512 characters",
                audiences,
            )?,
        })
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

/// What stands behind a key. A key with nothing behind it is there: `hop_limit:` was meant to limit something.
#[derive(Default)]
struct Key(Option<Placed<Value>>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Placed::deserialize(deserializer).map(|value| Self(Some(value)))
    }
}

/// The value of a key, if the key is there; it must be one that the key can have.
fn take<T>(
    key: &'static str,
    written: Key,
    wanted: &'static str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, BadPolicy> {
    let Some(Placed { value, place }) = written.0 else { return Ok(None) };
    read(&value).map(Some).ok_or(BadPolicy::Value { key, wanted, place })
}

fn audiences(value: &Value) -> Option<Vec<String>> {
    let items = value.as_array().filter(|items| items.len() <= MAX_AUDIENCES)?;
    let audience = |item: &Value| {
        let text = item.as_str()?;
        let printable = text.chars().all(|c| !c.is_control());
        ((1..=MAX_AUDIENCE).contains(&text.len()) && printable).then(|| text.to_owned())
    };
    items.iter().map(audience).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::Kind;

    #[test]
    fn a_policy_is_understood_whole_or_is_an_error() {
        let default = Policy::default;
        let value = |key, wanted, place| Err(BadPolicy::Value { key, wanted, place: Some(place) });
        let yaml = |kind, place| Err(BadPolicy::Yaml(YamlError { kind, place }));
        let (enabled, emulate) = ("true or false", "auto, openstack or ec2");
        let (hops, some) = ("a number from 1 to 64", "a list of at most 32 texts of 1 to 512 characters");
        for (text, expected) in [
            ("", Ok(default())),
            ("# nothing yet", Ok(default())),
            ("{}", Ok(default())),
            ("enabled: true", Ok(default())),
            ("enabled: false", Ok(Policy { enabled: false, ..default() })),
            ("emulate: auto", Ok(Policy { emulate: Some(Emulation::Auto), ..default() })),
            ("emulate: ec2", Ok(Policy { emulate: Some(Emulation::Ec2), ..default() })),
            ("emulate: openstack", Ok(Policy { emulate: Some(Emulation::Openstack), ..default() })),
            ("ec2_tokens: optional", Ok(default())),
            ("ec2_tokens: required", Ok(Policy { ec2_tokens: Ec2Tokens::Required, ..default() })),
            ("hop_limit: 1", Ok(Policy { hop_limit: HopLimit(1), ..default() })),
            ("hop_limit: 64\nmac: any", Ok(default())),
            ("mac: own", Ok(Policy { mac: MacRule::Own, ..default() })),
            ("audiences: []", Ok(Policy { audiences: Some(vec![]), ..default() })),
            ("audiences: [a, \"b c\"]", Ok(Policy { audiences: Some(vec!["a".into(), "b c".into()]), ..default() })),
            ("enabled: 0", value("enabled", enabled, (1, 10))),
            ("mac: own\nenabled: \"false\"", value("enabled", enabled, (2, 10))),
            ("enabled:", value("enabled", enabled, (1, 8))),
            ("emulate: EC2", value("emulate", emulate, (1, 10))),
            ("hop_limit: 0", value("hop_limit", hops, (1, 12))),
            ("hop_limit: 65", value("hop_limit", hops, (1, 12))),
            ("hop_limit: 320", value("hop_limit", hops, (1, 12))),
            ("hop_limit: -1", value("hop_limit", hops, (1, 12))),
            ("hop_limit: 1.0", value("hop_limit", hops, (1, 12))),
            ("hop_limit: \"1\"", value("hop_limit", hops, (1, 12))),
            ("audiences: a", value("audiences", some, (1, 12))),
            ("audiences: [1]", value("audiences", some, (1, 12))),
            ("audiences: [\"\"]", value("audiences", some, (1, 12))),
            ("audiences: [\"a\\n\"]", value("audiences", some, (1, 12))),
            ("Enabled: false", yaml(Kind::UnknownKey, Some((1, 1)))),
            ("enabled: false\nhoplimit: 1", yaml(Kind::UnknownKey, Some((2, 1)))),
            ("enabled: true\nenabled: false", yaml(Kind::Twice, Some((2, 1)))),
            ("- enabled", yaml(Kind::Shape, Some((1, 1)))),
            ("enabled", yaml(Kind::Shape, Some((1, 1)))),
        ] {
            assert_eq!(Policy::parse(text.as_bytes()), expected, "{text}");
        }
        let many = |count| format!("audiences: [{}]", vec!["a"; count].join(", "));
        assert!(Policy::parse(many(32).as_bytes()).is_ok());
        assert!(Policy::parse(many(33).as_bytes()).is_err());
        assert!(Policy::parse(b"enabled: [").is_err());
        assert!(Policy::parse(b"\xff").is_err());
    }

    #[test]
    fn a_policy_narrows_what_the_node_shows_and_tokens_leave_the_dialect_that_has_them() {
        use Emulation as E;
        let policy = |emulate, ec2_tokens| Policy { emulate, ec2_tokens, ..Policy::default() };
        for (emulate, tokens, node, shown) in [
            (None, Ec2Tokens::Optional, E::Auto, E::Auto),
            (None, Ec2Tokens::Optional, E::Openstack, E::Openstack),
            (None, Ec2Tokens::Optional, E::Ec2, E::Ec2),
            (Some(E::Auto), Ec2Tokens::Optional, E::Auto, E::Auto),
            (Some(E::Auto), Ec2Tokens::Optional, E::Openstack, E::Openstack),
            (Some(E::Auto), Ec2Tokens::Optional, E::Ec2, E::Ec2),
            (Some(E::Openstack), Ec2Tokens::Optional, E::Auto, E::Openstack),
            (Some(E::Openstack), Ec2Tokens::Optional, E::Openstack, E::Openstack),
            (Some(E::Openstack), Ec2Tokens::Optional, E::Ec2, E::Ec2),
            (Some(E::Ec2), Ec2Tokens::Optional, E::Auto, E::Ec2),
            (Some(E::Ec2), Ec2Tokens::Optional, E::Openstack, E::Ec2),
            (Some(E::Ec2), Ec2Tokens::Optional, E::Ec2, E::Ec2),
            (None, Ec2Tokens::Required, E::Auto, E::Ec2),
            (None, Ec2Tokens::Required, E::Openstack, E::Ec2),
            (Some(E::Auto), Ec2Tokens::Required, E::Auto, E::Auto),
        ] {
            assert_eq!(policy(emulate, tokens).emulation(node), shown, "{emulate:?} {tokens:?} {node:?}");
        }
    }
}
