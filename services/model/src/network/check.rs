//! Whether a block's text is a network configuration.
//!
//! In comes a text; out goes the same text, byte for byte, if it is YAML with version 1 or 2 in the place where clients
//! look, and nothing that two clients would read as two configurations: a part that stands twice, or beside `network:`.
//! Nothing more is looked into, because it is the guest's to read: what else stands there is passed over, of whatever
//! shape, and nothing of it is kept. Refused is the rest.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::network_data::Plan;
use crate::yaml::{self, Placed, YamlError};

/// Why a text is no network configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNetwork {
    /// Not YAML, or not a mapping.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// No `version`, neither at the top nor under `network`.
    #[error("no version; say `version: 2` at the top or below `network:`")]
    NoVersion,
    /// A `version` that is neither the number 1 nor the number 2.
    #[error("the version is neither 1 nor 2")]
    OtherVersion,
    /// A part of the configuration that stands there before: some clients take the first, some the last, some none.
    #[error("`{part}` is given twice, and clients differ in which one they take; remove one of them{}", at(*.place))]
    Twice {
        /// Its key.
        part: &'static str,
        /// Line and column of the later one.
        place: Option<(u64, u64)>,
    },
    /// A part of the configuration beside `network:`, where most clients look no more.
    #[error(
        "`{part}` stands beside `network:`, and clients differ in which of them they read; move it below `network:`, or \
         remove one of them{}",
        at(*.place)
    )]
    Beside {
        /// Its key.
        part: &'static str,
        /// Line and column.
        place: Option<(u64, u64)>,
    },
}

fn at(place: Option<(u64, u64)>) -> String {
    place.map(|(line, column)| format!(" (line {line}, column {column})")).unwrap_or_default()
}

/// What holds a whole configuration.
const NETWORK: &str = "network";

/// The keys that either version has at its top.
const PARTS: &[&str] = &["version", "config", "renderer", "ethernets", "wifis", "bonds", "bridges", "vlans", "tunnels"];

/// A text that was checked, byte for byte as it was written, and what it plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkText {
    text: Vec<u8>,
    plan: Plan,
}

impl NetworkText {
    /// Keeps `text` if it [`check`]s.
    ///
    /// # Errors
    /// Why it does not.
    pub fn new(text: Vec<u8>) -> Result<Self, BadNetwork> {
        check(&text)?;
        let plan = Plan::of_text(&text);
        Ok(Self { text, plan })
    }

    /// The text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// What those are given who do not read the text themselves.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// Whether `text` is YAML with `version: 1` or `2`, with or without a top-level `network:`.
///
/// # Errors
/// Why it is not.
pub fn check(text: &[u8]) -> Result<(), BadNetwork> {
    let document = yaml::read::<Option<Versions<true>>>(text)?.unwrap_or_default();
    if let Some(flaw) = document.twice.or_else(|| document.both()) {
        return Err(flaw);
    }
    match document.that_counts() {
        Node::Nothing => Err(BadNetwork::NoVersion),
        Node::Number(1 | 2) => Ok(()),
        Node::Number(_) | Node::Text(_) | Node::Other => Err(BadNetwork::OtherVersion),
    }
}

/// The versions that stand in a mapping, which is the one at the `TOP` or the one below its `network`.
#[derive(Default)]
struct Versions<const TOP: bool> {
    own: Option<Node>,
    /// That of `network`.
    below: Option<Node>,
    /// The first part that stands here, and where.
    part: Option<(&'static str, Option<(u64, u64)>)>,
    /// The first part that stands here, or below `network`, a second time.
    twice: Option<BadNetwork>,
}

impl<const TOP: bool> Versions<TOP> {
    /// Where `network` stands, most clients look nowhere else, whatever its value.
    fn that_counts(self) -> Node {
        self.below.or(self.own).unwrap_or(Node::Nothing)
    }

    /// What stands beside `network`.
    fn both(&self) -> Option<BadNetwork> {
        let (part, place) = self.part.filter(|_| self.below.is_some())?;
        Some(BadNetwork::Beside { part, place })
    }

