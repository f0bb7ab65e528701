//! A guest that behaves as Talos does gets what its Notes say, and waits for a person exactly when there is nothing to get.
//!
//! Talos itself cannot be run here; [`client`] does what it is documented to do, rule by rule, with its seconds made short,
//! and [`network`] reads a network configuration as strictly. In come configurations; out comes how each of a boot's two
//! runs ended. What matters: a machine whose configuration cannot be had *now* must never sit in maintenance, where
//! anybody on its network may configure it.

mod client;
mod network;

use std::fs;
use std::time::Duration;

use client::{Boot, Machine, Network, Talos};
use network::Link;
use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;

use crate::world::machine::SERIAL;
use crate::world::{Guest, Node, Plug, until};

/// Three minutes in 1.8 seconds.
const SHORT: Duration = Duration::from_millis(10);

/// Three minutes in 18 seconds: long enough to do something meanwhile.
const LONGER: Duration = Duration::from_millis(100);

const CONFIG: &str = "version: v1alpha1\nmachine:\n  type: worker\n";

/// A VM with these Notes and options, plugged in and asked for nothing yet.
fn plug(node: &mut Node, vmid: u32, notes: &str, options: &str) -> Guest {
    let config = sample_config(VmId::new(vmid).unwrap(), &notes.replace("MAC", &Guest::mac(vmid))) + options;
    node.tree.put(vmid, &config).unwrap();
    Guest::plug(node, vmid, Plug::Veth, "169.254.1.2/16")
}

/// A boot of it.
fn boot(guest: &Guest, second: Duration) -> Boot {
    let talos = Talos::new(SERIAL, second).unwrap();
    let enter = guest.namespace.door();
    talos.boot(enter)
}

/// How often the daemon refused this guest its user data.
fn refusals(node: &Node, guest: &Guest) -> usize {
    let log = fs::read_to_string(node.log()).unwrap();
    let tap = format!(" {} ", guest.tap());
    log.lines().filter(|line| line.contains(&tap) && line.contains(" /nocloud/user-data 503 ")).count()
}

/// DHCP on the card with the VM's MAC.
fn dhcp(vmid: u32) -> Vec<Link> {
    vec![Link { card: Guest::mac(vmid), dhcp4: true, ..Link::default() }]
}

fn fixed(vmid: u32, addresses: &[&str], gateways: &[&str], servers: &[&str]) -> Vec<Link> {
    let parse = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
    let addresses = addresses.iter().map(|text| (*text).to_owned()).collect();
    let card = Guest::mac(vmid);
    vec![Link { card, dhcp4: false, addresses, gateways: parse(gateways), servers: parse(servers) }]
}

/// What must become of a VM: its Notes, its options, the end of either run. `None` is a start from the beginning.
type Story = (&'static str, &'static str, Option<Machine>, Option<fn(u32) -> Vec<Link>>);

fn stories() -> Vec<Story> {
    let config = || Some(Machine::Config(CONFIG.trim_end().to_owned()));
    let maintenance = || Some(Machine::Maintenance);
    vec![
        // There is a configuration.
        ("<!--#user-data\nversion: v1alpha1\nmachine:\n  type: worker\n-->", "", config(), Some(dhcp)),
        (
            "<!--#user-data encoding=base64\ndmVyc2lvbjogdjFhbHBoYTEKbWFjaGluZToKICB0eXBlOiB3b3JrZXI=\n-->",
            "",
            config(),
            Some(dhcp),
        ),
        (
            "<!--#user-data\nversion: v1alpha1\nmachine:\n  type: worker\n-->\n\
             <!--#network-config\nnetwork:\n  version: 2\n  ethernets:\n    lan:\n      match: {macaddress: \"MAC\"}\n      \
             addresses: [192.0.2.10/24]\n      routes: [{to: 0.0.0.0/0, via: 192.0.2.1}]\n-->",
            "",
            config(),
            Some(|vmid| fixed(vmid, &["192.0.2.10/24"], &["192.0.2.1"], &[])),
        ),
        // Whatever else is broken, this is not.
        (
            "<!--#user-data\nversion: v1alpha1\nmachine:\n  type: worker\n-->\n<!--#network-config\nversion: 3\n-->\n\
             <!--#vendor-data\nx\n",
            "",
            config(),
            Some(dhcp),
        ),
        // There is none: its name and its network all the same.
        ("", "", maintenance(), Some(dhcp)),
        ("<!--#user-data\n-->", "", maintenance(), Some(dhcp)),
        ("<!--#user-data\n#cloud-config\nhostname: x\n-->", "", maintenance(), Some(dhcp)),
        (
            "<!--#network-config\nversion: 1\nconfig:\n- type: physical\n  name: eth0\n  mac_address: \"MAC\"\n  subnets:\n  \
             - {type: static, address: 192.0.2.20, netmask: 255.255.255.0, gateway: 192.0.2.1}\n-->",
            "",
            maintenance(),
            Some(|vmid| fixed(vmid, &["192.0.2.20/24"], &["192.0.2.1"], &[])),
        ),
        // Proxmox's own options: a network alone is no user data, a user is cloud-init's.
        (
            "",
            "ipconfig0: ip=192.0.2.30/24,gw=192.0.2.1\nnameserver: 192.0.2.53\n",
            maintenance(),
            Some(|vmid| fixed(vmid, &["192.0.2.30/24"], &["192.0.2.1"], &["192.0.2.53"])),
        ),
        ("", "ciuser: ops\n", maintenance(), Some(dhcp)),
        // There is one that cannot be had now: neither half may take what it got for all there is.
        ("<!--#user-data secrets=worker\ntoken: {{ secret \"a\" }}\n-->", "", None, None),
        ("<!--#user-data\nversion: v1alpha1\n", "", None, None),
        ("<!--#user-data\nx\n-->\n<!--#user-data\ny\n-->", "", None, None),
        ("<!--#imds\nenabled: perhaps\n-->", "", None, None),
    ]
}

