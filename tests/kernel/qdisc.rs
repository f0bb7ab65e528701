//! Proxmox's bandwidth limit and the guard on one interface, in every order: both keep working.
//!
//! A `rate=` of a NIC is an HTB class on what the guest receives and a policer on the interface's ingress qdisc for what
//! it sends; both are removed and made anew when it is changed. Where the kernel has no policer, what the ingress qdisc
//! is given is sent through a narrow device instead: what is shown, that it is given what the guard lets pass, is the same.

use std::time::{Duration, Instant};

use crate::world::wire::Wire;
use crate::world::{Guest, Namespace, Node, Plug, sh};

/// What is sent at once, and its size on the wire. Fewer than the queue of a tap holds, so that all arrive that may.
const FRAMES: u64 = 800;
const SIZE: usize = 1000;

/// A limit of 1 Mbit/s with a burst of 20 kB lets 20 of them through at once, and 125 a second: with much to spare, less
/// than this while we look. And without a limit more than that.
const FEW: u64 = FRAMES / 2;

/// Long enough for all of them where there is no limit.
const LOOK: Duration = Duration::from_millis(400);

struct Street {
    node: Node,
    guest: Guest,
    peer: Namespace,
}

impl Street {
    fn new(plug: Plug) -> Self {
        let mut node = Node::new();
        node.vm(101);
        node.namespace.without_ipv6();
        let peer = Namespace::new("peer");
        peer.without_ipv6();
        node.namespace.ip(&format!("link add peer0 type veth peer name eth0 netns {}", peer.name()));
        node.namespace.ip("link set peer0 up master vmbr0");
        peer.ip("link set eth0 address 52:54:00:00:00:01 up");
        let guest = Guest::plug(&node, 101, plug, "169.254.1.2/16");
        Self { node, guest, peer }
    }

    fn tc(&self, arguments: &str) -> bool {
        sh(&format!("tc -n {} {arguments}", self.node.namespace.name())).status.success()
    }

    /// What a NIC with `rate=` gets: everything is removed and made anew.
    fn limit(&self) {
        self.unlimit();
        assert!(self.tc("qdisc add dev tap101i0 root handle 1: htb default 1"));
        assert!(self.tc("class add dev tap101i0 parent 1: classid 1:1 htb rate 1mbit burst 20k"));
        assert!(self.tc("qdisc add dev tap101i0 handle ffff: ingress"));
        let all = "filter add dev tap101i0 parent ffff: prio 50 protocol all u32 match u32 0 0";
        if self.tc(&format!("{all} police rate 1mbit burst 20k mtu 64kb drop flowid :1")) {
            return;
        }
        self.node.namespace.ip("link add narrow0 type veth peer name narrow1");
        self.node.namespace.ip("link set narrow0 up");
        self.node.namespace.ip("link set narrow1 up master vmbr0");
        // The guest is still behind its own interface.
        self.node.namespace.ip("link set narrow1 type bridge_slave learning off");
        assert!(self.tc("qdisc add dev narrow0 root tbf rate 1mbit burst 20k limit 20k"));
        assert!(self.tc(&format!("{all} action mirred egress redirect dev narrow0")));
    }

    /// The same, with a policer that lets nothing through.
    fn shut(&self) {
        self.limit();
        if sh(&format!("ip -n {} link set narrow1 nomaster", self.node.namespace.name())).status.success() {
            return;
        }
        let shut = "filter replace dev tap101i0 parent ffff: prio 50 protocol all u32 match u32 0 0 action drop";
        assert!(self.tc(shut));
    }

    fn unlimit(&self) {
        self.tc("qdisc del dev tap101i0 root");
        self.tc("qdisc del dev tap101i0 ingress");
        sh(&format!("ip -n {} link del narrow0", self.node.namespace.name()));
    }

    /// How many of the frames that the guest sends reach the peer, and the other way round.
    fn delivered(&self) -> (u64, u64) {
        let (guest, peer) = (self.guest.link(), Wire::packet(&self.peer, "eth0"));
        let ends = [mac(&Guest::mac(101)), mac("52:54:00:00:00:01")];
        let there = sent(&guest, ends, || received(&self.peer));
        let back = sent(&peer, [ends[1], ends[0]], || received(&self.guest.namespace));
        (there, back)
    }
}

#[track_caller]
fn limited(street: &Street) {
    street.guest.has_its_own_files();
    let (there, back) = street.delivered();
    assert!((1..FEW).contains(&there) && (1..FEW).contains(&back), "{there} there and {back} back of {FRAMES}");
}

#[track_caller]
fn unlimited(street: &Street) {
    street.guest.has_its_own_files();
    let (there, back) = street.delivered();
    assert!(there > FEW && back > FEW, "{there} there and {back} back of {FRAMES}");
}

fn in_every_order(plug: Plug) {
    let mut street = Street::new(plug);
    // First the limit, then the guard.
    street.limit();
    street.node.start();
    street.node.await_guard("tap101i0");
    limited(&street);
    // The limit is changed, taken away and given back below the guard.
    street.limit();
    limited(&street);
    street.unlimit();
    unlimited(&street);
    street.limit();
    limited(&street);
    // The guard is exchanged above the limit.
    street.node.stop("KILL");
    street.limit();
    street.node.start();
    street.guest.await_answer();
    limited(&street);
    // What is ours never comes to the policer; all else does.
    street.shut();
    street.guest.has_its_own_files();
    assert_eq!(street.delivered().0, 0);
    // The newer kind of ingress qdisc stands in nobody's way.
    street.unlimit();
    assert!(street.tc("qdisc add dev tap101i0 clsact"));
    unlimited(&street);
    assert!(street.tc("qdisc del dev tap101i0 clsact"));
    unlimited(&street);
}

#[test]
fn the_limit_of_a_tap_and_its_guard_do_not_disturb_each_other() {
    in_every_order(Plug::Tap(1));
}

#[test]
fn the_limit_of_a_veth_and_its_guard_do_not_disturb_each_other() {
    in_every_order(Plug::Veth);
}

fn mac(text: &str) -> [u8; 6] {
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// Sends all frames on `wire`, or as many as it takes in time; how many were received meanwhile.
fn sent(wire: &Wire, [from, to]: [[u8; 6]; 2], count: impl Fn() -> u64) -> u64 {
    // An ethertype for experiments (IEEE 802), so that no stack answers.
    let frame = [&to[..], &from, &[0x88, 0xb5], &[0; SIZE - 14]].concat();
    let (begun, before) = (Instant::now(), count());
    for _ in 0..FRAMES {
        while !wire.send(&frame) && begun.elapsed() < LOOK {
            std::thread::yield_now();
        }
    }
    std::thread::sleep(LOOK.saturating_sub(begun.elapsed()));
    count() - before
}

fn received(namespace: &Namespace) -> u64 {
    namespace.run("cat /sys/class/net/eth0/statistics/rx_packets").trim().parse().unwrap()
}