    /// Beside what `<<` brings.
    fn with(self, merged: Self) -> Self {
        Self {
            own: self.own.or(merged.own),
            below: self.below.or(merged.below),
            part: self.part.or(merged.part),
            twice: self.twice.or(merged.twice),
        }
    }
}

impl<'de, const TOP: bool> Deserialize<'de> for Versions<TOP> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

/// The value of `<<`: a mapping or a list of them, the first of which has the last word.
struct Merged<const TOP: bool>(Versions<TOP>);

impl<'de, const TOP: bool> Deserialize<'de> for Merged<TOP> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Entries).map(Self)
    }
}

/// Of a mapping, or of some.
struct Entries<const TOP: bool>;

impl<'de, const TOP: bool> Visitor<'de> for Entries<TOP> {
    type Value = Versions<TOP>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut merged) = (Versions::default(), Versions::default());
        let mut seen = Vec::new();
        while let Some(Placed { value: key, place }) = map.next_key::<Placed<Node>>()? {
            let Node::Text(key) = key else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let part = PARTS.iter().copied().find(|part| *part == key);
            if let Some(part) = part.or_else(|| (key == NETWORK && TOP).then_some(NETWORK)) {
                if seen.contains(&part) {
                    found.twice.get_or_insert(BadNetwork::Twice { part, place });
                } else {
                    seen.push(part);
                }
            }
            if let Some(part) = part {
                found.part.get_or_insert((part, place));
            }
            match key.as_str() {
                "version" => found.own = Some(map.next_value()?),
                NETWORK if TOP => {
                    let below = map.next_value::<Versions<false>>()?;
                    found.twice = found.twice.or(below.twice);
                    found.below = Some(below.that_counts());
                }
                "<<" => merged = merged.with(map.next_value::<Merged<TOP>>()?.0),
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(found.with(merged))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut found = Versions::default();
        while let Some(next) = seq.next_element()? {
            found = found.with(next);
        }
        Ok(found)
    }
}

