//! Whatever becomes of a guest's interface, nothing of a metadata address passes and nobody but us speaks as one.

use std::time::Duration;

use pve_imds_transport::bpf::Reason;

use crate::world::chatter::Chatter;
use crate::world::probe::Asker;
use crate::world::rogue::Rogue;
use crate::world::watch::{Watch, uplink};
use crate::world::wire::Wire;
use crate::world::{Guest, Namespace, Node, Plug, frames, until};

/// What is done to the interface of guest 101, each with what undoes it.
const CHURN: &[(&str, &str)] = &[
    ("link set tap101i0 promisc on", "link set tap101i0 promisc off"),
    ("link set tap101i0 mtu 1400", "link set tap101i0 mtu 1500"),
    ("link set tap101i0 down", "link set tap101i0 up"),
    ("link set tap101i0 nomaster", "link set tap101i0 master vmbr0"),
    ("link set tap101i0 master vmbr1", "link set tap101i0 master vmbr0"),
    ("link set tap101i0 name tap201i0", "link set tap201i0 name tap101i0"),
    ("link set tap101i0 type bridge_slave isolated on", "link set tap101i0 type bridge_slave isolated off"),
];

/// Words of the capture that only come if every kind of frame is heard.
const KINDS: &[&str] = &[
    "who-has 169.254.169.254 tell 169.254.1.2",
    "169.254.169.254 is-at",
    "ICMP echo request",
    "169.254.169.254.443",
    "169.254.169.254.53: domain",
    "ip-proto-6",
    "fd00:ec2::254: ICMP6, echo request",
    "fe80::a9fe:a9fe: ICMP6, echo request",
    "who has fd00:ec2::254",
    "who has fe80::a9fe:a9fe",
    "802.1Q-QinQ",
    "vlan 7, p 0, ethertype 802.1Q (0x8100), vlan 42",
];

fn scene(plug: Plug) -> (Node, [Guest; 2]) {
    let mut node = Node::new();
    node.vm(101);
    node.vm(201);
    node.vm(102);
    node.namespace.ip("link add vmbr1 type bridge");
    node.namespace.ip("link set vmbr1 up");
    let guests =
        [Guest::plug(&node, 101, plug, "169.254.1.2/16"), Guest::plug(&node, 102, Plug::Veth, "169.254.1.3/16")];
    (node, guests)
}

fn churn(plug: Plug) {
    let (mut node, guests) = scene(plug);
    let [guest, neighbour] = &guests;
    let (uplink, rogue) = (uplink(&node), Rogue::new(&node));
    let elsewhere = Namespace::new("elsewhere");
    elsewhere.ip("link add vmbr0 type bridge");
    elsewhere.ip("link set vmbr0 up");

    let control = Watch::start(&[(&node.namespace, "vmbr0"), (&uplink, "eth0")], &[]);
    let ears = Watch::start(&[], &[guest, neighbour]);
    let talk = (Chatter::start(guest), rogue.chatter());
    until("the control: without the guard all is heard", || control.all_heard(KINDS).then_some(()));
    until("the control: without the guard the rogue is heard", || {
        ears.all_heard(&["fd00:ec2::254", "Reply 169.254.169.254"]).then_some(())
    });
    drop((talk, control, ears));

    node.start();
    guests.iter().for_each(|guest| node.await_guard(&guest.tap()));
    let bridges = ["vmbr0", "vmbr1"].map(|bridge| (&node.namespace, bridge));
    let watch = Watch::start(&[bridges[0], bridges[1], (&uplink, "eth0"), (&elsewhere, "vmbr0")], &[guest, neighbour]);
    let asking = Asker { rate: 100, fresh: true, patience: Duration::from_secs(10) }.start(neighbour);
    let talk = (Chatter::start(guest), rogue.chatter());
    let said = || {
        talk.0.once_around();
        talk.1.once_around();
    };
    for (change, undo) in CHURN {
        for command in [change, undo] {
            node.namespace.ip(command);
            said();
        }
        guest.await_answer();
        guest.has_its_own_files();
    }
    let (home, away) = (node.namespace.name(), elsewhere.name());
    // Away for a moment, and straight back onto the bridge.
    let abroad = Watch::start(&[(&elsewhere, "vmbr0")], &[]);
    node.namespace.ip(&format!("link set tap101i0 netns {away}"));
    elsewhere.ip("link set tap101i0 up master vmbr0");
    talk.0.once_around();
    elsewhere.ip(&format!("link set tap101i0 netns {home}"));
    node.namespace.ip("link set tap101i0 up master vmbr0");
    said();
    guest.await_answer();
    guest.has_its_own_files();
    abroad.heard_nothing();
    // Away for so long that it is somebody else's. Its return is a birth, and so it is on the bridge when it is guarded.
    let (before, pins) = (node.guarded(), Node::pins());
    node.namespace.ip(&format!("link set tap101i0 netns {away}"));
    until("its guard is forgotten", || (Node::pins() < pins).then_some(()));
    elsewhere.ip(&format!("link set tap101i0 netns {home}"));
    node.namespace.ip("link set tap101i0 up");
    until("it is guarded again", || (node.guarded() > before).then_some(()));
    node.namespace.ip("link set tap101i0 master vmbr0");
    said();
    guest.await_answer();
    guest.has_its_own_files();
    drop(talk);
    let heard = asking.stop();
    println!("churn of {plug:?}: its neighbour had {heard}");
    assert_eq!((heard.failed, &heard.wrong[..]), (0, &[][..]), "{:?}", heard.first_failure);
    watch.heard_nothing();
}

