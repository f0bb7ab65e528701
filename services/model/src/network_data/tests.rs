#![allow(clippy::unwrap_used)]

mod any;
mod schema;

use serde_json::json;

use super::*;
use crate::conf;
use crate::site::Dns;
use crate::vm::VmId;

/// Three cards that can be told apart, one that cannot.
const NICS: &str = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\nnet1: virtio=BC:24:11:00:00:02,bridge=vmbr0,mtu=9000\n\
                    net2: e1000=BC:24:11:00:00:03,bridge=vmbr0,mtu=1\nnet3: virtio,bridge=vmbr0\n";

fn vm(options: &str, block: &str) -> Vm {
    let lines: String =
        block.lines().map(|line| format!("#{}\n", line.replace('%', "%25").replace(':', "%3A"))).collect();
    let notes = if block.is_empty() { String::new() } else { format!("#<!--#network-config\n{lines}#-->\n") };
    conf::parse(VmId::new(100).unwrap(), format!("{notes}{NICS}{options}").as_bytes()).vm
}

fn site() -> Site {
    let dns = Dns { servers: vec!["192.0.2.53".into()], search: vec!["node.example".into()] };
    Site { dns: dns.into(), ..Site::default() }
}

/// The document in short: a line for each link, network and server, with all that is in it and nothing else.
fn told(document: &Value) -> Vec<String> {
    let line = |of: &Value| {
        let fields =
            of.as_object().unwrap().iter().filter(|(key, _)| *key != "network_id" && *key != "dns_nameservers");
        let plain = |value: &Value| value.to_string().replace('"', "");
        fields.map(|(_, value)| plain(value)).collect::<Vec<_>>().join(" ")
    };
    let part = |key: &str| document[key].as_array().unwrap().iter().map(line).collect::<Vec<_>>();
    [part("links"), part("networks"), part("services")].concat()
}

#[track_caller]
fn tells(options: &str, block: &str, expected: &[&str]) {
    let vm = vm(options, block);
    let document = network_data(&vm, &site());
    assert_eq!(told(&document), expected, "{options}{block}\n{document:#}");
    assert_eq!(schema::wrong(&document, &vm), None, "{document:#}");
}

const DHCP: &[&str] = &[
    "net0 phy bc:24:11:00:00:01",
    "net1 phy bc:24:11:00:00:02 9000",
    "net2 phy bc:24:11:00:00:03",
    "network0 ipv4_dhcp net0",
    "network1 ipv4_dhcp net1",
    "network2 ipv4_dhcp net2",
];

#[test]
fn the_whole_of_it() {
    let block = "version: 2\nethernets:\n  lan:\n    match: {macaddress: \"BC:24:11:00:00:01\"}\n    mtu: 1400\n    \
                 addresses: [192.0.2.5/24, \"2001:db8::5/64\"]\n    gateway4: 192.0.2.1\n    routes:\n    - {to: \"2001:db8:5::/48\", \
                 via: \"2001:db8::2\", metric: 7}\n    nameservers: {addresses: [\"2001:db8::53\", 192.0.2.53], search: [a.example]}\n";
    let vm = vm("", block);
    let document = network_data(&vm, &site());
    let expected = json!({
        "links": [{"id": "net0", "type": "phy", "ethernet_mac_address": "bc:24:11:00:00:01", "mtu": 1400}],
        "networks": [
            {
                "id": "network0", "type": "ipv4", "link": "net0", "network_id": "net0",
                "ip_address": "192.0.2.5", "netmask": "255.255.255.0", "gateway": "192.0.2.1",
                "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.0.2.1"}],
                "services": [{"type": "dns", "address": "192.0.2.53"}], "dns_nameservers": ["192.0.2.53"],
                "dns_search": ["a.example"],
            },
            {
                "id": "network1", "type": "ipv6", "link": "net0", "network_id": "net0",
                "ip_address": "2001:db8::5", "netmask": "ffff:ffff:ffff:ffff::",
                "routes": [
                    {"network": "2001:db8:5::", "netmask": "ffff:ffff:ffff::", "gateway": "2001:db8::2", "metric": 7},
                ],
                "services": [{"type": "dns", "address": "2001:db8::53"}], "dns_nameservers": ["2001:db8::53"],
            },
        ],
        "services": [{"type": "dns", "address": "2001:db8::53"}, {"type": "dns", "address": "192.0.2.53"}],
    });
    // As bytes: the order is the same each time, too.
    assert_eq!(document.to_string(), expected.to_string());
    assert_eq!(network_data(&vm, &site()).to_string(), document.to_string());
    assert_eq!(schema::wrong(&document, &vm), None);
    let addresses = Addresses { ipv4: vec!["192.0.2.5/24".into()], ipv6: vec!["2001:db8::5/64".into()] };
    assert_eq!(Addresses::of(&vm, 0, &site()), addresses);
    assert_eq!(Addresses::of(&vm, 1, &site()), Addresses::default());
}

