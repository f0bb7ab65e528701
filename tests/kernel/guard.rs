//! Nobody but the daemon speaks as the metadata address, whether it lives or not.

use std::process::Child;

use crate::world::capture::Capture;
use crate::world::chatter::programs;
use crate::world::rogue::Rogue;
use crate::world::{Guest, Namespace, Node, Plug, run, until};

fn guest_asks(guest: &Guest) -> Option<(u16, String)> {
    guest.curl(&["--connect-timeout", "2"], "/nocloud/user-data")
}

#[test]
fn a_rogue_responder_is_never_heard_and_would_be_without_the_guard() {
    let mut node = Node::new();
    node.vm(101);
    node.vm(102);
    let rogue = Rogue::new(&node);
    let guests = [
        Guest::plug(&node, 101, Plug::Tap(1), "169.254.1.2/16"),
        Guest::plug(&node, 102, Plug::Veth, "169.254.1.3/16"),
    ];
    let evil = Some((200, "evil\n".to_owned()));
    for guest in &guests {
        assert_eq!(guest_asks(guest), evil, "the control: without the guard it is heard");
        guest.namespace.ip("neigh flush all");
    }
    node.start();
    for guest in &guests {
        node.await_guard(&format!("tap{}i0", guest.vmid));
        guest.has_its_own_files();
    }
    node.stop("KILL");
    for guest in &guests {
        guest.namespace.ip("neigh flush all");
        // It tells everyone, unasked, and it is still on the wire.
        rogue.namespace.run("busybox arping -q -A -c 2 -w 2 -I eth0 169.254.169.254 || true");
        assert_eq!(guest_asks(guest), None, "silence, not the rogue");
        let neighbours = guest.namespace.ip("neigh show 169.254.169.254");
        assert!(!neighbours.contains("lladdr"), "the guest learned nothing from it: {neighbours}");
    }
    node.start();
    for guest in &guests {
        guest.await_answer();
        guest.has_its_own_files();
    }
}

#[test]
fn nothing_for_the_address_reaches_the_bridge_while_the_daemon_dies_and_comes_back() {
    let mut node = Node::new();
    node.vm(101);
    node.vm(102);
    let uplink = Namespace::new("uplink");
    node.namespace.ip(&format!("link add up0 type veth peer name eth0 netns {}", uplink.name()));
    node.namespace.ip("link set up0 up master vmbr0");
    uplink.ip("link set eth0 up");
    let guests = [
        Guest::plug(&node, 101, Plug::Tap(1), "169.254.1.2/16"),
        Guest::plug(&node, 102, Plug::Veth, "169.254.1.3/16"),
    ];
    let control = [Capture::start(&node.namespace, "vmbr0"), Capture::start(&uplink, "eth0")];
    let mut talking = programs(&guests[0]);
    talking.wait().unwrap();
    for capture in control {
        assert!(!capture.stop().is_empty(), "the control: without the guard the bridge hears it");
    }
    node.start();
    guests.iter().for_each(|guest| node.await_guard(&format!("tap{}i0", guest.vmid)));
    let captures = [Capture::start(&node.namespace, "vmbr0"), Capture::start(&uplink, "eth0")];
    let mut talking: Vec<Child> = guests.iter().map(programs).collect();
    for _ in 0..3 {
        node.stop("KILL");
        assert_eq!(guest_asks(&guests[0]), None, "silence while nobody serves");
        node.start();
        guests[0].await_answer();
        guests[0].has_its_own_files();
    }
    node.stop("TERM");
    for talk in &mut talking {
        talk.wait().unwrap();
    }
    for capture in captures {
        let seen = capture.stop();
        assert!(seen.is_empty(), "{} frames reached the bridge, first: {}", seen.len(), seen[0]);
    }
}

#[test]
fn a_start_waits_for_a_daemon_that_is_ending() {
    let (mut node, guest) = Node::serving_one();
    let old = node.pid();
    // It takes its time over the last answers.
    run(&format!("kill -STOP {old} && kill -TERM {old}"));
    run(&format!("(sleep 1 && kill -CONT {old}) > /dev/null 2>&1 &"));
    node.start();
    assert_ne!(node.pid(), old);
    guest.await_answer();
    guest.has_its_own_files();
}

#[test]
fn a_rename_never_opens_the_guard() {
    let mut node = Node::new();
    node.vm(101);
    node.vm(102);
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    node.start();
    node.await_guard("tap101i0");
    guest.has_its_own_files();
    let capture = Capture::start(&node.namespace, "vmbr0");
    let mut talking = programs(&guest);
    let mut name = 101;
    while talking.try_wait().unwrap().is_none() {
        let next = 203 - name;
        node.namespace.ip(&format!("link set tap{name}i0 name tap{next}i0"));
        name = next;
        let expected = format!("local-hostname: \"vm{name}\"");
        until("the guest is who its interface says", || {
            guest.curl(&["--connect-timeout", "1"], "/nocloud/meta-data").filter(|(_, body)| body.contains(&expected))
        });
    }
    let seen = capture.stop();
    assert!(seen.is_empty(), "{} frames reached the bridge, first: {}", seen.len(), seen[0]);
    assert!(node.metric("pve_imds_guard_attachments_total{result=\"failed\"}") == 0.0);
}

#[test]
fn ordinary_traffic_passes() {
    let mut node = Node::new();
    node.vm(101);
    let peer = Namespace::new("peer");
    node.namespace.ip(&format!("link add peer0 type veth peer name eth0 netns {}", peer.name()));
    node.namespace.ip("link set peer0 up master vmbr0");
    peer.ip("link set eth0 up");
    peer.ip("addr add 10.9.9.1/24 dev eth0");
    let guest = Guest::plug(&node, 101, Plug::Tap(1), "10.9.9.5/24");
    node.start();
    node.await_guard("tap101i0");
    guest.namespace.run("busybox ping -q -c 2 -W 2 10.9.9.1");
    guest.namespace.run("busybox ping -q -c 2 -W 2 -s 1472 10.9.9.1");
    let link_local = peer.run("ip -6 -o addr show dev eth0 scope link");
    let address = link_local.split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_owned();
    let ping = format!(
        "for n in 1 2 3 4 5 6 7 8 9 10; do busybox ping -6 -q -c 1 -W 1 {address}%eth0 && exit 0; sleep 0.3; done; exit 1"
    );
    guest.namespace.run(&ping);
}
