//! Every cut, every byte and every pair of tags: the programs against the [`model`], on all frames that are one change
//! away from one that matters.

use std::collections::BTreeMap;

use pve_imds_bpf::testing::{
    Beside, Frame, METADATA_IPV4 as METADATA, METADATA_IPV6, METADATA_LINK_LOCAL, OLD_SERVICE_VLANS, Verdict,
    extension, fragment, redirect,
};
use pve_imds_bpf::{Credit, Datapath, Generation, Program, Reason, Slot};

use crate::model::{self, Ruling};
use crate::{
    AUTHENTICATION, DESTINATION, FRAGMENT, GUEST, HOP_BY_HOP, ICMPV6, INTERFACE, OTHER, OTHER6, SOLICITED, TCP, UDP,
    guest6, na, ns, served,
};

/// One of each kind that the programs tell apart.
fn bases() -> Vec<(&'static str, Frame)> {
    let authentication = |rest: &[u8]| [&[ICMPV6, 4][..], &[0; 22], rest].concat();
    let behind = |headers: u8| {
        (0..headers).fold(na(METADATA_IPV6), |rest, i| extension(if i == 0 { ICMPV6 } else { DESTINATION }, 1, &rest))
    };
    vec![
        ("ARP question", Frame::arp(1, GUEST, METADATA)),
        ("ARP claim", Frame::arp(2, METADATA, OTHER)),
        ("ARP of others", Frame::arp(1, GUEST, OTHER)),
        ("RARP claim", Frame::rarp(4, METADATA, OTHER)),
        ("RARP about us", Frame::rarp(4, OTHER, METADATA)),
        ("TCP to port 80", Frame::tcp(GUEST, METADATA, 80, 8)),
        ("SYN to port 80", Frame::tcp(GUEST, METADATA, 80, 0).with(47, &[0x02])),
        ("TCP to port 443", Frame::tcp(GUEST, METADATA, 443, 0)),
        ("TCP claim", Frame::tcp(METADATA, OTHER, 40_000, 0)),
        ("TCP of others", Frame::tcp(GUEST, OTHER, 80, 0)),
        ("UDP", Frame::ipv4(GUEST, METADATA, UDP, &[0; 12])),
        ("first fragment", Frame::tcp(GUEST, METADATA, 80, 0).with_ipv4(6, &[0x20, 0])),
        ("later fragment", Frame::tcp(GUEST, METADATA, 80, 0).with_ipv4(6, &[0, 9])),
        ("IPv6 to us", Frame::ipv6(OTHER6, METADATA_IPV6, TCP, &[0; 20])),
        ("IPv6 claim", Frame::ipv6(METADATA_LINK_LOCAL, OTHER6, UDP, &[0; 8])),
        ("IPv6 of others", guest6(TCP, &[0; 20])),
        ("NS", Frame::ipv6(OTHER6, SOLICITED, ICMPV6, &ns(METADATA_IPV6))),
        ("NA", guest6(ICMPV6, &na(METADATA_LINK_LOCAL))),
        ("NA of others", guest6(ICMPV6, &na(OTHER6))),
        ("redirect through us", guest6(ICMPV6, &redirect(METADATA_IPV6, OTHER6))),
        ("redirect of us", guest6(ICMPV6, &redirect(OTHER6, METADATA_LINK_LOCAL))),
        ("redirect of others", guest6(ICMPV6, &redirect(OTHER6, OTHER6))),
        ("ping", guest6(ICMPV6, &[128, 0, 0, 0, 0, 1, 0, 1])),
        (
            "first fragment with padding",
            guest6(FRAGMENT, &fragment(ICMPV6, 0, true, &[])).padded(&[128, 0, 0, 0, 0, 0]),
        ),
        ("NA without a length", guest6(HOP_BY_HOP, &extension(ICMPV6, 1, &na(METADATA_IPV6))).with(18, &[0, 0])),
        ("NA behind hop-by-hop", guest6(HOP_BY_HOP, &extension(ICMPV6, 1, &na(METADATA_IPV6)))),
        ("NS behind two", guest6(DESTINATION, &extension(HOP_BY_HOP, 1, &extension(ICMPV6, 2, &ns(METADATA_IPV6))))),
        ("NA behind five", guest6(DESTINATION, &behind(5))),
        ("NA behind six", guest6(DESTINATION, &behind(6))),
        ("NA behind authentication", guest6(AUTHENTICATION, &authentication(&na(METADATA_IPV6)))),
        ("NA in a fragment", guest6(FRAGMENT, &fragment(ICMPV6, 0, true, &na(METADATA_IPV6)))),
        ("later fragment of a chain", guest6(FRAGMENT, &fragment(DESTINATION, 7, false, &na(METADATA_IPV6)))),
        ("fragment of UDP", guest6(FRAGMENT, &fragment(UDP, 0, true, &[0; 16]))),
        ("LLDP", Frame::new(0x88cc, &[2, 7, 4])),
        ("ARP in SNAP", Frame::new(36, &[0xaa, 0xaa, 3, 0, 0, 0, 0x08, 0x06, 0, 1])),
        ("IPv4 in SNAP of another organisation", Frame::new(0, &[0xaa, 0xaa, 3, 0, 0, 0xf8, 0x08, 0x00, 0x45])),
        ("CDP", Frame::new(40, &[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0x00, 2])),
        ("spanning tree", Frame::new(38, &[0x42, 0x42, 3, 0, 0, 0, 0, 0, 0])),
    ]
}