#[test]
fn talos_takes_what_there_is_and_waits_for_a_person_only_when_there_is_nothing() {
    let mut node = Node::new();
    let stories = stories();
    let numbered = || (300..).zip(&stories);
    let guests: Vec<_> = numbered().map(|(vmid, (notes, options, ..))| plug(&mut node, vmid, notes, options)).collect();
    node.start();
    for guest in &guests {
        node.await_guard(&guest.tap());
        guest.await_answer();
    }
    let boots = std::thread::scope(|scope| {
        let boots: Vec<_> = guests.iter().map(|guest| scope.spawn(|| boot(guest, SHORT))).collect();
        boots.into_iter().map(|boot| boot.join().unwrap()).collect::<Vec<_>>()
    });
    for ((vmid, (notes, options, machine, links)), Boot { machine: got, network }) in numbered().zip(boots) {
        let story = format!("{notes:?} {options:?}");
        assert_eq!(got.ok().as_ref(), machine.as_ref(), "{story}");
        let links = links.map(|links| Network::Applied { hostname: format!("vm{vmid}"), links: links(vmid) });
        assert_eq!(network.ok(), links, "{story}");
    }
}

#[test]
fn talos_starts_from_the_beginning_until_its_notes_are_mended() {
    let mut node = Node::new();
    let broken = "<!--#user-data\nversion: v1alpha1\n";
    let guest = plug(&mut node, 301, broken, "");
    node.start();
    node.await_guard(&guest.tap());
    guest.await_answer();
    let given_up = boot(&guest, SHORT);
    assert!(given_up.machine.is_err() && given_up.network.is_err(), "three minutes are over: {given_up:?}");
    let before = refusals(&node, &guest);
    let mended = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| boot(&guest, LONGER));
        // Both runs ask, each for itself.
        until("both runs were refused twice", || (refusals(&node, &guest) >= before + 4).then_some(()));
        assert!(!waiting.is_finished());
        let notes = format!("<!--#user-data\n{CONFIG}-->");
        node.tree.put(301, &sample_config(VmId::new(301).unwrap(), &notes)).unwrap();
        waiting.join().unwrap()
    });
    assert_eq!(mended.machine, Ok(Machine::Config(CONFIG.trim_end().to_owned())));
    assert_eq!(mended.network, Ok(Network::Applied { hostname: "vm301".to_owned(), links: dhcp(301) }));
}

#[test]
fn talos_without_a_known_vm_waits_for_one() {
    let mut node = Node::new();
    node.start();
    let guest = Guest::plug(&node, 301, Plug::Veth, "169.254.1.2/16");
    node.await_guard(&guest.tap());
    guest.await_answer();
    let unknown = boot(&guest, SHORT);
    assert!(unknown.machine.is_err() && unknown.network.is_err(), "{unknown:?}");
    node.tree.put(301, &sample_config(VmId::new(301).unwrap(), "")).unwrap();
    until("the VM is known", || matches!(guest.curl(&[], "/nocloud/meta-data"), Some((200, _))).then_some(()));
    let known = boot(&guest, SHORT);
    assert_eq!(known.machine, Ok(Machine::Maintenance));
    assert_eq!(known.network, Ok(Network::Applied { hostname: "vm301".to_owned(), links: dhcp(301) }));
}

#[test]
fn talos_is_in_maintenance_and_nameless_where_nothing_is_served() {
    // By the node's settings, by the VM's owner.
    for (settings, notes) in [("nocloud: {enabled: false}\n", ""), ("", "<!--#imds\nenabled: false\n-->\n")] {
        let mut node = Node::new();
        fs::write(node.config(), node.settings() + settings).unwrap();
        let guest = plug(&mut node, 301, &format!("{notes}<!--#user-data\n{CONFIG}-->"), "");
        node.start();
        node.await_guard(&guest.tap());
        guest.await_answer();
        let boot = boot(&guest, SHORT);
        assert_eq!(boot.machine, Ok(Machine::Maintenance), "{settings}{notes}");
        assert_eq!(boot.network, Ok(Network::Nothing), "{settings}{notes}");
    }
}
