//! A network configuration of version 2 (netplan's), as a plan.
//!
//! In comes the body; out go its cards, bonds and VLANs, in the order they are written. Refused: bridges, tunnels, radio and
//! virtual routing, which Nova's document has no words for.

use serde_json::Value;

use super::bond::bond;
use super::plan::{Cidr, Kind, Link, MAX_LINKS, Mac, Plan, Route, Way};
use super::values::{add_names, address, is_short, mtu, route, tag, text, truth};

pub(super) fn read(body: &Value) -> Plan {
    let section = |name: &str| body[name].as_object().into_iter().flatten().filter(|(name, _)| is_short(name));
    let cards = section("ethernets").filter_map(|(name, card)| {
        let mut link = link(name, Kind::Card, card);
        link.mac = match &card["match"]["macaddress"] {
            Value::Null => None,
            mac => Some(Mac::parse(mac.as_str()?)?),
        };
        Some(link)
    });
    let bonds = section("bonds").map(|(name, body)| {
        let kind = bond(&body["interfaces"], &body["parameters"]);
        made(name, kind, body)
    });
    let vlans = section("vlans").filter_map(|(name, body)| {
        let kind = Kind::Vlan { on: text(&body["link"])?, tag: tag(&body["id"])? };
        Some(made(name, kind, body))
    });
    Plan { links: cards.chain(bonds).chain(vlans).take(MAX_LINKS).collect(), ..Plan::default() }
}

/// A link that the guest makes, with the hardware address that it is to have.
fn made(name: &str, kind: Kind, body: &Value) -> Link {
    let mac = body["macaddress"].as_str().and_then(Mac::parse);
    Link { mac, ..link(name, kind, body) }
}

fn link(name: &str, kind: Kind, body: &Value) -> Link {
    let mut link = Link::new(name, kind);
    link.mtu = mtu(&body["mtu"]);
    for item in list(&body["addresses"]) {
        // An address may have a mapping of its own for what is said of it.
        let text = item.as_str().or_else(|| item.as_object()?.keys().next().map(String::as_str));
        if let Some(cidr) = text.and_then(|text| Cidr::parse(text, None)) {
            link.go(Way::Fixed(cidr));
        }
    }
    if truth(&body["dhcp4"]) {
        link.go(Way::Dhcp4);
    }
    if truth(&body["dhcp6"]) {
        link.go(Way::Dhcp6);
    } else if truth(&body["accept-ra"]) {
        link.go(Way::Slaac);
    }
    for gateway in ["gateway4", "gateway6"] {
        if let Some(via) = address(&body[gateway]) {
            link.route(Route::default(via));
        }
    }
    for item in list(&body["routes"]) {
        let to = &item["to"];
        let alone = if to.as_str().is_some_and(|to| to.contains(':')) { "128" } else { "32" };
        let Some(route) = route(to, Some(alone), &item["via"], &item["metric"]) else { continue };
        if truth(&item["on-link"]) {
            link.route(Route::neighbour(route.via));
        }
        link.route(route);
    }
    add_names(&mut link.names, &body["nameservers"]["addresses"], &body["nameservers"]["search"]);
    link
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
