//! Whether a document has the form of `tests/fixtures/network-data.schema.json`, and holds together.
//!
//! In come a document and the VM it is for; out comes what is wrong with it. Of JSON Schema this knows what that file says,
//! and it stops at a word that it does not know.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use crate::network_data::plan::{Cidr, Mac};
use crate::vm::Vm;

const SCHEMA: &str = include_str!("../../../../../tests/fixtures/network-data.schema.json");

/// What is wrong: nothing, or the first thing that was found.
pub(super) fn wrong(document: &Value, vm: &Vm) -> Option<String> {
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    Schema(&schema).check(&schema, document, "").err().or_else(|| loose(document, vm))
}

struct Schema<'s>(&'s Value);

impl Schema<'_> {
    fn check(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let fields = schema.as_object().expect("a schema is an object");
        for (word, wanted) in fields {
            let right = match word.as_str() {
                "$schema" | "$comment" | "title" | "description" | "definitions" => true,
                "$ref" => {
                    let pointer = wanted.as_str().expect("a reference").trim_start_matches('#');
                    self.check(self.0.pointer(pointer).expect("what is referred to"), value, at)?;
                    true
                }
                "type" => match wanted.as_str().expect("one type") {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_i64() || value.is_u64(),
                    other => panic!("type {other}"),
                },
                "enum" => wanted.as_array().expect("values").contains(value),
                "oneOf" => {
                    let fits = |one: &&Value| self.check(one, value, at).is_ok();
                    wanted.as_array().expect("schemas").iter().filter(fits).count() == 1
                }
                "minLength" => value.as_str().is_none_or(|text| text.len() as u64 >= number(wanted)),
                "minimum" => value.as_u64().is_none_or(|value| value >= number(wanted)),
                "maximum" => value.as_u64().is_none_or(|value| value <= number(wanted)),
                "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= number(wanted)),
                "uniqueItems" => value.as_array().is_none_or(|items| {
                    items.len() == items.iter().map(Value::to_string).collect::<BTreeSet<_>>().len()
                }),
                "items" => {
                    for (place, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(wanted, item, &format!("{at}/{place}"))?;
                    }
                    true
                }
                "required" => {
                    let mut names = wanted.as_array().expect("names").iter().filter_map(Value::as_str);
                    value.as_object().is_none_or(|fields| names.all(|name| fields.contains_key(name)))
                }
                "properties" => {
                    for (name, schema) in wanted.as_object().expect("schemas by names") {
                        if let Some(value) = value.get(name) {
                            self.check(schema, value, &format!("{at}/{name}"))?;
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    let known = fields["properties"].as_object().expect("beside properties");
                    value.as_object().is_none_or(|fields| fields.keys().all(|name| known.contains_key(name)))
                }
                "format" => value.as_str().is_none_or(|text| has_format(text, wanted.as_str().expect("a format"))),
                other => panic!("{other} is not known here"),
            };
            if !right {
                return Err(format!("{at}: {word} {wanted}: {value}"));
            }
        }
        Ok(())
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn has_format(text: &str, format: &str) -> bool {
    let mask = |address: &str| Cidr::parse(address, Some(text)).is_some();
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "ipv4-netmask" => text.parse::<Ipv4Addr>().is_ok() && mask("192.0.2.1"),
        "ipv6-netmask" => text.parse::<Ipv6Addr>().is_ok() && mask("2001:db8::1"),
        "mac" => Mac::parse(text).is_some_and(|mac| mac.to_string() == text),
        "digits" => text.parse::<u32>().is_ok_and(|number| number.to_string() == text),
        other => panic!("format {other}"),
    }
}

/// What no schema says: names lead somewhere and are told apart, cards are the VM's own, each once, and every server is
/// known to clients that look in one place only.
fn loose(document: &Value, vm: &Vm) -> Option<String> {
    let list = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    let macs: BTreeSet<_> = vm.nets.iter().filter_map(|nic| Some(nic.mac.as_ref()?.to_ascii_lowercase())).collect();
    let mut links = BTreeSet::new();
    let mut cards = BTreeSet::new();
    for link in list(document, "links") {
        let below = match text(&link, "type").as_str() {
            "bond" => list(&link, "bond_links").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            "vlan" => vec![text(&link, "vlan_link")],
            _ => {
                let mac = text(&link, "ethernet_mac_address");
                if !macs.contains(&mac) || !cards.insert(mac) {
                    return Some(format!("another's card, or one twice: {link}"));
                }
                Vec::new()
            }
        };
        if below.iter().any(|name| !links.contains(name)) {
            return Some(format!("made of what is not there: {link}"));
        }
        if !links.insert(text(&link, "id")) {
            return Some(format!("a name twice: {link}"));
        }
    }
    if links.is_empty() && !macs.is_empty() {
        return Some("no link".to_owned());
    }
    let services = list(document, "services");
    let mut networks = BTreeSet::new();
    for network in list(document, "networks") {
        if !links.contains(&text(&network, "link")) || !networks.insert(text(&network, "id")) {
            return Some(format!("on no link, or a name twice: {network}"));
        }
        if !list(&network, "services").iter().all(|service| services.contains(service)) {
            return Some(format!("a server that is not at the top: {network}"));
        }
    }
    None
}