#[test]
fn nothing_passes_whatever_becomes_of_a_tap() {
    churn(Plug::Tap(1));
}

#[test]
fn nothing_passes_whatever_becomes_of_a_veth() {
    churn(Plug::Veth);
}

#[test]
fn an_interface_that_is_deleted_under_load_leaves_nothing_to_its_index() {
    let (mut node, guests) = scene(Plug::Veth);
    let [guest, neighbour] = &guests;
    let (uplink, rogue) = (uplink(&node), Rogue::new(&node));
    node.start();
    guests.iter().for_each(|guest| node.await_guard(&guest.tap()));
    let watch = Watch::start(&[(&node.namespace, "vmbr0"), (&uplink, "eth0")], &[neighbour]);
    let shouts = rogue.chatter();
    let asking = Asker { rate: 100, fresh: true, patience: Duration::from_secs(10) }.start(neighbour);
    let index = node.namespace.index("tap101i0");
    for _ in 0..5 {
        let before = node.guarded();
        let talk = Chatter::start(guest);
        talk.once_around();
        node.namespace.ip("link del tap101i0");
        drop(talk);
        let peer = format!("type veth peer name eth0 netns {}", guest.namespace.name());
        node.namespace.ip(&format!("link add tap101i0 index {index} {peer}"));
        node.namespace.ip("link set tap101i0 up");
        guest.namespace.ip(&format!("link set eth0 address {} up", Guest::mac(101)));
        guest.namespace.ip("addr add 169.254.1.2/16 dev eth0");
        // On the bridge only once it is guarded: what passes before is measured elsewhere.
        until("the newborn is guarded", || (node.guarded() > before).then_some(()));
        node.namespace.ip("link set tap101i0 master vmbr0");
        let ears = Watch::start(&[], &[guest]);
        let talk = Chatter::start(guest);
        talk.once_around();
        shouts.once_around();
        guest.await_answer();
        guest.has_its_own_files();
        drop(talk);
        ears.heard_nothing();
    }
    drop(shouts);
    let heard = asking.stop();
    assert_eq!((heard.failed, &heard.wrong[..]), (0, &[][..]), "{:?}", heard.first_failure);
    watch.heard_nothing();
}

/// Not to be had by frames alone: a kernel without memory, an interface without a slot, a daemon that is not there, and
/// more than a guest or all guests may have in flight.
fn needs_more_than_a_frame(reason: Reason) -> bool {
    let word = reason.word();
    ["_failed", "_unassigned", "_empty", "_credit", "_bucket", "_shed"].iter().any(|end| word.ends_with(end))
}

#[test]
fn every_verdict_is_given_on_a_real_link_and_exported() {
    let (mut node, guests) = scene(Plug::Tap(1));
    let (uplink, rogue) = (uplink(&node), Rogue::new(&node));
    node.start();
    guests.iter().for_each(|guest| node.await_guard(&guest.tap()));
    let [guest, neighbour] = &guests;
    let watch = Watch::start(&[(&node.namespace, "vmbr0"), (&uplink, "eth0")], &[guest, neighbour]);
    let ours = ["imdstk-a", "imdstk-b"].map(|name| Wire::packet(&node.namespace, name));
    for talk in [Chatter::start(guest), Chatter::start(neighbour), rogue.chatter()] {
        talk.once_around();
    }
    // Into our own devices, as only the node itself could: no tag, and the tag of slot 4000 in each epoch.
    let tag = |epoch: u8| [epoch << 3 | 0x02, 0, 0, 0, 0x0f, 0xa0];
    for tag in (0..32).map(tag).chain([[0x51; 6]]) {
        let frame = frames::segment(frames::GUEST, (40_000, 80), frames::ACK, &[], &[]);
        let target = [&tag[..], &frame[6..]].concat();
        let source = [&frame[..6], &tag, &frame[12..]].concat();
        assert!(ours[0].send(&target) && ours[1].send(&source));
    }
    guests.iter().for_each(Guest::has_its_own_files);
    watch.heard_nothing();
    let text = node.management("/metrics").unwrap();
    for reason in Reason::ALL.iter().filter(|reason| !needs_more_than_a_frame(**reason)) {
        let line = format!("pve_imds_guard_frames_total{{reason=\"{reason}\"}} ");
        let count = text.lines().find_map(|text| text.strip_prefix(&line)).map(|count| count.parse::<u64>().unwrap());
        assert!(count.is_some_and(|count| count > 0), "{reason}: {count:?}");
    }
}