#[test]
fn what_is_nobodys_here_is_dhcp_for_everybody() {
    for (options, block) in [
        ("", ""),
        ("", "version: 3"),
        ("ipconfig0: ip=192.0.2.5/24\n", "version: 3"),
        ("", "version: 2"),
        ("", "version: 1\nconfig: {}"),
        ("", "network: {version: 2, ethernets: []}"),
        // By a name that only the guest knows, by another VM's address, by one that is none.
        ("", "version: 2\nethernets: {eth0: {dhcp4: true}}"),
        ("", "version: 2\nethernets: {net0: {match: {macaddress: \"bc:24:11:00:00:09\"}, dhcp4: true}}"),
        ("", "version: 2\nethernets: {net0: {match: {macaddress: [1]}, dhcp4: true}}"),
        ("", "version: 1\nconfig: [{type: physical, name: net0, mac_address: x}]"),
        ("", "version: 2\nethernets: {net3: {dhcp4: true}}"),
        // Made of nobody.
        ("", "version: 2\nbonds: {bond0: {interfaces: [net0]}}\nvlans: {v: {id: 5, link: net0}}"),
        ("", "version: 2\n? [a]\n: b\nethernets: {net0: {addresses: [192.0.2.5/24]}}"),
    ] {
        tells(options, block, DHCP);
    }
    let bare = conf::parse(VmId::new(100).unwrap(), b"net0: virtio\n").vm;
    assert_eq!(network_data(&bare, &site()), json!({"links": [], "networks": [], "services": []}));
}

#[test]
fn options_of_proxmox() {
    tells(
        "ipconfig0: ip=192.0.2.5/24,gw=192.0.2.1,ip6=2001:db8::5/64,gw6=2001:db8::1\nipconfig1: ip6=auto\nipconfig2: ip=manual,ip6=dhcp\n",
        "",
        &[
            "net0 phy bc:24:11:00:00:01",
            "net1 phy bc:24:11:00:00:02 9000",
            "net2 phy bc:24:11:00:00:03",
            "network0 ipv4 net0 192.0.2.5 255.255.255.0 192.0.2.1 [{network:0.0.0.0,netmask:0.0.0.0,gateway:192.0.2.1}] \
             [{type:dns,address:192.0.2.53}] [node.example]",
            "network1 ipv6 net0 2001:db8::5 ffff:ffff:ffff:ffff:: 2001:db8::1 [{network:::,netmask:::,gateway:2001:db8::1}]",
            "network2 ipv6_slaac net1",
            "network3 ipv6_dhcp net2",
            "dns 192.0.2.53",
        ],
    );
    // The VM's own servers and domains, on each card.
    tells(
        "nameserver: 192.0.2.9 2001:db8::9\nsearchdomain: a.example\n",
        "",
        &[
            "net0 phy bc:24:11:00:00:01",
            "net1 phy bc:24:11:00:00:02 9000",
            "net2 phy bc:24:11:00:00:03",
            "network0 ipv4_dhcp net0 [{type:dns,address:192.0.2.9},{type:dns,address:2001:db8::9}] [a.example]",
            "network1 ipv4_dhcp net1 [{type:dns,address:192.0.2.9},{type:dns,address:2001:db8::9}] [a.example]",
            "network2 ipv4_dhcp net2 [{type:dns,address:192.0.2.9},{type:dns,address:2001:db8::9}] [a.example]",
            "dns 192.0.2.9",
            "dns 2001:db8::9",
        ],
    );
    let vm = vm("ipconfig1: ip=192.0.2.5/24,gw=192.0.2.1\n", "");
    assert_eq!(Addresses::of(&vm, 1, &site()).ipv4, ["192.0.2.5/24"]);
    assert_eq!(Addresses::of(&vm, 1, &Site { cloudinit: false, ..site() }), Addresses::default());
}

