//! Programs on real interfaces: the way of a frame there and back, what stays when we go, and what is refused. Needs
//! root; every test has a node of its own (`support`).
#![allow(clippy::unwrap_used, missing_docs, missing_debug_implementations, unreachable_pub)]

mod credit;
mod foreign;
mod idle;
mod steps;
mod strays;
mod support;
mod tap;

use std::net::Ipv4Addr;
use std::path::Path;

use pve_imds_bpf::testing::{Frame, METADATA_IPV4 as METADATA};
use pve_imds_bpf::{
    AttachError, Bucket, Datapath, Epoch, Generation, METADATA_MAC, Pins, Program, Reason, Slot, Swap, Swept, Tag,
    disable_tx_checksum,
};
use support::{Wire, index, ip, node, pair, said};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Chunks of the ring that `funnel` believes in.
const RING: u32 = 2048;

fn slot() -> Slot {
    Slot::new(3).unwrap()
}

fn tag(epoch: Epoch) -> Tag {
    Tag { epoch, vlan: None, generation: Generation::new(9), slot: slot() }
}

/// `g0` is a guest's interface, `h0` the host's end of it, `imds-a` and `imds-b` are our devices.
fn devices() {
    pair("h0", "g0");
    pair("imds-a", "imds-b");
}

fn load(epoch: Epoch) -> Datapath {
    let mut datapath = Datapath::load(index("imds-a"), epoch, RING, Bucket::default()).unwrap();
    datapath.assign(index("h0"), slot(), Generation::new(9)).unwrap();
    datapath
}

