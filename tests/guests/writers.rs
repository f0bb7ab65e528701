//! What Proxmox's `ipconfigN` becomes in the files that cloud-init writes for whoever manages the guest's network.
//!
//! In comes the document that a guest is served; out come, for the cloud-init of Debian 12 (22.4) and of Debian 13 (25.1),
//! the files of each writer, and for ifupdown the routes that it really makes of them. The boots of [`super::cloud_init`]
//! see one writer only, and 22.4 asks nobody for a network over HTTP: it gets this document from a drive or a proxy.

use std::fs;
use std::process::Command;

use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;

use crate::cloud_init::Release;
use crate::world::{Guest, Node, Plug, script};

/// A network and the lines each writer must have, whichever the release; of ifupdown the routes too.
struct Network {
    options: &'static str,
    networkd: &'static [&'static str],
    netplan: &'static [&'static str],
    eni: &'static [&'static str],
    routes: &'static str,
}

const NETWORKS: &[Network] = &[
    Network {
        options: "ipconfig0: ip=192.0.2.5/24,gw=192.0.2.1,ip6=2001:db8::5/64,gw6=2001:db8::1\n\
                  nameserver: 192.0.2.53 2001:db8::53\nsearchdomain: a.example\n",
        networkd: &[
            "Address=192.0.2.5/24",
            "Address=2001:db8::5/64",
            "Gateway=192.0.2.1",
            "Gateway=2001:db8::1",
            "DNS=192.0.2.53 2001:db8::53",
            "Domains=a.example",
        ],
        netplan: &["gateway4: 192.0.2.1", "gateway6: 2001:db8::1", "- 2001:db8::53"],
        eni: &["gateway 192.0.2.1", "gateway 2001:db8::1", "dns-nameservers 192.0.2.53 2001:db8::53"],
        routes: "default via 192.0.2.1\ndefault via 2001:db8::1\n",
    },
    // Gateways that are outside, or for IPv6 on every link.
    Network {
        options: "ipconfig0: ip=203.0.113.5/32,gw=198.51.100.1,ip6=2001:db8::5/128,gw6=2001:db8:f::1\n",
        networkd: &[
            "Gateway=198.51.100.1",
            "Gateway=2001:db8:f::1",
            "Destination=198.51.100.1/32",
            "Destination=2001:db8:f::1/128",
        ],
        netplan: &["gateway4: 198.51.100.1", "gateway6: 2001:db8:f::1", "via: 0.0.0.0"],
        eni: &["gateway 198.51.100.1", "gateway 2001:db8:f::1"],
        routes: "default via 198.51.100.1\ndefault via 2001:db8:f::1\n",
    },
    Network {
        options: "ipconfig0: ip6=2001:db8::5/64,gw6=fe80::1\n",
        networkd: &["Address=2001:db8::5/64", "Gateway=fe80::1"],
        netplan: &["gateway6: fe80::1"],
        eni: &["gateway fe80::1"],
        routes: "default via fe80::1\n",
    },
];

#[test]
fn each_writer_of_cloud_init_has_the_routes_of_both_families() {
    let mut node = Node::new();
    let numbered = || (400..).zip(NETWORKS);
    for (vmid, network) in numbered() {
        node.tree.put(vmid, &(sample_config(VmId::new(vmid).unwrap(), "") + network.options)).unwrap();
    }
    node.start();
    for (vmid, network) in numbered() {
        let guest = Guest::plug(&node, vmid, Plug::Veth, "169.254.1.2/16");
        node.await_guard(&guest.tap());
        guest.await_answer();
        let document = Node::dir().join(format!("network-{vmid}"));
        fs::write(&document, guest.get("/nocloud/network-config")).unwrap();
        for release in Release::BOTH {
            let write = |writer: &str, ifupdown: Option<Release>| {
                let mut command = Command::new(script("guest/network.sh"));
                command.arg(release.tree()).arg(&document).arg(writer).args(ifupdown.map(Release::tree));
                let output = command.output().unwrap();
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{writer} of {release:?}: {errors}");
                String::from_utf8(output.stdout).unwrap()
            };
            for (writer, lines) in [("networkd", network.networkd), ("netplan", network.netplan)] {
                has_lines(&write(writer, None), lines, &format!("{writer} of {release:?}"));
            }
            // Debian 13's system of the tests has no ifupdown, its cloud-init writes for one all the same.
            let made = write("eni", Some(Release::Debian12));
            let (files, routes) = made.split_once("== routes\n").unwrap();
            has_lines(files, network.eni, &format!("eni of {release:?}"));
            assert_eq!(routes, network.routes, "ifupdown by {release:?}:\n{files}");
        }
    }
}

#[track_caller]
fn has_lines(text: &str, lines: &[&str], what: &str) {
    for line in lines {
        assert!(
            text.lines().any(|found| found.trim().replace(['"', '\''], "") == *line),
            "{what}: no {line:?} in\n{text}"
        );
    }
}