#[test]
fn cards_are_found_by_their_addresses_and_else_by_their_names() {
    for block in [
        "version: 2\nethernets:\n  a: {match: {macaddress: \"BC:24:11:00:00:03\"}, dhcp4: yes}\n  net1: {mtu: 1500}\n  net0x: {}\n  \
         again: {match: {macaddress: \"bc:24:11:00:00:03\"}, addresses: [192.0.2.5/24]}\n",
        "network:\n  version: 1\n  config:\n  - {type: physical, name: eth0, mac_address: \"bc-24-11-00-00-03\", subnets: [{type: dhcp}]}\n  \
         - {type: physical, name: net1, mtu: \"1500\", subnets: [{type: manual}]}\n  - {type: loopback, name: net0}\n  \
         - {type: physical, name: net2, subnets: [{type: static, address: 192.0.2.5/24}]}\n",
    ] {
        tells("", block, &["net2 phy bc:24:11:00:00:03", "net1 phy bc:24:11:00:00:02 1500", "network0 ipv4_dhcp net2"]);
    }
}

#[test]
fn every_way_to_an_address() {
    for (second, first, expected) in [
        ("dhcp4: true", "type: dhcp4", &["ipv4_dhcp net0"][..]),
        ("dhcp6: \"on\"", "type: dhcp6", &["ipv6_dhcp net0"]),
        ("accept-ra: true", "type: ipv6_slaac", &["ipv6_slaac net0"]),
        ("dhcp4: false", "type: manual", &[]),
        ("dhcp4: 7", "type: dhcp7", &[]),
        (
            "addresses: [192.0.2.5/24]",
            "{type: static, address: 192.0.2.5, netmask: 255.255.255.0}",
            &["ipv4 net0 192.0.2.5 255.255.255.0"],
        ),
        (
            "addresses: [192.0.2.5/33, nobody, 5, 192.0.2.6/25]",
            "{type: static, address: 192.0.2.6, netmask: 25}",
            &["ipv4 net0 192.0.2.6 255.255.255.128"],
        ),
        (
            "addresses: [{\"2001:db8::5/56\": {lifetime: 0}}]",
            "{type: static6, address: \"2001:db8::5/56\"}",
            &["ipv6 net0 2001:db8::5 ffff:ffff:ffff:ff00::"],
        ),
        // Addresses are first, or router advertisements would be switched off behind DHCPv6.
        (
            "{dhcp6: true, accept-ra: true, dhcp4: true, addresses: [\"2001:db8::5/64\", 192.0.2.5/24, 192.0.2.6/24, 192.0.2.5/24]}",
            "[{type: dhcp}, {type: dhcp6}, {type: static, address: \"2001:db8::5/64\"}, {type: static, address: 192.0.2.5/24}, \
             {type: static, address: 192.0.2.6/24}]",
            &[
                "ipv6 net0 2001:db8::5 ffff:ffff:ffff:ffff::",
                "ipv4 net0 192.0.2.5 255.255.255.0",
                "ipv4 net0 192.0.2.6 255.255.255.0",
                "ipv4_dhcp net0",
                "ipv6_dhcp net0",
            ],
        ),
    ] {
        let braced = |text: &str| if text.starts_with('{') { text.to_owned() } else { format!("{{{text}}}") };
        let listed = if first.starts_with('[') { first.to_owned() } else { format!("[{}]", braced(first)) };
        let networks = expected.iter().enumerate().map(|(at, line)| format!("network{at} {line}"));
        let expected: Vec<_> = ["net0 phy bc:24:11:00:00:01".to_owned()].into_iter().chain(networks).collect();
        let expected: Vec<_> = expected.iter().map(String::as_str).collect();
        tells("", &format!("version: 2\nethernets: {{net0: {}}}", braced(second)), &expected);
        tells("", &format!("version: 1\nconfig: [{{type: physical, name: net0, subnets: {listed}}}]"), &expected);
    }
    for kind in ["ipv6_dhcpv6-stateful", "ipv6_dhcpv6-stateless"] {
        let block = format!(
            "version: 1\nconfig: [{{type: physical, name: net0, accept-ra: false, subnets: [{{type: {kind}}}]}}]"
        );
        tells("", &block, &["net0 phy bc:24:11:00:00:01", &format!("network0 {kind} net0")]);
    }
}