/// Counters have no event to wait for: a frame that was sent may be judged on another processor a moment later.
fn assert_counted(datapath: &Datapath, reason: Reason, expected: u64) {
    let count = || datapath.counters().into_iter().find(|(counted, _)| *counted == reason).unwrap().1;
    for _ in 0..100_000 {
        if count() >= expected {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!(count(), expected, "{reason}");
}

fn attached(dir: &Path) -> (Pins, Datapath) {
    let pins = Pins::open(dir).unwrap();
    let mut datapath = load(Epoch::default());
    datapath.guard(&pins, "h0", index("h0")).unwrap();
    datapath.attach_return(&pins, "imds-a").unwrap();
    (pins, datapath)
}

#[test]
fn a_question_reaches_user_space_and_the_answer_its_guest() {
    node(|dir| {
        devices();
        let (_pins, datapath) = attached(dir);
        let (guest, ours) = (Wire::open("g0"), Wire::open("imds-b"));

        let question = Frame::arp(1, GUEST, METADATA);
        guest.send(&question);
        let steered = question.with(0, &tag(Epoch::default()).encode());
        assert_eq!(ours.receive(), steered);

        let answer = Frame::arp(2, METADATA, GUEST);
        ours.send(&answer.clone().with(6, &tag(Epoch::default()).encode()));
        assert_eq!(guest.receive(), answer.with(6, &METADATA_MAC));
        assert_counted(&datapath, Reason::ReturnRedirected, 1);
    });
}

#[test]
fn a_vlan_tag_travels_in_the_tag_and_comes_back() {
    node(|dir| {
        devices();
        let (_pins, datapath) = attached(dir);
        let (guest, ours) = (Wire::open("g0"), Wire::open("imds-b"));

        let question = Frame::tcp(GUEST, METADATA, 80, 100);
        guest.send(&question.clone().vlan(0xa02a));
        let tag = Tag { vlan: Some(0xa02a), ..tag(Epoch::default()) };
        assert_eq!(ours.receive(), question.with(0, &tag.encode()));

        let answer = Frame::tcp(METADATA, GUEST, 40_000, 100);
        ours.send(&answer.clone().with(6, &tag.encode()));
        assert_eq!(guest.receive(), answer.with(6, &METADATA_MAC).vlan(0xa02a));

        // A service tag beside the frame, where a test run cannot put it, is not ours to answer.
        guest.send(&Frame::arp(1, GUEST, METADATA).service_vlan(42));
        guest.send(&Frame::arp(1, GUEST, METADATA));
        ours.receive();
        assert_counted(&datapath, Reason::SteerTags, 1);
    });
}

#[test]
fn nobody_else_is_heard_and_others_are_not_disturbed() {
    node(|dir| {
        devices();
        let (_pins, datapath) = attached(dir);
        let (guest, host) = (Wire::open("g0"), Wire::open("h0"));
        host.send(&Frame::arp(2, METADATA, GUEST));
        host.send(&Frame::arp(2, METADATA, GUEST).vlan(42));
        host.send(&Frame::tcp(METADATA, GUEST, 40_000, 0));
        host.send(&Frame::tcp(OTHER, GUEST, 40_000, 0).cut(33));
        host.send(&Frame::new(0x0800, &[]));
        let ordinary = Frame::tcp(OTHER, GUEST, 80, 1000);
        host.send(&ordinary);
        assert_eq!(guest.receive(), ordinary);
        assert_counted(&datapath, Reason::ShieldClaimArp, 2);
        assert_counted(&datapath, Reason::ShieldClaimIpv4, 1);
        assert_counted(&datapath, Reason::ShieldUnreadable, 2);
    });
}

#[test]
fn a_header_that_is_not_linear_is_pulled_and_read() {
    node(|dir| {
        devices();
        let (_pins, datapath) = attached(dir);
        let (guest, host, ours) = (Wire::open_headed("g0"), Wire::open_headed("h0"), Wire::open("imds-b"));
        let large = Frame::tcp(GUEST, METADATA, 80, 5000);
        guest.send_split(&large);
        assert_eq!(ours.receive(), large.with(0, &tag(Epoch::default()).encode()));
        host.send_split(&Frame::tcp(METADATA, GUEST, 40_000, 5000));
        assert_counted(&datapath, Reason::ShieldClaimIpv4, 1);
        assert_counted(&datapath, Reason::ShieldUnreadable, 0);

        let plain = Wire::open("g0");
        plain.send(&Frame::tcp(GUEST, METADATA, 80, 0).cut(33));
        plain.send(&Frame::tcp(GUEST, METADATA, 80, 0));
        ours.receive();
        assert_counted(&datapath, Reason::SteerUnreadable, 1);
    });
}

#[test]
fn the_guard_outlives_its_maker_and_the_next_one_is_swapped_in() {
    node(|dir| {
        devices();
        let pins = Pins::open(dir).unwrap();
        let mut lock = pins.lock().unwrap();
        let first = lock.next_epoch().unwrap();
        let mut datapath = load(first);
        let host = index("h0");
        assert_eq!(datapath.guard(&pins, "h0", host).unwrap(), Swap::Attached);
        assert_eq!(datapath.attach_return(&pins, "imds-a").unwrap(), Swap::Attached);
        assert_eq!(datapath.guard(&pins, "h0", host).unwrap(), Swap::Swapped);
        let before = pins.list().unwrap();
        let named: Vec<_> =
            before.iter().map(|pinned| (pinned.name.as_deref().unwrap(), pinned.program, pinned.defunct)).collect();
        let expected = [("h0", Program::Steer), ("h0", Program::Shield), ("imds-a", Program::Return)];
        assert_eq!(named, expected.map(|(name, program)| (name, program, false)));

        drop((datapath, lock));
        assert_eq!(pins.list().unwrap(), before);
        let (guest, ours) = (Wire::open("g0"), Wire::open("imds-b"));
        let question = Frame::arp(1, GUEST, METADATA);
        guest.send(&question);
        assert_eq!(ours.receive(), question.clone().with(0, &tag(first).encode()));

        let second = pins.lock().unwrap().next_epoch().unwrap();
        assert_eq!(second, first.next());
        let mut datapath = load(second);
        assert_eq!(datapath.guard(&pins, "h0", host).unwrap(), Swap::Swapped);
        guest.send(&question);
        assert_eq!(ours.receive(), question.with(0, &tag(second).encode()));
        let after = pins.list().unwrap();
        assert!(after[..2].iter().zip(&before).all(|(after, before)| after.program_id != before.program_id));
        assert_eq!(after[2], before[2], "return is swapped by itself");

        // A guard that lives is no leftover; who wants it gone says so.
        pins.forget(host).unwrap();
        assert_eq!(pins.list().unwrap(), after);
        let gone = vec![(Program::Steer, host), (Program::Shield, host)];
        assert_eq!(pins.sweep(|ifindex| ifindex != host).unwrap(), Swept { gone, foreign: vec![] });
        assert_eq!(pins.list().unwrap().len(), 1);
        assert_eq!(pins.remove_all().unwrap(), []);
        assert_eq!(pins.list().unwrap(), []);
    });
}

#[test]
fn what_is_left_of_a_dead_interface_is_swept_or_renewed() {
    node(|dir| {
        devices();
        let (pins, mut datapath) = attached(dir);
        let host = index("h0");
        ip("link del h0\n");
        let dead: Vec<_> = pins.list().unwrap().into_iter().filter(|pinned| pinned.defunct).collect();
        assert_eq!(dead.iter().map(|pinned| pinned.ifindex).collect::<Vec<_>>(), [host, host]);
        assert!(dead.iter().all(|pinned| pinned.name.is_none()));

        // The same index again, another interface: the old link must not pass for its guard.
        ip(&format!("link add h0 index {host} type veth peer g0\nlink set h0 up\nlink set g0 up\n"));
        assert_eq!(index("h0"), host);
        assert_eq!(datapath.guard(&pins, "h0", host).unwrap(), Swap::Renewed);
        assert!(pins.list().unwrap().iter().all(|pinned| !pinned.defunct));

        assert_eq!(pins.sweep(|_| true).unwrap(), Swept::default());
        ip("link del h0\n");
        assert_eq!(pins.sweep(|_| true).unwrap().gone, [(Program::Steer, host), (Program::Shield, host)]);
        let device = index("imds-a");
        assert_eq!(pins.sweep(|ifindex| ifindex != device).unwrap().gone, [(Program::Return, device)]);
        assert_eq!(pins.list().unwrap(), []);
    });
}

#[test]
fn a_name_that_means_another_interface_is_refused_and_nothing_stays() {
    node(|dir| {
        devices();
        let pins = Pins::open(dir).unwrap();
        let mut datapath = load(Epoch::default());
        let why = datapath.guard(&pins, "h0", index("g0")).unwrap_err();
        assert!(matches!(why, AttachError::Renamed { .. }), "{why}");
        assert_eq!(pins.list().unwrap(), []);
        assert!(matches!(datapath.guard(&pins, "nobody", 77), Err(AttachError::Refused { .. })));
        assert!(matches!(datapath.attach_return(&pins, "nobody"), Err(AttachError::NoInterface { .. })));
    });
}

#[test]
fn funnel_is_run_by_the_driver_or_not_at_all() {
    node(|dir| {
        devices();
        let pins = Pins::open(dir).unwrap();
        let mut datapath = load(Epoch::default());
        let why = datapath.attach_funnel(&pins, "lo").unwrap_err();
        assert!(matches!(why, AttachError::NotNative { .. }), "{why}");
        assert_eq!(datapath.attach_funnel(&pins, "imds-b").unwrap(), Swap::Attached);
        let shown = said("ip", &["-details", "link", "show", "imds-b"]);
        assert!(shown.contains("xdp") && !shown.contains("xdpgeneric"), "{shown}");
        let mut next = load(Epoch::default().next());
        assert_eq!(next.attach_funnel(&pins, "imds-b").unwrap(), Swap::Swapped);

        // Steered frames end here while there is no socket.
        next.guard(&pins, "h0", index("h0")).unwrap();
        let guest = Wire::open("g0");
        guest.send(&Frame::arp(1, GUEST, METADATA));
        assert_counted(&next, Reason::FunnelEmpty, 1);
        ip("link del imds-a\n");

        pair("imds-a", "imds-b");
        assert_eq!(next.attach_funnel(&pins, "imds-b").unwrap(), Swap::Renewed);
    });
}

#[test]
fn without_checksum_offload_nothing_arrives_half_done() {
    node(|_| {
        pair("imds-a", "imds-b");
        let feature = |name: &str| {
            let features = said("ethtool", &["-k", "imds-a"]);
            features.lines().find(|line| line.trim_start().starts_with(name)).unwrap().trim().to_owned()
        };
        assert_eq!(feature("tx-checksumming"), "tx-checksumming: on");
        assert_eq!(feature("tx-tcp-segmentation"), "tx-tcp-segmentation: on");
        disable_tx_checksum("imds-a").unwrap();
        assert_eq!(feature("tx-checksumming"), "tx-checksumming: off");
        assert_eq!(feature("tx-tcp-segmentation"), "tx-tcp-segmentation: off [requested on]");
        disable_tx_checksum("imds-a").unwrap();
        assert!(disable_tx_checksum("nobody").is_err());
        assert!(disable_tx_checksum("a-name-of-sixteen").is_err());
    });
}