/// A key, or the value of `version`: as much of it as anybody asks for. A mapping may have any node for a key.
#[derive(Debug, PartialEq)]
enum Node {
    /// Empty, or not there.
    Nothing,
    Number(u64),
    Text(String),
    Other,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Nothing)
            }

            fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
                Ok(Node::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Node, E> {
                Ok(Node::Text(text.to_owned()))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
                Ok(Node::Other)
            }

            fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
                Ok(Node::Other)
            }

            fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
                Ok(Node::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
                Ok(Node::Other)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
                Ok(Node::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Node::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Node::Other)
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::{Kind, MAX_BYTES};

    #[test]
    fn a_block_is_yaml_with_a_version() {
        let shape = |line, column| Err(BadNetwork::Yaml(YamlError { kind: Kind::Shape, place: Some((line, column)) }));
        for (text, expected) in [
            ("version: 2\nethernets: {}", Ok(())),
            ("version: 1\nconfig: []", Ok(())),
            ("network:\n  version: 2", Ok(())),
            ("# a comment\n---\nversion: 2\n...\n", Ok(())),
            ("version: 2\nethernets: {a: &x {dhcp4: true}, b: *x, c: {<<: *x}}", Ok(())),
            ("version: 3", Err(BadNetwork::OtherVersion)),
            ("version: 0", Err(BadNetwork::OtherVersion)),
            ("version: -1", Err(BadNetwork::OtherVersion)),
            ("version: 2.0", Err(BadNetwork::OtherVersion)),
            ("version: \"2\"", Err(BadNetwork::OtherVersion)),
            ("version: [2]", Err(BadNetwork::OtherVersion)),
            ("ethernets: {}", Err(BadNetwork::NoVersion)),
            ("version:", Err(BadNetwork::NoVersion)),
            ("", Err(BadNetwork::NoVersion)),
            ("network: {}", Err(BadNetwork::NoVersion)),
            ("network:\nversion: 2", shape(1, 8)),
            ("- version: 2", shape(1, 1)),
            ("auto eth0", shape(1, 1)),
        ] {
            assert_eq!(check(text.as_bytes()), expected, "{text}");
        }
        for text in [&b"version: 2\nethernets: ["[..], b"\xff", b"version: 2\n---\nversion: 2"] {
            assert!(matches!(check(text), Err(BadNetwork::Yaml(_))), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn the_rest_is_the_guests_to_read() {
        for rest in [
            "? [a, b]\n: c",
            "? {a: b}\n: c",
            "? versions\n: 2",
            "~: a",
            "1: {2: {3: a}}",
            "true: a",
            ".inf: a",
            "-7: a",
            "99999999999999999999: 99999999999999999999",
            "a: !!binary '?'",
            "a: !!binary QUJD",
            "a: !other {b: c}",
            "a: [.inf, -.inf, .nan, 1e400, 0x1g, 012]",
            "a: {? [b]: c, ? {d: e}: f}",
            "a: 1\na: 2\n1: a\n1: b",
            "a: !!set {b, c}",
            "a: {<<: {b: c}, d: e}",
            "a: {<<: b}",
        ] {
            for text in [
                format!("version: 2\n{rest}"),
                format!("{rest}\nversion: 2"),
                format!("network:\n  version: 2\n{rest}"),
            ] {
                assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
            }
        }
        for (text, expected) in [
            ("network: {version: 2, network: 7}", Ok(())),
            ("network: {network: {version: 2}}", Err(BadNetwork::NoVersion)),
            ("base: &base {version: 1}\nnetwork:\n  <<: *base", Ok(())),
            ("network:\n  <<: [{a: b}, {version: 1}, {version: 3}]", Ok(())),
            ("network:\n  version: 2\n  <<: {version: 3}", Ok(())),
            ("<<: {network: {version: 2}}\na: 3", Ok(())),
            ("x: &x {ethernets: {}, version: 2}\nnetwork: {<<: *x}", Ok(())),
            ("a: {version: 2}", Err(BadNetwork::NoVersion)),
            ("[version]: 2", Err(BadNetwork::NoVersion)),
            ("version: {a: [b]}", Err(BadNetwork::OtherVersion)),
        ] {
            assert_eq!(check(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn what_two_clients_would_read_as_two_networks_is_refused() {
        let twice = |part, line, column| Err(BadNetwork::Twice { part, place: Some((line, column)) });
        let beside = |part, line, column| Err(BadNetwork::Beside { part, place: Some((line, column)) });
        for (text, expected) in [
            ("version: 2\nversion: 1", twice("version", 2, 1)),
            ("version: 2\nversion: 2", twice("version", 2, 1)),
            ("version: 2\n? version\n: 2", twice("version", 2, 3)),
            ("version: 2\nethernets: {a: {}}\nethernets: {b: {}}", twice("ethernets", 3, 1)),
            ("version: 1\nconfig: []\nconfig: []\nversion: 1", twice("config", 3, 1)),
            ("network:\n  version: 2\n  version: 1", twice("version", 3, 3)),
            ("network: {version: 2}\nnetwork: {version: 1}", twice("network", 2, 1)),
            ("network:\n  <<: {version: 2, version: 1}", twice("version", 2, 20)),
            ("network: {version: 2}\nversion: 1", beside("version", 2, 1)),
            ("version: 2\nnetwork: {version: 2}", beside("version", 1, 1)),
            ("network: {}\nversion: 2", beside("version", 2, 1)),
            ("network: {version: 2}\nethernets: {}", beside("ethernets", 2, 1)),
            ("network: {version: 2}\nconfig: []", beside("config", 2, 1)),
            ("<<: {network: {version: 2}}\nversion: 3", beside("version", 2, 1)),
            // What is nobody's may stand anywhere.
            ("network: {version: 2}\nx-mtu: 1500\nx-mtu: 9000", Ok(())),
            ("version: 2\nethernets: {a: {version: 1, version: 1}}", Ok(())),
        ] {
            assert_eq!(check(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn what_a_packed_block_can_hold_is_read() {
        let head = "version: 2\nethernets:\n";
        let nic = "  nic: {match: {macaddress: \"bc:24:11:00:00:01\"}, dhcp4: true, mtu: 1500}\n";
        let many = head.to_owned() + &nic.repeat((MAX_BYTES - head.len()) / nic.len());
        assert_eq!(check(many.as_bytes()), Ok(()));
        let filled = format!("version: 2\n#{}", "x".repeat(MAX_BYTES - 12));
        assert_eq!((filled.len(), check(filled.as_bytes())), (MAX_BYTES, Ok(())));
    }
}
