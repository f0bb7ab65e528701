//! What one `ipconfigN` says, as one of version 2's `ethernets`.
//!
//! In come the fields of an `ipconfigN` that Proxmox accepts; out go addresses, gateways, DHCP and router advertisements.
//! The shape is the one that every client reads alike. A default route is `gateway4` or `gateway6`: written as a route,
//! cloud-init 22.4 loses the one of IPv6 where it writes for networkd, and ifupdown gets commands that fail.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

/// One family's words.
struct Family {
    address: &'static str,
    gateway: &'static str,
    dhcp: &'static str,
    /// What version 2 calls the gateway.
    default_route: &'static str,
    /// The address that is nobody's. As a next hop it is the link itself.
    nobody: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family { address: "ip", gateway: "gw", dhcp: "dhcp4", default_route: "gateway4", nobody: "0.0.0.0" },
    Family { address: "ip6", gateway: "gw6", dhcp: "dhcp6", default_route: "gateway6", nobody: "::" },
];

/// DHCPv4 and nothing else.
pub(super) fn dhcp() -> Map<String, Value> {
    Map::from_iter([("dhcp4".to_owned(), json!(true))])
}

/// What `ipconfigN` says. Without an address of either family it says DHCP for both. A gateway beside DHCP, which Proxmox
/// refuses when a VM is started, says nothing.
pub(super) fn addresses(ipconfig: &BTreeMap<String, String>) -> Map<String, Value> {
    let field = |name: &str| ipconfig.get(name).map(String::as_str);
    let neither = FAMILIES.iter().all(|family| field(family.address).is_none());
    let mut ethernet = Map::new();
    let mut say = |key: &str, value: Value| ethernet.insert(key.to_owned(), value);
    let (mut fixed, mut routes) = (Vec::new(), Vec::new());
    for family in &FAMILIES {
        match field(family.address) {
            None if neither => _ = say(family.dhcp, json!(true)),
            None | Some("manual") => {}
            Some("dhcp") => _ = say(family.dhcp, json!(true)),
            Some("auto") => _ = say("accept-ra", json!(true)),
            Some(cidr) => {
                let Some(own) = Own::parse(cidr) else { continue };
                fixed.push(own.to_string());
                let Some(gateway) = field(family.gateway).and_then(|gateway| gateway.parse::<IpAddr>().ok()) else {
                    continue;
                };
                say(family.default_route, json!(gateway));
                if !own.reaches(gateway) {
                    // `on-link: true` is lost on cloud-init's own writers and old Talos, a route without `via` is an
                    // error to them; netplan, in turn, takes no gateway that nothing leads to.
                    let alone = own.most();
                    routes.push(json!({"to": format!("{gateway}/{alone}"), "via": family.nobody}));
                }
            }
        }
    }
    if !fixed.is_empty() {
        say("addresses", json!(fixed));
    }
    if !routes.is_empty() {
        say("routes", json!(routes));
    }
    ethernet
}

/// An address and the length of its prefix, which Proxmox lets begin with zeros and others do not.
struct Own {
    address: IpAddr,
    length: u32,
}

impl Own {
    fn parse(cidr: &str) -> Option<Self> {
        let (address, length) = cidr.split_once('/')?;
        Some(Self { address: address.parse().ok()?, length: length.parse().ok()? })
    }

    /// The length of a prefix with a single address.
    fn most(&self) -> u32 {
        if self.address.is_ipv4() { u32::BITS } else { u128::BITS }
    }

    /// Whether `other` is a neighbour without anybody saying so: within the prefix, or link-local, which for IPv6 always is.
    fn reaches(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (_, IpAddr::V6(other)) if other.is_unicast_link_local() => true,
            (IpAddr::V4(own), IpAddr::V4(other)) => (own.to_bits() ^ other.to_bits()).leading_zeros() >= self.length,
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits() ^ other.to_bits()).leading_zeros() >= self.length,
            _ => false,
        }
    }
}

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cloudinit::ipconfig;

    #[test]
    fn each_ipconfig_is_one_ethernet() {
        for (text, expected) in [
            ("ip=dhcp", json!({"dhcp4": true})),
            ("ip6=dhcp", json!({"dhcp6": true})),
            ("ip6=auto", json!({"accept-ra": true})),
            ("ip=manual", json!({})),
            ("ip=dhcp,gw=192.0.2.1", json!({"dhcp4": true})),
            (" ", json!({"dhcp4": true, "dhcp6": true})),
            ("ip=192.0.2.5/24", json!({"addresses": ["192.0.2.5/24"]})),
            (
                "ip=192.0.2.5/24,gw=192.0.2.1,ip6=2001:db8::5/64,gw6=2001:db8::1",
                json!({
                    "addresses": ["192.0.2.5/24", "2001:db8::5/64"],
                    "gateway4": "192.0.2.1",
                    "gateway6": "2001:db8::1",
                }),
            ),
            (
                "ip=dhcp,ip6=2001:db8::5/64,gw6=fe80::1",
                json!({"dhcp4": true, "addresses": ["2001:db8::5/64"], "gateway6": "fe80::1"}),
            ),
            (
                "ip=203.0.113.5/32,gw=198.51.100.1,ip6=2001:db8::5/128,gw6=2001:db8:ffff::1",
                json!({
                    "addresses": ["203.0.113.5/32", "2001:db8::5/128"],
                    "gateway4": "198.51.100.1",
                    "gateway6": "2001:db8:ffff::1",
                    "routes": [
                        {"to": "198.51.100.1/32", "via": "0.0.0.0"},
                        {"to": "2001:db8:ffff::1/128", "via": "::"},
                    ],
                }),
            ),
            // Just within the prefix, and just not.
            ("ip=192.0.2.130/25,gw=192.0.2.255", json!({"addresses": ["192.0.2.130/25"], "gateway4": "192.0.2.255"})),
            (
                "ip=192.0.2.130/25,gw=192.0.2.127",
                json!({
                    "addresses": ["192.0.2.130/25"],
                    "gateway4": "192.0.2.127",
                    "routes": [{"to": "192.0.2.127/32", "via": "0.0.0.0"}],
                }),
            ),
            // Proxmox takes it, and no client would.
            (
                "ip=192.0.2.5/024,gw=192.0.2.1,ip6=2001:db8::5/0064",
                json!({"addresses": ["192.0.2.5/24", "2001:db8::5/64"], "gateway4": "192.0.2.1"}),
            ),
        ] {
            assert_eq!(Value::Object(addresses(&ipconfig(text).unwrap())), expected, "{text}");
        }
    }
}
