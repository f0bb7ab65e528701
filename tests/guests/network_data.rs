//! What OpenStack's network data become in the files that cloud-init writes for whoever manages the guest's network.
//!
//! In come configurations; out come, for the cloud-init of Debian 12 (22.4) and of Debian 13 (25.1), whether the document
//! that a guest is served has the form of `tests/fixtures/network-data.schema.json` by a JSON Schema of Python's, the files
//! of each writer, and for ifupdown the default routes that it really makes of them.

use std::fs;
use std::process::Command;

use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;

use crate::chroot::Release;
use crate::world::{Guest, Node, script};
use crate::writers::{Lines, served, succeed, write};

/// A network and what becomes of it.
struct Network {
    /// The MAC is put in for each VM.
    block: &'static str,
    options: &'static str,
    lines: Lines,
}

const NETWORKS: &[Network] = &[
    // What the options say.
    Network {
        block: "",
        options: "ipconfig0: ip=192.0.2.5/24,gw=192.0.2.1,ip6=2001:db8::5/64,gw6=2001:db8::1\n\
                  nameserver: 192.0.2.53 2001:db8::53\nsearchdomain: a.example b.example\n",
        lines: Lines {
            networkd: &[
                "Name=net0",
                "Address=192.0.2.5/24",
                "Address=2001:db8::5/64",
                "Gateway=192.0.2.1",
                "Gateway=2001:db8::1",
                "DNS=192.0.2.53",
                "DNS=2001:db8::53",
                "Domains=a.example b.example",
            ],
            netplan: &[
                "- 192.0.2.5/24",
                "- 2001:db8::5/64",
                "via: 192.0.2.1",
                "via: 2001:db8::1",
                "- 2001:db8::53",
                "- b.example",
            ],
            eni: &[
                "gateway 192.0.2.1",
                "gateway 2001:db8::1",
                "dns-nameservers 192.0.2.53",
                "dns-search a.example b.example",
            ],
            routes: "default via 192.0.2.1\ndefault via 2001:db8::1\n",
        },
    },
    // DHCP for both families, and an MTU.
    Network {
        block: "version: 2\nethernets:\n  lan:\n    match: {macaddress: \"MAC\"}\n    mtu: 1400\n    dhcp4: true\n    dhcp6: true\n",
        options: "",
        lines: Lines {
            networkd: &["DHCP=yes", "MTUBytes=1400"],
            netplan: &["dhcp4: true", "dhcp6: true", "mtu: 1400"],
            eni: &["iface net0 inet6 dhcp", "mtu 1400"],
            routes: "",
        },
    },
    // Gateways that no prefix leads to, several addresses, another route.
    Network {
        block: "version: 2\nethernets:\n  lan:\n    match: {macaddress: \"MAC\"}\n    addresses: [203.0.113.5/32, 203.0.113.6/32, \
                \"2001:db8::5/128\"]\n    routes:\n    - {to: default, via: 198.51.100.1, on-link: true}\n    \
                - {to: default, via: \"fe80::1\"}\n    - {to: 10.0.0.0/8, via: 198.51.100.2, metric: 7}\n",
        options: "",
        lines: Lines {
            networkd: &[
                "Address=203.0.113.5/32",
                "Address=203.0.113.6/32",
                "Gateway=198.51.100.1",
                "Gateway=fe80::1",
                "Destination=198.51.100.1/32",
                "Destination=10.0.0.0/8",
                "Metric=7",
            ],
            netplan: &["- 203.0.113.6/32", "-   to: 198.51.100.1/32", "via: 0.0.0.0", "via: fe80::1", "to: 10.0.0.0/8"],
            eni: &["gateway 198.51.100.1", "gateway fe80::1"],
            routes: "default via 198.51.100.1\ndefault via fe80::1\n",
        },
    },
    // Version 1, with what stands beside its links; a second card gets its servers too.
    Network {
        block: "version: 1\nconfig:\n- {type: physical, name: eth0, mac_address: \"MAC\", subnets: [{type: static, address: 192.0.2.30, \
                netmask: 255.255.255.0, gateway: 192.0.2.1, routes: [{network: 10.0.0.0, netmask: 255.0.0.0, gateway: 192.0.2.2}]}]}\n\
                - {type: physical, name: net1, subnets: [{type: ipv6_slaac}]}\n\
                - {type: nameserver, address: [192.0.2.54], search: [c.example]}\n",
        options: "net1: virtio=BC:24:11:FF:FF:01,bridge=vmbr0\n",
        lines: Lines {
            networkd: &[
                "Address=192.0.2.30/24",
                "Destination=10.0.0.0/8",
                "Gateway=192.0.2.2",
                "Name=net1",
                "DNS=192.0.2.54",
                "Domains=c.example",
            ],
            netplan: &[
                "- 192.0.2.30/24",
                "via: 192.0.2.2",
                "- 192.0.2.54",
                "- c.example",
                "macaddress: bc:24:11:ff:ff:01",
            ],
            eni: &["address 192.0.2.30/24", "gateway 192.0.2.1", "dns-nameservers 192.0.2.54", "iface net1 inet6 auto"],
            routes: "default via 192.0.2.1\n",
        },
    },
    // A bond of two cards and a VLAN on it. cloud-init makes neither where it writes for networkd itself.
    Network {
        block: "version: 2\nethernets:\n  net0: {}\n  net1: {}\nbonds:\n  both:\n    interfaces: [net0, net1]\n    \
                parameters: {mode: active-backup, mii-monitor-interval: 100}\nvlans:\n  v: {id: 10, link: both, addresses: [10.0.0.5/24], \
                gateway4: 10.0.0.1}\n",
        options: "net1: virtio=BC:24:11:FF:FF:01,bridge=vmbr0\n",
        lines: Lines {
            networkd: &["Name=net0", "Name=net1"],
            netplan: &[
                "bond0:",
                "- net1",
                "mode: active-backup",
                "mii-monitor-interval: 100",
                "bond0.10:",
                "id: 10",
                "link: bond0",
                "- 10.0.0.5/24",
            ],
            eni: &["bond-master bond0", "iface bond0.10 inet static", "vlan-raw-device bond0", "gateway 10.0.0.1"],
            routes: "",
        },
    },
];

