//! A network configuration of version 1 (curtin's), as a plan.
//!
//! In comes the body; out go its cards, bonds and VLANs, in the order they are written, with what stands beside them given
//! to the links it is for. Refused: bridges and loopback, which Nova's document has no words for.

use serde_json::Value;

use super::bond::bond;
use super::plan::{Cidr, Kind, Link, MAX_LINKS, Mac, Plan, Route, Way};
use super::values::{add_names, address, mtu, route, tag, text, truth, words};

pub(super) fn read(body: &Value) -> Plan {
    let mut plan = Plan::default();
    let parts = body["config"].as_array().map_or(&[][..], Vec::as_slice);
    plan.links.extend(parts.iter().filter_map(link).take(MAX_LINKS));
    for part in parts {
        match part["type"].as_str() {
            Some("nameserver") => {
                let names = match part["interface"].as_str() {
                    None => Some(&mut plan.names),
                    Some(name) => plan.links.iter_mut().find(|link| link.name == name).map(|link| &mut link.names),
                };
                if let Some(names) = names {
                    add_names(names, &part["address"], &part["search"]);
                }
            }
            Some("route") => {
                if let Some(route) = route_of(part) {
                    let leads = |link: &&mut Link| link.ways.iter().any(|way| way.reaches(route.via));
                    if let Some(link) = plan.links.iter_mut().find(leads) {
                        link.route(route);
                    }
                }
            }
            _ => {}
        }
    }
    plan
}

fn link(part: &Value) -> Option<Link> {
    let mac = &part["mac_address"];
    let kind = match part["type"].as_str()? {
        // One with an address that is none is nobody's.
        "physical" if mac.is_null() || Mac::parse(mac.as_str()?).is_some() => Kind::Card,
        "bond" => bond(&part["bond_interfaces"], &part["params"]),
        "vlan" => Kind::Vlan { on: text(&part["vlan_link"])?, tag: tag(&part["vlan_id"])? },
        _ => return None,
    };
    let mut link = Link::new(&text(&part["name"]).unwrap_or_default(), kind);
    link.mac = mac.as_str().and_then(Mac::parse);
    link.mtu = mtu(&part["mtu"]);
    let subnets = part["subnets"].as_array().into_iter().flatten();
    subnets.for_each(|subnet| configure(&mut link, subnet));
    if truth(&part["accept-ra"]) && !link.ways.iter().any(|way| matches!(way, Way::Dhcp6 | Way::Stateful)) {
        link.go(Way::Slaac);
    }
    // Where a link has fixed addresses and others, the others' router advertisements are the last word.
    link.ways.sort_by_key(|way| !matches!(way, Way::Fixed(_)));
    Some(link)
}

fn configure(link: &mut Link, subnet: &Value) {
    let way = match subnet["type"].as_str().unwrap_or_default() {
        "dhcp" | "dhcp4" => Some(Way::Dhcp4),
        "dhcp6" => Some(Way::Dhcp6),
        "ipv6_slaac" => Some(Way::Slaac),
        "ipv6_dhcpv6-stateless" => Some(Way::Stateless),
        "ipv6_dhcpv6-stateful" => Some(Way::Stateful),
        "static" | "static6" => cidr(&subnet["address"], subnet).map(Way::Fixed),
        _ => None,
    };
    if let Some(way) = way {
        link.go(way);
    }
    link.mtu = link.mtu.or_else(|| mtu(&subnet["mtu"]));
    if let Some(via) = address(&subnet["gateway"]) {
        link.route(Route::default(via));
    }
    let routes = subnet["routes"].as_array().into_iter().flatten();
    routes.filter_map(route_of).for_each(|route| link.route(route));
    add_names(&mut link.names, &subnet["dns_nameservers"], &subnet["dns_search"]);
}

fn route_of(route_: &Value) -> Option<Route> {
    let to = if route_["network"].is_null() { &route_["destination"] } else { &route_["network"] };
    route(to, beside(route_).as_deref(), &route_["gateway"], &route_["metric"])
}

fn cidr(address: &Value, fields: &Value) -> Option<Cidr> {
    Cidr::parse(words(address).first()?, beside(fields).as_deref())
}

/// The netmask, or the length of a prefix, that stands beside an address.
fn beside(fields: &Value) -> Option<String> {
    text(&fields["prefix"]).or_else(|| text(&fields["netmask"]))
}