#[test]
fn routes_stand_where_they_lead_from() {
    let two = "addresses: [192.0.2.5/24, 198.51.100.5/24, \"2001:db8::5/64\"]";
    let first = "network0 ipv4 net0 192.0.2.5 255.255.255.0";
    let second = "network1 ipv4 net0 198.51.100.5 255.255.255.0";
    let third = "network2 ipv6 net0 2001:db8::5 ffff:ffff:ffff:ffff::";
    for (routes, [behind_first, behind_second, behind_third]) in [
        ("gateway4: 198.51.100.1", ["", " 198.51.100.1 [{network:0.0.0.0,netmask:0.0.0.0,gateway:198.51.100.1}]", ""]),
        ("gateway6: fe80::1", ["", "", " fe80::1 [{network:::,netmask:::,gateway:fe80::1}]"]),
        (
            "routes: [{to: default, via: 192.0.2.1}, {to: default, via: \"2001:db8::1\"}]",
            [
                " 192.0.2.1 [{network:0.0.0.0,netmask:0.0.0.0,gateway:192.0.2.1}]",
                "",
                " 2001:db8::1 [{network:::,netmask:::,gateway:2001:db8::1}]",
            ],
        ),
        (
            "routes: [{to: 0.0.0.0/0, via: 192.0.2.1, metric: 5}, {to: \"::/0\", via: \"2001:db8::1\"}]",
            [
                " [{network:0.0.0.0,netmask:0.0.0.0,gateway:192.0.2.1,metric:5}]",
                "",
                " 2001:db8::1 [{network:::,netmask:::,gateway:2001:db8::1}]",
            ],
        ),
        (
            "routes: [{to: 203.0.113.9/24, via: 198.51.100.7}, {to: 203.0.113.9, via: 192.0.2.7}]",
            [
                " [{network:203.0.113.9,netmask:255.255.255.255,gateway:192.0.2.7}]",
                " [{network:203.0.113.0,netmask:255.255.255.0,gateway:198.51.100.7}]",
                "",
            ],
        ),
        // A gateway that no prefix leads to; one that is the link itself.
        (
            "routes: [{to: default, via: 203.0.113.1, on-link: true}, {to: 10.0.0.0/8, scope: link}]",
            [
                " 203.0.113.1 [{network:203.0.113.1,netmask:255.255.255.255,gateway:0.0.0.0},\
                 {network:0.0.0.0,netmask:0.0.0.0,gateway:203.0.113.1},{network:10.0.0.0,netmask:255.0.0.0,gateway:0.0.0.0}]",
                "",
                "",
            ],
        ),
        // Across families, to nowhere, through nobody.
        (
            "routes: [{to: 10.0.0.0/8, via: fe80::1}, {to: x, via: 192.0.2.1}, {to: default}, {to: 10.0.0.0/8, via: x}, 7]",
            ["", "", ""],
        ),
    ] {
        let block = format!("version: 2\nethernets: {{net0: {{{two}, {}}}}}", routes.replace("fe80::1", "\"fe80::1\""));
        let expected = [first, second, third].into_iter().zip([behind_first, behind_second, behind_third]);
        let expected: Vec<_> = expected.map(|(line, behind)| format!("{line}{behind}")).collect();
        let expected: Vec<_> =
            ["net0 phy bc:24:11:00:00:01"].into_iter().chain(expected.iter().map(String::as_str)).collect();
        tells("", &block, &expected);
    }
    // Without an address that it could leave from there is no route; with DHCP there is.
    tells(
        "",
        "version: 2\nethernets: {net0: {dhcp4: true, gateway6: \"fe80::1\", gateway4: 192.0.2.1}}",
        &[
            "net0 phy bc:24:11:00:00:01",
            "network0 ipv4_dhcp net0 [{network:0.0.0.0,netmask:0.0.0.0,gateway:192.0.2.1}]",
        ],
    );
}

