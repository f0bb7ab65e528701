//! What each program does with each kind of frame: one row per line of the design's table, judged by the kernel
//! (`BPF_PROG_TEST_RUN`). Needs root. Nothing is attached and no frame leaves.
//!
//! A test run refuses an IP frame without its whole IP header, so those rows wear a tag; `tests/links` has some bare.
#![allow(clippy::unwrap_used, missing_docs, missing_debug_implementations, unreachable_pub)]

mod back;
mod credit;
mod every;
mod model;

use std::net::{Ipv4Addr, Ipv6Addr};

use pve_imds_bpf::testing::{
    Beside, Frame, METADATA_IPV4 as METADATA, METADATA_IPV6, METADATA_LINK_LOCAL, OLD_SERVICE_VLANS, Verdict,
    extension, fragment, neighbour, redirect,
};
use pve_imds_bpf::{Bucket, Datapath, Epoch, Generation, Program, Reason, Slot, Tag};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd12, 0, 0, 0, 0, 0, 0, 7);
const OTHER6: Ipv6Addr = Ipv6Addr::new(0xfd12, 0, 0, 0, 0, 0, 0, 1);
/// One bit away from ours, in the parts between prefix and interface.
const NEAR6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 1, 0, 0, 0, 0x254);
const NEAR6_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 1, 0xa9fe, 0xa9fe);
const SOLICITED: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0x254);

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const ESP: u8 = 50;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const SOLICIT: u8 = 135;
const ADVERTISE: u8 = 136;

/// The loopback device stands for a guest's interface, an index that nobody has for our own.
const INTERFACE: u32 = 1;
const DEVICE_A: u32 = 4_000_000;
const PASSPORT: u32 = 0x696d_6473;
/// Chunks of the ring that `funnel` believes in.
const RING: u32 = 2048;

fn epoch() -> Epoch {
    Epoch::new(19).unwrap()
}

fn slot() -> Slot {
    Slot::new(0x0a0b).unwrap()
}

fn tag() -> Tag {
    Tag { epoch: epoch(), vlan: None, generation: Generation::new(7), slot: slot() }
}

fn served() -> Datapath {
    let mut datapath = Datapath::load(DEVICE_A, epoch(), RING, Bucket::default()).unwrap();
    datapath.assign(INTERFACE, slot(), Generation::new(7)).unwrap();
    datapath
}