/// Puts a tag on a frame, or none.
type Tagging = fn(Frame) -> Frame;

/// No tag, and each type of tag.
const TAGS: [Tagging; 6] = [
    |frame| frame,
    |frame| frame.vlan(42),
    |frame| frame.service_vlan(7),
    |frame| frame.tagged(OLD_SERVICE_VLANS[0], 9),
    |frame| frame.tagged(OLD_SERVICE_VLANS[1], 9),
    |frame| frame.tagged(OLD_SERVICE_VLANS[2], 9),
];

fn in_pairs_of_tags(frame: &Frame) -> Vec<Frame> {
    TAGS.into_iter().flat_map(|inner| TAGS.map(|outer| outer(inner(frame.clone())))).collect()
}

/// Judges frames and keeps books on what the counters must say.
struct Court {
    datapath: Datapath,
    credit: Credit,
    /// Questions have a rate for each slot, so they are asked from many.
    slots: Box<dyn Iterator<Item = Slot>>,
    questions: u32,
    expected: BTreeMap<Reason, u64>,
    judged: u32,
    untried: u32,
}

impl Court {
    fn new() -> Self {
        let datapath = served();
        let credit = datapath.credit().unwrap();
        let slots = Box::new((0..Slot::CAPACITY).filter_map(Slot::new));
        let expected = datapath.counters().into_iter().collect();
        let mut court = Self { datapath, credit, slots, questions: 0, expected, judged: 0, untried: 0 };
        court.next_slot();
        court
    }

    fn next_slot(&mut self) {
        let slot = self.slots.next().unwrap();
        self.datapath.assign(INTERFACE, slot, Generation::new(7)).unwrap();
        self.credit.acknowledge(slot, 1 << 30);
    }

    fn hear(&mut self, what: &dyn Fn() -> String, frame: &[u8]) {
        let beside = Beside { ifindex: INTERFACE, ingress_ifindex: 3, mark: 0 };
        for (program, ruling) in [(Program::Steer, model::steer(frame)), (Program::Shield, model::shield(frame))] {
            let verdict = match ruling {
                Ruling::Next => Verdict::Next,
                Ruling::Drop(_) => Verdict::Drop,
                Ruling::Steer { .. } => Verdict::Redirect,
            };
            let Some(judged) = self.datapath.verdict(program, frame, beside) else {
                assert!(model::untried(frame), "{program} was not tried on {}", what());
                self.untried += 1;
                continue;
            };
            assert_eq!(judged, verdict, "{program} on {}: {ruling:?}", what());
            self.judged += 1;
            match ruling {
                Ruling::Next => {}
                Ruling::Drop(reason) => *self.expected.entry(reason).or_default() += 1,
                Ruling::Steer { metered } => {
                    *self.expected.entry(Reason::SteerRedirected).or_default() += 1;
                    self.questions += u32::from(metered);
                    if metered && self.questions.is_multiple_of(200) {
                        self.next_slot();
                    }
                }
            }
        }
    }

    /// Reading all counters takes long, so they are compared for many frames at once.
    fn close(&self, what: &str) {
        let counted: BTreeMap<_, _> = self.datapath.counters().into_iter().collect();
        assert_eq!(counted, self.expected, "{what}");
    }
}

#[test]
fn every_frame_is_treated_as_the_design_says_wherever_it_is_cut_off() {
    let mut court = Court::new();
    for (name, base) in bases() {
        for frame in in_pairs_of_tags(&base) {
            for size in 0..=frame.0.len() {
                court.hear(&|| format!("{name}, {size} bytes of {:02x?}", frame.0), &frame.0[..size]);
            }
        }
        court.close(name);
    }
    assert!(court.judged > 150_000 && court.untried < 42_000, "{} and {}", court.judged, court.untried);
}

/// As far as any header that is looked at reaches.
const HEADERS: usize = 80;

#[test]
fn every_frame_is_treated_as_the_design_says_whatever_one_byte_is_changed() {
    let mut court = Court::new();
    for (name, base) in bases() {
        for frame in [base.clone(), base.vlan(42)] {
            let mut bytes = frame.0;
            for at in 0..HEADERS.min(bytes.len()) {
                let before = bytes[at];
                for value in 0..=u8::MAX {
                    bytes[at] = value;
                    court.hear(&|| format!("{name}, byte {at} is {value:#04x}"), &bytes);
                }
                bytes[at] = before;
            }
        }
        court.close(name);
    }
    assert!(court.judged > 1_000_000 && court.untried < 1_000, "{} and {}", court.judged, court.untried);
}
