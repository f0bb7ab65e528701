//! What Proxmox's `ipconfigN` becomes in the files that cloud-init writes for whoever manages the guest's network.
//!
//! In comes the document that a guest is served; out come, for the cloud-init of Debian 12 (22.4) and of Debian 13 (25.1),
//! the files of each writer, and for ifupdown the routes that it really makes of them. The boots of [`super::cloud_init`]
//! see one writer only, and 22.4 asks nobody for a network over HTTP: it gets this document from a drive or a proxy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;

use crate::chroot::Release;
use crate::world::{Guest, Node, Plug, script};

/// The lines each writer must have, whichever the release; of ifupdown the routes too, if it can make them.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    pub networkd: &'static [&'static str],
    pub netplan: &'static [&'static str],
    pub eni: &'static [&'static str],
    pub routes: &'static str,
}

const NETWORKS: &[(&str, Lines)] = &[
    (
        "ipconfig0: ip=192.0.2.5/24,gw=192.0.2.1,ip6=2001:db8::5/64,gw6=2001:db8::1\n\
                  nameserver: 192.0.2.53 2001:db8::53\nsearchdomain: a.example\n",
        Lines {
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
    ),
    // Gateways that are outside, or for IPv6 on every link.
    (
        "ipconfig0: ip=203.0.113.5/32,gw=198.51.100.1,ip6=2001:db8::5/128,gw6=2001:db8:f::1\n",
        Lines {
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
    ),
    (
        "ipconfig0: ip6=2001:db8::5/64,gw6=fe80::1\n",
        Lines {
            networkd: &["Address=2001:db8::5/64", "Gateway=fe80::1"],
            netplan: &["gateway6: fe80::1"],
            eni: &["gateway fe80::1"],
            routes: "default via fe80::1\n",
        },
    ),
];

#[test]
fn each_writer_of_cloud_init_has_the_routes_of_both_families() {
    let mut node = Node::new();
    let numbered = || (400..).zip(NETWORKS);
    for (vmid, (options, _)) in numbered() {
        node.tree.put(vmid, &(sample_config(VmId::new(vmid).unwrap(), "") + options)).unwrap();
    }
    node.start();
    for (vmid, (_, lines)) in numbered() {
        let document = served(&node, vmid, "/nocloud/network-config");
        Release::BOTH.iter().for_each(|release| write(*release, vmid, &document, None, lines));
    }
}

/// A file with what a guest is served there.
pub fn served(node: &Node, vmid: u32, path: &str) -> PathBuf {
    let guest = Guest::plug(node, vmid, Plug::Veth, "169.254.1.2/16");
    node.await_guard(&guest.tap());
    guest.await_answer();
    let document = Node::dir().join(format!("network-{vmid}"));
    fs::write(&document, guest.get(path)).unwrap();
    document
}

/// Has each writer of a release write it, and ifupdown set it up. `cards` are names and addresses of network data's cards.
#[track_caller]
pub fn write(release: Release, vmid: u32, document: &Path, cards: Option<&str>, lines: &Lines) {
    let write = |writer: &str, ifupdown: Option<Release>| {
        let mut command = Command::new(script("guest/network.sh"));
        command.envs(cards.map(|cards| ("CARDS", cards)));
        command.arg(release.tree()).arg(document).arg(writer).args(ifupdown.map(Release::tree));
        succeed(&mut command, &format!("{vmid}: {writer} of {release:?}"))
    };
    for (writer, lines) in [("networkd", lines.networkd), ("netplan", lines.netplan)] {
        has_lines(&write(writer, None), lines, &format!("{vmid}: {writer} of {release:?}"));
    }
    // Debian 13's system of the tests has no ifupdown, its cloud-init writes for one all the same. A bond takes a kernel's
    // module and ifenslave to set up.
    let ifupdown = (!lines.routes.is_empty()).then_some(Release::Debian12);
    let made = write("eni", ifupdown);
    let (files, routes) = made.split_once("== routes\n").unwrap_or((&made, ""));
    has_lines(files, lines.eni, &format!("{vmid}: eni of {release:?}"));
    assert_eq!(routes, lines.routes, "{vmid}: ifupdown by {release:?}:\n{files}");
}

/// Runs it; what it says.
#[track_caller]
pub fn succeed(command: &mut Command, what: &str) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
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