type Row = (&'static str, Frame, Option<Reason>);

/// Frames of the table must go where their reason says and move that counter only; `None` is TCX_NEXT and no counter.
/// Neither may change the frame, unless it is redirected.
fn hold(program: Program, datapath: &Datapath, beside: Beside, table: Vec<Row>) {
    for (what, frame, reason) in table {
        let judged = datapath.judge(program, &frame, beside);
        let verdict = match reason {
            None => Verdict::Next,
            Some(reason) if reason.word().ends_with("_redirected") => Verdict::Redirect,
            Some(_) => Verdict::Drop,
        };
        assert_eq!((judged.verdict, judged.reasons), (verdict, Vec::from_iter(reason)), "{program}: {what}");
        if verdict != Verdict::Redirect {
            assert_eq!(judged.frame, frame, "{program} changed: {what}");
        }
    }
}

fn ns(target: Ipv6Addr) -> Vec<u8> {
    neighbour(SOLICIT, target)
}

fn na(target: Ipv6Addr) -> Vec<u8> {
    neighbour(ADVERTISE, target)
}

fn guest6(next: u8, payload: &[u8]) -> Frame {
    Frame::ipv6(GUEST6, OTHER6, next, payload)
}

/// Segments of every size that a guest may send us, and the question where we are.
fn ours() -> Vec<Row> {
    let steered = Some(Reason::SteerRedirected);
    vec![
        ("TCP to port 80", Frame::tcp(GUEST, METADATA, 80, 0), steered),
        ("TCP to port 80 with data", Frame::tcp(GUEST, METADATA, 80, 1400), steered),
        ("TCP that may not be fragmented", Frame::tcp(GUEST, METADATA, 80, 0).with_ipv4(6, &[0x40, 0]), steered),
        ("ARP request", Frame::arp(1, GUEST, METADATA), steered),
        ("ARP probe (RFC 5227)", Frame::arp(1, Ipv4Addr::UNSPECIFIED, METADATA), steered),
    ]
}

#[test]
fn steer_takes_what_is_ours_and_leaves_the_rest_alone() {
    let datapath = served();
    let beside = Beside { ifindex: INTERFACE, ..Beside::default() };
    hold(Program::Steer, &datapath, beside, ours());
    hold(
        Program::Steer,
        &datapath,
        beside,
        vec![
            ("TCP to others", Frame::tcp(GUEST, OTHER, 80, 1400), None),
            ("link-local neighbour address", Frame::tcp(GUEST, Ipv4Addr::new(169, 254, 169, 253), 80, 0), None),
            ("UDP to others", Frame::ipv4(GUEST, OTHER, UDP, &[0; 8]), None),
            ("options to others", Frame::tcp(GUEST, OTHER, 80, 8).with_ipv4(0, &[0x46]), None),
            ("fragment to others", Frame::tcp(GUEST, OTHER, 80, 8).with_ipv4(6, &[0x20, 0]), None),
            ("tagged TCP to others", Frame::tcp(GUEST, OTHER, 80, 0).vlan(42), None),
            ("QinQ TCP to others", Frame::tcp(GUEST, OTHER, 80, 0).vlan(42).service_vlan(7), None),
            ("old QinQ TCP to others", Frame::tcp(GUEST, OTHER, 80, 0).vlan(42).old_service_vlan(7), None),
            ("header only", Frame::tcp(GUEST, OTHER, 80, 0).cut(34), None),
            ("ARP request for others", Frame::arp(1, GUEST, OTHER), None),
            ("ARP answer to others", Frame::arp(2, GUEST, OTHER), None),
            ("RARP of others", Frame::rarp(3, Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED), None),
            ("IPv6 TCP", guest6(TCP, &[0; 20]), None),
            ("IPv6 empty", guest6(59, &[]), None),
            ("IPv6 to addresses like ours", Frame::ipv6(NEAR6, NEAR6_LINK_LOCAL, TCP, &[0; 20]), None),
            ("ESP", guest6(ESP, &[0; 16]), None),
            ("NS for others", Frame::ipv6(GUEST6, SOLICITED, ICMPV6, &ns(OTHER6)), None),
            ("NA for itself", guest6(ICMPV6, &na(GUEST6)), None),
            ("redirect of others", guest6(ICMPV6, &redirect(GUEST6, OTHER6)), None),
            ("ping", guest6(ICMPV6, &[128, 0, 0, 0, 0, 1, 0, 1]), None),
            ("ping behind hop-by-hop", guest6(HOP_BY_HOP, &extension(ICMPV6, 1, &[128, 0, 0, 0])), None),
            ("first fragment of UDP", guest6(FRAGMENT, &fragment(UDP, 0, true, &[0; 16])), None),
            ("later fragment of UDP", guest6(FRAGMENT, &fragment(UDP, 2, false, &[0; 16])), None),
            ("first fragment of a ping", guest6(FRAGMENT, &fragment(ICMPV6, 0, true, &[128, 0, 0, 0])), None),
            ("later fragment of a ping", guest6(FRAGMENT, &fragment(ICMPV6, 2, false, &[136; 16])), None),
            ("LLDP", Frame::new(0x88cc, &[2, 7, 4]), None),
            ("LLDP, one byte", Frame::new(0x88cc, &[2]), None),
            ("802.3 length", Frame::new(38, &[0x42; 38]), None),
        ],
    );
}

#[test]
fn steer_drops_whatever_else_is_meant_for_us() {
    let to_us = || Frame::tcp(GUEST, METADATA, 80, 0);
    hold(
        Program::Steer,
        &served(),
        Beside { ifindex: INTERFACE, ..Beside::default() },
        vec![
            ("port 443", Frame::tcp(GUEST, METADATA, 443, 0), Some(Reason::SteerPort)),
            ("port 0x5000", Frame::tcp(GUEST, METADATA, 80_u16.swap_bytes(), 0), Some(Reason::SteerPort)),
            ("UDP", Frame::ipv4(GUEST, METADATA, UDP, &[0; 8]), Some(Reason::SteerProtocol)),
            ("UDP, cut", Frame::ipv4(GUEST, METADATA, UDP, &[]), Some(Reason::SteerProtocol)),
            ("ping", Frame::ipv4(GUEST, METADATA, 1, &[8, 0, 0, 0]), Some(Reason::SteerProtocol)),
            ("SCTP", Frame::ipv4(GUEST, METADATA, 132, &[0; 12]), Some(Reason::SteerProtocol)),
            ("IPv6 in IPv4", Frame::ipv4(GUEST, METADATA, 41, &[0x60; 40]), Some(Reason::SteerProtocol)),
            ("options", Frame::tcp(GUEST, METADATA, 80, 40).with_ipv4(0, &[0x46]), Some(Reason::SteerOptions)),
            ("all options", Frame::tcp(GUEST, METADATA, 80, 40).with_ipv4(0, &[0x4f]), Some(Reason::SteerOptions)),
            ("header of 16 bytes", to_us().with(14, &[0x44]), Some(Reason::SteerOptions)),
            ("version 6 in an IPv4 frame", to_us().with(14, &[0x65]), Some(Reason::SteerOptions)),
            ("first fragment", to_us().with_ipv4(6, &[0x20, 0]), Some(Reason::SteerFragment)),
            ("later fragment", to_us().with_ipv4(6, &[0, 3]), Some(Reason::SteerFragment)),
            ("last fragment, far", to_us().with_ipv4(6, &[0x1f, 0xff]), Some(Reason::SteerFragment)),
            ("TCP header cut", to_us().cut(53), Some(Reason::SteerUnreadable)),
            ("no TCP header", to_us().cut(34), Some(Reason::SteerUnreadable)),
            ("ARP answer", Frame::arp(2, GUEST, METADATA), Some(Reason::SteerArp)),
            ("ARP of no operation", Frame::arp(0, GUEST, METADATA), Some(Reason::SteerArp)),
            ("ARP on IEEE 802", Frame::arp(1, GUEST, METADATA).with(14, &[0, 6]), Some(Reason::SteerArp)),
            ("RARP answer", Frame::rarp(4, GUEST, METADATA), Some(Reason::SteerArp)),
            ("RARP of ARP's operation", Frame::rarp(1, GUEST, METADATA), Some(Reason::SteerArp)),
            ("QinQ", to_us().vlan(42).service_vlan(7), Some(Reason::SteerTags)),
            ("QinQ of two 802.1Q tags", to_us().vlan(42).vlan(7), Some(Reason::SteerTags)),
            ("QinQ ARP", Frame::arp(1, GUEST, METADATA).vlan(42).vlan(7), Some(Reason::SteerTags)),
            ("old QinQ", to_us().vlan(42).old_service_vlan(7), Some(Reason::SteerTags)),
            ("old service tag alone", to_us().old_service_vlan(7), Some(Reason::SteerTags)),
            ("older service tag alone", to_us().tagged(OLD_SERVICE_VLANS[1], 7), Some(Reason::SteerTags)),
            ("oldest service tag alone", to_us().tagged(OLD_SERVICE_VLANS[2], 7), Some(Reason::SteerTags)),
            ("old QinQ ARP", Frame::arp(1, GUEST, METADATA).vlan(42).old_service_vlan(7), Some(Reason::SteerTags)),
            ("tagged UDP", Frame::ipv4(GUEST, METADATA, UDP, &[0; 8]).vlan(1).vlan(2), Some(Reason::SteerTags)),
            ("three tags", to_us().vlan(42).vlan(7).vlan(8), Some(Reason::SteerTags)),
            ("IPv6", Frame::ipv6(GUEST6, METADATA_IPV6, TCP, &[0; 20]), Some(Reason::SteerIpv6)),
            ("IPv6 link-local", Frame::ipv6(GUEST6, METADATA_LINK_LOCAL, UDP, &[0; 8]), Some(Reason::SteerIpv6)),
            (
                "IPv6, tagged twice",
                Frame::ipv6(GUEST6, METADATA_IPV6, TCP, &[]).vlan(1).vlan(2),
                Some(Reason::SteerIpv6),
            ),
            ("NS", Frame::ipv6(GUEST6, SOLICITED, ICMPV6, &ns(METADATA_IPV6)), Some(Reason::SteerIpv6)),
            (
                "NS link-local",
                Frame::ipv6(GUEST6, SOLICITED, ICMPV6, &ns(METADATA_LINK_LOCAL)),
                Some(Reason::SteerIpv6),
            ),
            (
                "NS, tagged",
                Frame::ipv6(GUEST6, SOLICITED, ICMPV6, &ns(METADATA_IPV6)).vlan(42),
                Some(Reason::SteerIpv6),
            ),
            (
                "NS behind hop-by-hop",
                Frame::ipv6(GUEST6, SOLICITED, HOP_BY_HOP, &extension(ICMPV6, 1, &ns(METADATA_IPV6))),
                Some(Reason::SteerIpv6),
            ),
        ],
    );
}

#[test]
fn steer_drops_whoever_claims_to_be_us_and_what_cannot_be_read() {
    hold(
        Program::Steer,
        &served(),
        Beside { ifindex: INTERFACE, ..Beside::default() },
        vec![
            ("IPv4 from us", Frame::tcp(METADATA, OTHER, 40_000, 0), Some(Reason::SteerClaim)),
            ("IPv4 from us to us", Frame::tcp(METADATA, METADATA, 80, 0), Some(Reason::SteerClaim)),
            ("tagged IPv4 from us", Frame::tcp(METADATA, OTHER, 1, 0).vlan(42), Some(Reason::SteerClaim)),
            ("ARP answer from us", Frame::arp(2, METADATA, OTHER), Some(Reason::SteerClaim)),
            ("ARP announcement from us", Frame::arp(1, METADATA, METADATA), Some(Reason::SteerClaim)),
            ("RARP from us", Frame::rarp(4, METADATA, OTHER), Some(Reason::SteerClaim)),
            ("ARP from us, tagged twice", Frame::arp(2, METADATA, OTHER).vlan(1).vlan(2), Some(Reason::SteerClaim)),
            ("ARP from us, tagged", Frame::arp(2, METADATA, OTHER).vlan(1), Some(Reason::SteerClaim)),
            ("ARP from us, old tag", Frame::arp(2, METADATA, OTHER).old_service_vlan(1), Some(Reason::SteerClaim)),
            ("IPv6 from us", Frame::ipv6(METADATA_IPV6, OTHER6, TCP, &[0; 20]), Some(Reason::SteerClaim)),
            ("tagged IPv6 from us", Frame::ipv6(METADATA_IPV6, OTHER6, UDP, &[]).vlan(4), Some(Reason::SteerClaim)),
            ("IPv6 from us, link-local", Frame::ipv6(METADATA_LINK_LOCAL, OTHER6, TCP, &[]), Some(Reason::SteerClaim)),
            ("NA for us", guest6(ICMPV6, &na(METADATA_IPV6)), Some(Reason::SteerIpv6)),
            ("NA for us, link-local", guest6(ICMPV6, &na(METADATA_LINK_LOCAL)), Some(Reason::SteerIpv6)),
            ("tagged NA for us", guest6(ICMPV6, &na(METADATA_IPV6)).vlan(42), Some(Reason::SteerIpv6)),
            ("redirect through us", guest6(ICMPV6, &redirect(METADATA_LINK_LOCAL, OTHER6)), Some(Reason::SteerIpv6)),
            ("redirect of us", guest6(ICMPV6, &redirect(OTHER6, METADATA_IPV6)), Some(Reason::SteerIpv6)),
            (
                "NA for us behind hop-by-hop",
                guest6(HOP_BY_HOP, &extension(ICMPV6, 1, &na(METADATA_IPV6))),
                Some(Reason::SteerIpv6),
            ),
            (
                "IPv4 cut in its address",
                Frame::tcp(GUEST, OTHER, 80, 0).cut(33).vlan(42),
                Some(Reason::SteerUnreadable),
            ),
            ("IPv4 of no bytes", Frame::new(0x0800, &[]).vlan(42), Some(Reason::SteerUnreadable)),
            ("ARP cut in its address", Frame::arp(1, GUEST, OTHER).cut(41), Some(Reason::SteerUnreadable)),
            ("ARP with long addresses", Frame::arp(1, GUEST, OTHER).with(18, &[20]), Some(Reason::SteerUnreadable)),
            ("ARP with IPv6 addresses", Frame::arp(1, GUEST, OTHER).with(19, &[16]), Some(Reason::SteerUnreadable)),
            ("ARP for no IPv4", Frame::arp(1, GUEST, OTHER).with(16, &[0x86, 0xdd]), Some(Reason::SteerUnreadable)),
            ("IPv6 cut in its address", guest6(TCP, &[]).cut(53).vlan(42), Some(Reason::SteerUnreadable)),
            ("RARP cut in its address", Frame::rarp(3, GUEST, OTHER).cut(41), Some(Reason::SteerUnreadable)),
            ("ICMPv6 of no bytes", guest6(ICMPV6, &[]), Some(Reason::SteerUnreadable)),
            (
                "first fragment whose padding is a ping",
                guest6(FRAGMENT, &fragment(ICMPV6, 0, true, &[])).padded(&[128; 6]),
                Some(Reason::SteerUnreadable),
            ),
            ("NA cut in its target", guest6(ICMPV6, &na(GUEST6)).cut(77), Some(Reason::SteerUnreadable)),
            ("tag of no bytes", Frame::new(0x8100, &[0, 1]), Some(Reason::SteerUnreadable)),
            ("four tags", Frame::new(0x88cc, &[]).vlan(1).vlan(2).vlan(3).vlan(4), Some(Reason::SteerTags)),
        ],
    );
}

#[test]
fn a_guarded_interface_without_a_slot_is_answered_with_silence() {
    let mut datapath = served();
    let beside = Beside { ifindex: INTERFACE, ..Beside::default() };
    datapath.release(INTERFACE, slot()).unwrap();
    datapath.release(INTERFACE, slot()).unwrap();
    let silent = |(what, frame, _): Row| (what, frame, Some(Reason::SteerUnassigned));
    hold(Program::Steer, &datapath, beside, ours().into_iter().map(silent).collect());
    hold(Program::Steer, &datapath, beside, vec![("others", Frame::tcp(GUEST, OTHER, 80, 0), None)]);
}

#[test]
fn a_steered_frame_says_where_it_came_from_and_is_otherwise_untouched() {
    let datapath = served();
    for (what, frame, _) in ours() {
        let judged = datapath.judge(Program::Steer, &frame, Beside { ifindex: INTERFACE, ..Beside::default() });
        assert_eq!(judged.frame, frame.with(0, &tag().encode()), "{what}");
    }
}

#[test]
fn shield_lets_nobody_speak_in_our_name() {
    let from_us = |payload: &[u8], next| Frame::ipv6(OTHER6, GUEST6, next, payload);
    let hidden = na(METADATA_IPV6);
    let neighbour = Some(Reason::ShieldClaimNeighbour);
    let unreadable = Some(Reason::ShieldUnreadable);
    let deep = (0..6).fold(na(METADATA_IPV6), |rest, i| extension(if i == 0 { ICMPV6 } else { DESTINATION }, 1, &rest));
    hold(
        Program::Shield,
        &served(),
        Beside { ifindex: INTERFACE, ingress_ifindex: 3, mark: 0 },
        vec![
            ("TCP from others", Frame::tcp(OTHER, GUEST, 80, 1400), None),
            ("TCP to us, on its way to a guest", Frame::tcp(OTHER, METADATA, 80, 0), None),
            ("QinQ from others", Frame::tcp(OTHER, GUEST, 80, 0).vlan(1).service_vlan(2), None),
            ("IPv4 from us", Frame::tcp(METADATA, GUEST, 40_000, 0), Some(Reason::ShieldClaimIpv4)),
            (
                "UDP fragment from us",
                Frame::ipv4(METADATA, GUEST, UDP, &[]).with_ipv4(6, &[0, 9]),
                Some(Reason::ShieldClaimIpv4),
            ),
            ("options from us", Frame::tcp(METADATA, GUEST, 1, 8).with_ipv4(0, &[0x46]), Some(Reason::ShieldClaimIpv4)),
            ("tagged IPv4 from us", Frame::tcp(METADATA, GUEST, 1, 0).vlan(42), Some(Reason::ShieldClaimIpv4)),
            (
                "QinQ IPv4 from us",
                Frame::tcp(METADATA, GUEST, 1, 0).vlan(42).service_vlan(1),
                Some(Reason::ShieldClaimIpv4),
            ),
            (
                "old QinQ IPv4 from us",
                Frame::tcp(METADATA, GUEST, 1, 0).vlan(42).old_service_vlan(1),
                Some(Reason::ShieldClaimIpv4),
            ),
            ("old tag ARP from us", Frame::arp(2, METADATA, GUEST).old_service_vlan(9), Some(Reason::ShieldClaimArp)),
            ("older tag ARP from us", Frame::arp(2, METADATA, GUEST).tagged(0x9200, 9), Some(Reason::ShieldClaimArp)),
            ("oldest tag ARP from us", Frame::arp(2, METADATA, GUEST).tagged(0x9300, 9), Some(Reason::ShieldClaimArp)),
            ("RARP of others", Frame::rarp(4, OTHER, GUEST), None),
            ("RARP from us", Frame::rarp(4, METADATA, GUEST), Some(Reason::ShieldClaimArp)),
            ("RARP that makes the guest us", Frame::rarp(4, OTHER, METADATA), Some(Reason::ShieldClaimArp)),
            ("RARP cut", Frame::rarp(4, OTHER, GUEST).cut(41), unreadable),
            ("ARP question of others", Frame::arp(1, OTHER, GUEST), None),
            ("ARP question for us", Frame::arp(1, OTHER, METADATA), None),
            ("ARP answer from us", Frame::arp(2, METADATA, GUEST), Some(Reason::ShieldClaimArp)),
            ("ARP question from us", Frame::arp(1, METADATA, GUEST), Some(Reason::ShieldClaimArp)),
            ("tagged ARP from us", Frame::arp(2, METADATA, GUEST).vlan(42), Some(Reason::ShieldClaimArp)),
            ("IPv6 from others", from_us(&[0; 20], TCP), None),
            ("IPv6 from us", Frame::ipv6(METADATA_IPV6, GUEST6, TCP, &[0; 20]), Some(Reason::ShieldClaimIpv6)),
            (
                "IPv6 from us, link-local",
                Frame::ipv6(METADATA_LINK_LOCAL, GUEST6, ICMPV6, &[]),
                Some(Reason::ShieldClaimIpv6),
            ),
            ("IPv6 to us", Frame::ipv6(OTHER6, METADATA_IPV6, TCP, &[0; 20]), None),
            ("NA for others", from_us(&na(OTHER6), ICMPV6), None),
            ("NS for us", from_us(&ns(METADATA_IPV6), ICMPV6), None),
            ("NA for us", from_us(&na(METADATA_IPV6), ICMPV6), neighbour),
            ("NA for us, link-local", from_us(&na(METADATA_LINK_LOCAL), ICMPV6), neighbour),
            ("tagged NA for us", from_us(&na(METADATA_IPV6), ICMPV6).vlan(42), neighbour),
            ("old tag NA for us", from_us(&na(METADATA_IPV6), ICMPV6).old_service_vlan(42), neighbour),
            ("QinQ NA for us", from_us(&na(METADATA_IPV6), ICMPV6).vlan(42).vlan(1), neighbour),
            ("NA behind hop-by-hop", from_us(&extension(ICMPV6, 1, &hidden), HOP_BY_HOP), neighbour),
            ("redirect of others", from_us(&redirect(OTHER6, GUEST6), ICMPV6), None),
            ("redirect through us", from_us(&redirect(METADATA_LINK_LOCAL, OTHER6), ICMPV6), neighbour),
            ("redirect of us", from_us(&redirect(OTHER6, METADATA_IPV6), ICMPV6), neighbour),
            ("redirect without destination", from_us(&redirect(OTHER6, OTHER6)[..24], ICMPV6), unreadable),
            (
                "redirect of us behind hop-by-hop",
                from_us(&extension(ICMPV6, 1, &redirect(OTHER6, METADATA_IPV6)), HOP_BY_HOP),
                neighbour,
            ),
            (
                "redirect in a fragment",
                from_us(&fragment(ICMPV6, 0, true, &redirect(OTHER6, OTHER6)), FRAGMENT),
                neighbour,
            ),
            (
                "first fragment whose padding is a ping",
                from_us(&fragment(ICMPV6, 0, true, &[]), FRAGMENT).padded(&[128; 6]),
                unreadable,
            ),
            (
                "first fragment whose padding is UDP's",
                from_us(&fragment(DESTINATION, 0, true, &[]), FRAGMENT).padded(&[UDP, 0, 0, 0, 0, 0, 0, 0]),
                unreadable,
            ),
            (
                "NA of a packet that states no length",
                from_us(&extension(ICMPV6, 1, &hidden), HOP_BY_HOP).with(18, &[0, 0]),
                neighbour,
            ),
            ("NA behind routing", from_us(&extension(ICMPV6, 3, &hidden), ROUTING), neighbour),
            ("NA behind destination options", from_us(&extension(ICMPV6, 32, &hidden), DESTINATION), neighbour),
            (
                "NA behind authentication",
                from_us(&[&[ICMPV6, 4][..], &[0; 22], &hidden].concat(), AUTHENTICATION),
                neighbour,
            ),
            (
                "NA behind two",
                from_us(&extension(DESTINATION, 1, &extension(ICMPV6, 2, &hidden)), HOP_BY_HOP),
                neighbour,
            ),
            ("NA in one fragment", from_us(&fragment(ICMPV6, 0, false, &hidden), FRAGMENT), neighbour),
            (
                "NA in a first fragment, target cut off",
                from_us(&fragment(ICMPV6, 0, true, &hidden[..8]), FRAGMENT),
                neighbour,
            ),
            (
                "chain in a first fragment",
                from_us(&fragment(DESTINATION, 0, true, &[58, 0, 0, 0, 0, 0, 0, 0]), FRAGMENT),
                unreadable,
            ),
            ("chain in a later fragment", from_us(&fragment(DESTINATION, 1, false, &hidden), FRAGMENT), unreadable),
            ("later fragment of a ping", from_us(&fragment(ICMPV6, 2, false, &hidden), FRAGMENT), None),
            ("fragments of UDP", from_us(&fragment(UDP, 0, true, &[0; 64]), FRAGMENT), None),
            ("chain without end", from_us(&deep, DESTINATION), unreadable),
            ("chain longer than the frame", from_us(&extension(ICMPV6, 2, &[]), HOP_BY_HOP), unreadable),
            ("chain that leads to TCP", from_us(&extension(TCP, 1, &[0; 20]), DESTINATION), None),
            ("IPv4 cut", Frame::tcp(OTHER, GUEST, 80, 0).cut(33).vlan(42), unreadable),
            ("ARP cut", Frame::arp(2, OTHER, GUEST).cut(41), unreadable),
            ("ARP with long addresses", Frame::arp(2, OTHER, GUEST).with(18, &[8]), unreadable),
            ("IPv6 cut", from_us(&[], TCP).cut(53).vlan(42), unreadable),
            ("four tags", Frame::new(0x88cc, &[]).vlan(1).vlan(2).vlan(3).vlan(4), unreadable),
            ("LLDP", Frame::new(0x88cc, &[2, 7, 4]), None),
        ],
    );
}

#[test]
fn shield_knows_our_own_answers_by_way_and_mark() {
    let datapath = served();
    let unguarded = Datapath::load(0, epoch(), RING, Bucket::default()).unwrap();
    let answer = Frame::tcp(METADATA, GUEST, 40_000, 0);
    let claim = (Verdict::Drop, 0);
    for (what, datapath, ingress_ifindex, mark, expected) in [
        ("ours", &datapath, DEVICE_A, PASSPORT, (Verdict::Next, 0)),
        ("our index, reused", &datapath, DEVICE_A, 0, claim),
        ("our mark from elsewhere", &datapath, 3, PASSPORT, claim),
        ("our mark from the host", &datapath, 0, PASSPORT, claim),
        ("from the host while we have no device", &unguarded, 0, PASSPORT, claim),
    ] {
        let judged = datapath.judge(Program::Shield, &answer, Beside { ifindex: INTERFACE, ingress_ifindex, mark });
        let kept = if judged.verdict == Verdict::Next { judged.mark } else { 0 };
        assert_eq!((judged.verdict, kept), expected, "{what}");
    }
    let ordinary = Beside { ifindex: INTERFACE, ingress_ifindex: 3, mark: 17 };
    let judged = datapath.judge(Program::Shield, &Frame::tcp(OTHER, GUEST, 80, 0), ordinary);
    assert_eq!(judged.mark, 17, "the firewall's mark is not ours to change");
}
