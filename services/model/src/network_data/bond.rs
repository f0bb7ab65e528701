//! What makes several cards one link, in the words that both versions and Nova have for it.
//!
//! In comes a bond's parameters under either version's names; out go those that Nova's clients know, each checked,
//! because cloudbase-init and Talos give the whole network up for one that they do not. Refused: parameters that clients
//! are not known to read.

use serde_json::Value;

use super::plan::{Kind, MAX_LINKS};
use super::values::{is_short, number, text, words};

/// Modes by their numbers in the kernel (Documentation/networking/bonding.rst).
const MODES: &[&str] =
    &["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];

/// A parameter: version 2's name, the driver's own, which version 1 and Nova write behind `bond`, and what it may be.
type Parameter = (&'static str, &'static str, fn(&Value) -> Option<String>);

const PARAMETERS: &[Parameter] = &[
    ("mii-monitor-interval", "miimon", milliseconds),
    ("up-delay", "updelay", milliseconds),
    ("down-delay", "downdelay", milliseconds),
    ("lacp-rate", "lacp_rate", |rate| one_of(rate, &["slow", "fast"])),
    ("transmit-hash-policy", "xmit_hash_policy", |policy| {
        one_of(policy, &["layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4"])
    }),
];

/// A bond of the cards that `of` names, with the parameters of either version.
pub(super) fn bond(of: &Value, parameters: &Value) -> Kind {
    let written = |known: &[&str]| {
        let fields = parameters.as_object()?;
        let plain =
            |name: &str| name.strip_prefix("bond").map_or(name, |rest| &rest[1.min(rest.len())..]).replace('-', "_");
        fields.iter().find(|(name, _)| known.contains(&name.as_str()) || known.contains(&plain(name).as_str()))
    };
    let mode = written(&["mode"]).and_then(|(_, mode)| mode_of(mode)).unwrap_or(MODES[0]);
    let option = |(second, first, read): &Parameter| {
        let (_, value) = written(&[second, first])?;
        Some((*first, read(value)?))
    };
    let options = PARAMETERS.iter().filter_map(option).collect();
    let of = words(of).into_iter().filter(|name| is_short(name)).take(MAX_LINKS).map(str::to_owned).collect();
    Kind::Bond { of, mode, options }
}

fn mode_of(value: &Value) -> Option<&'static str> {
    match number::<usize>(value) {
        Some(number) => MODES.get(number).copied(),
        None => MODES.iter().find(|mode| value.as_str() == Some(mode)).copied(),
    }
}

fn milliseconds(value: &Value) -> Option<String> {
    number::<u32>(value).map(|milliseconds| milliseconds.to_string())
}

/// One of these words, or its place among them.
fn one_of(value: &Value, words: &[&str]) -> Option<String> {
    let word = text(value)?;
    let place = word.parse().ok().and_then(|place: usize| words.get(place));
    place.or_else(|| words.iter().find(|known| **known == word)).map(|word| (*word).to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_versions_say_the_same_bond() {
        let same = |mode, options: &[(&'static str, &str)]| Kind::Bond {
            of: vec!["net0".to_owned(), "net1".to_owned()],
            mode,
            options: options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        };
        let lacp = || same("802.3ad", &[("miimon", "100"), ("lacp_rate", "fast"), ("xmit_hash_policy", "layer3+4")]);
        for (parameters, expected) in [
            (
                json!({"mode": "802.3ad", "mii-monitor-interval": 100, "lacp-rate": "fast", "transmit-hash-policy": "layer3+4"}),
                lacp(),
            ),
            (
                json!({"bond-mode": "802.3ad", "bond-miimon": "100", "bond-lacp-rate": 1, "bond-xmit-hash-policy": "layer3+4"}),
                lacp(),
            ),
            (json!({"bond_mode": 4, "bond_miimon": 100, "bond_lacp_rate": "fast", "bond_xmit_hash_policy": 1}), lacp()),
            (
                json!({"up-delay": 200, "down-delay": "300"}),
                same("balance-rr", &[("updelay", "200"), ("downdelay", "300")]),
            ),
            // What a client would give up on is not there.
            (
                json!({"mode": "round", "mii-monitor-interval": "soon", "transmit-hash-policy": "vlan+srcmac", "bond": 1}),
                same("balance-rr", &[]),
            ),
            (json!("active-backup"), same("balance-rr", &[])),
            (json!(null), same("balance-rr", &[])),
        ] {
            for of in [json!(["net0", "net1"]), json!("net0 net1")] {
                assert_eq!(bond(&of, &parameters), expected, "{parameters}");
            }
        }
    }
}
