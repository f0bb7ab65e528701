//! What stands in a document, as something that can be used: the readers' common part.
//!
//! In come values of YAML, of any shape; out come switches, numbers, lists and addresses, or nothing. A value of another
//! shape is not there: the block is the guest's to read, and one slip in it takes only itself away.

use std::net::IpAddr;

use serde_json::Value;

use super::plan::{Cidr, Family, Names, Route};
use crate::format::{boolean, is_dns_name};

/// Longest name of a link, and longest word, in bytes. The kernel's own names have 15; a plan's may say more.
const MAX_TEXT: usize = 64;
/// Longest name in DNS (RFC 1035, section 3.1, without the length bytes and the root).
const MAX_DOMAIN: usize = 253;

/// `true` and its synonyms of YAML 1.1, which clients read by.
pub(super) fn truth(value: &Value) -> bool {
    match value {
        Value::Bool(truth) => *truth,
        Value::String(word) => boolean(word).unwrap_or(false),
        _ => false,
    }
}

/// A number, quoted or not.
pub(super) fn number<N: TryFrom<u64>>(value: &Value) -> Option<N> {
    let number = match value {
        Value::String(digits) => digits.parse().ok()?,
        other => other.as_u64()?,
    };
    number.try_into().ok()
}

/// A short text, or the number it looks like to YAML.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if is_short(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Whether a text may be kept.
pub(super) fn is_short(text: &str) -> bool {
    text.len() <= MAX_TEXT
}

/// The texts of a list, or the words of a text.
pub(super) fn words(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        Value::String(text) => text.split([' ', ',']).filter(|word| !word.is_empty()).collect(),
        _ => Vec::new(),
    }
}

pub(super) fn address(value: &Value) -> Option<IpAddr> {
    value.as_str()?.trim().parse().ok()
}

/// An MTU that a link can have.
pub(super) fn mtu(value: &Value) -> Option<u16> {
    number(value).filter(|mtu| *mtu > 1)
}

/// A VLAN's number (IEEE 802.1Q has 12 bits and keeps the last one for itself).
pub(super) fn tag(value: &Value) -> Option<u16> {
    number(value).filter(|tag| *tag < 4095)
}

/// Adds what `servers` and `search` name.
pub(super) fn add_names(names: &mut Names, servers: &Value, search: &Value) {
    words(servers).into_iter().filter_map(|server| server.parse().ok()).for_each(|server| names.ask(server));
    let domains = words(search).into_iter().map(|domain| domain.trim_end_matches('.'));
    domains
        .filter(|domain| domain.len() <= MAX_DOMAIN && is_dns_name(domain))
        .for_each(|domain| names.look_in(domain.to_owned()));
}

/// A route: where to, with the length of its prefix there or `beside`, and through whom. Without a next hop it is on the
/// link itself.
pub(super) fn route(to: &Value, beside: Option<&str>, via: &Value, metric: &Value) -> Option<Route> {
    let via = match via {
        Value::Null => None,
        via => Some(address(via)?),
    };
    let to = match (to.as_str()?.trim(), via) {
        ("default", Some(via)) => Family::of(via).everywhere(),
        (to, _) => Cidr::parse(to, beside)?,
    };
    Route::new(to, via.unwrap_or_else(|| Family::of(to.address).nobody()), number(metric))
}