#[test]
fn each_writer_of_cloud_init_has_the_whole_network() {
    let mut node = Node::new();
    let numbered = || (430..).zip(NETWORKS);
    for (vmid, network) in numbered() {
        let block = network.block.replace("MAC", &Guest::mac(vmid));
        let notes = if block.is_empty() { block } else { format!("<!--#network-config\n{block}-->\n") };
        node.tree.put(vmid, &(sample_config(VmId::new(vmid).unwrap(), &notes) + network.options)).unwrap();
    }
    node.start();
    for (vmid, network) in numbered() {
        let document = served(&node, vmid, "/openstack/latest/network_data.json");
        let text = fs::read_to_string(&document).unwrap();
        let cards = format!("net0,{} net1,bc:24:11:ff:ff:01", Guest::mac(vmid));
        for release in Release::BOTH {
            has_form(release, &text);
            write(release, vmid, &document, Some(&cards), &network.lines);
        }
    }
}

/// Python's JSON Schema, which cloud-init brings along, has nothing against the document.
fn has_form(release: Release, document: &str) {
    let schema = fs::read_to_string(script("fixtures/network-data.schema.json")).unwrap();
    let program = "import json, jsonschema, sys\n\
                   document, schema = map(json.loads, sys.argv[1:])\n\
                   jsonschema.Draft7Validator.check_schema(schema)\n\
                   jsonschema.validate(document, schema, format_checker=jsonschema.FormatChecker())\n";
    let mut command = Command::new("chroot");
    command.arg(release.tree()).args(["/usr/bin/python3", "-B", "-W", "ignore", "-c", program, document, &schema]);
    succeed(&mut command, &format!("the schema by {release:?}: {document}"));
}