#[test]
fn version_1_says_some_things_beside_its_links() {
    let block = "version: 1\nconfig:\n- {type: nameserver, address: [192.0.2.53, 192.0.2.53], search: a.example}\n\
                 - {type: nameserver, address: 192.0.2.54, interface: net1}\n\
                 - {type: nameserver, address: ns.example, search: [\"b.example.\", \"b c\", \"-\"]}\n\
                 - {type: route, destination: 203.0.113.0/24, gateway: 198.51.100.1, metric: 3}\n\
                 - {type: route, destination: 203.0.113.0/24, gateway: 203.0.113.1}\n\
                 - type: physical\n  name: net0\n  subnets:\n  - {type: static, address: 192.0.2.5, netmask: 255.255.255.0, gateway: 192.0.2.1, \
                 dns_nameservers: [192.0.2.55], routes: [{network: 10.0.0.0, netmask: 255.0.0.0, gateway: 192.0.2.2}, \
                 {destination: 172.16.0.0, prefix: 12, gateway: 192.0.2.3}]}\n\
                 - {type: physical, name: net1, subnets: [{type: static, address: 198.51.100.5, dns_search: [c.example], mtu: 1480}]}\n";
    tells(
        "",
        block,
        &[
            "net0 phy bc:24:11:00:00:01",
            "net1 phy bc:24:11:00:00:02 1480",
            "network0 ipv4 net0 192.0.2.5 255.255.255.0 192.0.2.1 [{network:0.0.0.0,netmask:0.0.0.0,gateway:192.0.2.1},\
         {network:10.0.0.0,netmask:255.0.0.0,gateway:192.0.2.2},{network:172.16.0.0,netmask:255.240.0.0,gateway:192.0.2.3}] \
         [{type:dns,address:192.0.2.55}] [a.example,b.example]",
            "network1 ipv4 net1 198.51.100.5 255.255.255.0 [{network:203.0.113.0,netmask:255.255.255.0,gateway:198.51.100.1,metric:3}] \
         [{type:dns,address:192.0.2.54}] [c.example]",
            "dns 192.0.2.55",
            "dns 192.0.2.54",
            "dns 192.0.2.53",
        ],
    );
}

#[test]
fn bonds_and_vlans() {
    let second = "version: 2\nvlans:\n  9: {id: 9, link: bond7, addresses: [192.0.2.5/24]}\n  \
                  own: {id: \"10\", link: a, macaddress: \"02:00:00:00:00:10\", mtu: 1400, dhcp4: true}\n  twice: {id: 10, link: a}\n  \
                  on-vlan: {id: 11, link: own}\n  far: {id: 12, link: eth9}\n  high: {id: 4095, link: a}\nethernets:\n  a: {match: {macaddress: \"bc:24:11:00:00:01\"}}\n  \
                  net1: {}\n  net2: {}\nbonds:\n  bond7:\n    interfaces: [net1, net1, eth9, net2]\n    mtu: 1500\n    parameters: {mode: 802.3ad, \
                  mii-monitor-interval: 100, lacp-rate: fast}\n    dhcp4: true\n  more: {interfaces: [net1, eth9]}\n  of: {interfaces: [bond7]}\n";
    let first = "version: 1\nconfig:\n- {type: vlan, name: bond7.9, vlan_link: bond7, vlan_id: 9, subnets: [{type: static, address: 192.0.2.5/24}]}\n\
                 - {type: vlan, name: own, vlan_link: a, vlan_id: \"10\", mac_address: \"02:00:00:00:00:10\", mtu: 1400, subnets: [{type: dhcp}]}\n\
                 - {type: physical, name: a, mac_address: \"BC:24:11:00:00:01\"}\n- {type: physical, name: net1}\n- {type: physical, name: net2}\n\
                 - {type: bond, name: bond7, bond_interfaces: [net1, net2], mtu: 1500, params: {bond-mode: 4, bond_miimon: 100, bond-lacp-rate: 1}, \
                 subnets: [{type: dhcp}]}\n";
    for block in [second, first] {
        tells(
            "",
            block,
            &[
                "net0 phy bc:24:11:00:00:01",
                "net1 phy bc:24:11:00:00:02 9000",
                "net2 phy bc:24:11:00:00:03",
                "bond0 bond bc:24:11:00:00:02 [net1,net2] 802.3ad 100 fast 1500",
                "bond0.9 vlan bc:24:11:00:00:02 bond0 9",
                "net0.10 vlan 02:00:00:00:00:10 net0 10 1400",
                "network0 ipv4_dhcp bond0",
                "network1 ipv4 bond0.9 192.0.2.5 255.255.255.0",
                "network2 ipv4_dhcp net0.10",
            ],
        );
        let vm = vm("", block);
        let document = network_data(&vm, &site());
        assert_eq!(document["links"][3]["bond_miimon"], json!("100"), "Talos takes no number");
        assert_eq!(Addresses::of(&vm, 1, &site()), Addresses::default());
    }
}

#[test]
fn subnets_of_addresses() {
    for (cidr, expected) in [
        ("192.0.2.5/24", Some("192.0.2.0/24")),
        ("2001:db8::5/64", Some("2001:db8::/64")),
        ("192.0.2.5/0", Some("0.0.0.0/0")),
        ("192.0.2.5", None),
        ("192.0.2.5/33", None),
    ] {
        assert_eq!(subnet(cidr).as_deref(), expected, "{cidr}");
    }
}
