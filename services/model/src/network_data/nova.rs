//! The document that Nova writes, `network_data.json`, of the links that a VM has.
//!
//! Nova's own form is `doc/api_schemas/network_data.json` in its source. Besides it stand here what clients read and Nova
//! does not say: the default route once more as `gateway` (cloud-init writes routes for ifupdown as calls of a program that
//! Debian does not install), search domains as `dns_search`, servers as `dns_nameservers` (cloud-init 22.4 knows no
//! `services` of a network), and a route's `metric`.

use serde_json::{Map, Value, json};

use super::cards::{Laid, Made};
use super::plan::{Family, Kind, Names, Plan, Route, Way, add};

/// Bytes of none of it come from the plan but those of search domains: addresses, numbers and known words are written anew.
pub(super) fn document(plan: &Plan, laid: &[Laid<'_>]) -> Value {
    let mut networks = Vec::new();
    laid.iter().for_each(|laid| networks_of(laid, &mut networks));
    let mut servers = Vec::new();
    for names in laid.iter().map(|laid| &laid.names).chain([&plan.names]) {
        names.servers.iter().for_each(|server| add(&mut servers, *server, usize::MAX));
    }
    let services: Vec<_> = servers.iter().map(service).collect();
    json!({"links": laid.iter().map(link).collect::<Vec<_>>(), "networks": networks, "services": services})
}

fn link(laid: &Laid<'_>) -> Value {
    let mac = laid.mac.to_string();
    let mut link = match (&laid.kind, &laid.link.kind) {
        (Made::Vlan { on, tag }, _) => {
            json!({"id": laid.id, "type": "vlan", "vlan_mac_address": mac, "vlan_link": on, "vlan_id": tag})
        }
        (Made::Bond(of), Kind::Bond { mode, options, .. }) => {
            let mut bond = json!({
                "id": laid.id, "type": "bond", "ethernet_mac_address": mac, "bond_links": of, "bond_mode": mode,
            });
            // All of them texts: Talos takes no number here.
            options.iter().for_each(|(name, value)| bond[format!("bond_{name}")] = json!(value));
            bond
        }
        _ => json!({"id": laid.id, "type": "phy", "ethernet_mac_address": mac}),
    };
    if let Some(mtu) = laid.mtu {
        link["mtu"] = json!(mtu);
    }
    link
}

/// One for each way to an address, with the routes and servers of the link where they belong.
fn networks_of(laid: &Laid<'_>, networks: &mut Vec<Value>) {
    let ways = &laid.link.ways;
    let first = |family: Family| ways.iter().position(|way| way.family() == family);
    let place = |route: &Route| {
        let reaching = ways.iter().position(|way| way.reaches(route.via));
        reaching.or_else(|| first(Family::of(route.via)))
    };
    for (at, way) in ways.iter().enumerate() {
        let routes: Vec<_> = laid.link.routes.iter().filter(|route| place(route) == Some(at)).collect();
        let servers = laid.names.servers.iter().filter(|server| first(Family::of(**server)).unwrap_or(0) == at);
        let names = Names {
            servers: servers.copied().collect(),
            search: if at == 0 { laid.names.search.clone() } else { Vec::new() },
        };
        networks.push(network(&laid.id, networks.len(), *way, &routes, &names));
    }
}

fn network(link: &str, number: usize, way: Way, routes: &[&Route], names: &Names) -> Value {
    let kind = match way {
        Way::Fixed(cidr) if cidr.address.is_ipv4() => "ipv4",
        Way::Fixed(_) => "ipv6",
        Way::Dhcp4 => "ipv4_dhcp",
        Way::Dhcp6 => "ipv6_dhcp",
        Way::Slaac => "ipv6_slaac",
        Way::Stateless => "ipv6_dhcpv6-stateless",
        Way::Stateful => "ipv6_dhcpv6-stateful",
    };
    let mut network = Map::new();
    let mut say = |key: &str, value: Value| _ = network.insert(key.to_owned(), value);
    say("id", json!(format!("network{number}")));
    say("type", json!(kind));
    say("link", json!(link));
    say("network_id", json!(link));
    if let Way::Fixed(cidr) = way {
        say("ip_address", json!(cidr.address));
        say("netmask", json!(cidr.mask()));
        // `gateway` has no metric, and no word for the link itself.
        let plain = |route: &&&Route| route.is_default() && route.metric.is_none() && !route.via.is_unspecified();
        if let Some(route) = routes.iter().find(plain) {
            say("gateway", json!(route.via));
        }
    }
    if !routes.is_empty() {
        say("routes", routes.iter().map(|route| route_of(route)).collect());
    }
    if !names.servers.is_empty() {
        say("services", names.servers.iter().map(service).collect());
        say("dns_nameservers", json!(names.servers));
    }
    if !names.search.is_empty() {
        say("dns_search", json!(names.search));
    }
    Value::Object(network)
}

fn route_of(route: &Route) -> Value {
    let mut written = json!({"network": route.to.address, "netmask": route.to.mask(), "gateway": route.via});
    if let Some(metric) = route.metric {
        written["metric"] = json!(metric);
    }
    written
}

fn service(server: &std::net::IpAddr) -> Value {
    json!({"type": "dns", "address": server})
}
