//! What a guest, or somebody on its bridge, can say about a metadata address: one frame for each verdict of the guard.
//!
//! Frames come from the builder of the guard's own tests, so sizes and IPv4 checksums are true. The tables name the
//! reason by which each frame must be counted.

use std::net::{Ipv4Addr, Ipv6Addr};

use pve_imds_transport::bpf::Reason;
use pve_imds_transport::bpf::testing::{
    Frame, METADATA_IPV4, METADATA_IPV6, METADATA_LINK_LOCAL, extension, fragment, neighbour,
};

/// The guest's address in these frames.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 2);

const GUEST_IPV6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x102);

const HOP_BY_HOP: u8 = 0;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const ICMPV6: u8 = 58;
const DESTINATION: u8 = 60;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// A datagram from port 40,000 to port 53, with four bytes in it.
const DATAGRAM: [u8; 12] = [0x9c, 0x40, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];

/// Everything that `steer` decides about, except what only a kernel without memory can bring about and what takes a
/// flood.
pub fn from_guest() -> Vec<(Reason, Frame)> {
    let udp = |source, target| Frame::ipv4(source, target, UDP, &DATAGRAM);
    let udp6 = |source, target| Frame::ipv6(source, target, UDP, &DATAGRAM);
    let icmp6 = |target, message: &[u8]| Frame::ipv6(GUEST_IPV6, target, ICMPV6, message);
    let echo = [128, 0, 0, 0, 0, 1, 0, 1];
    let elsewhere = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let options = [&[0x94, 4, 0, 0][..], &DATAGRAM].concat();
    vec![
        (Reason::SteerRedirected, Frame::arp(1, GUEST, METADATA_IPV4)),
        (Reason::SteerRedirected, Frame::arp(1, GUEST, METADATA_IPV4).vlan(42)),
        (Reason::SteerRedirected, Frame::tcp(GUEST, METADATA_IPV4, 80, 100)),
        (Reason::SteerRedirected, Frame::tcp(GUEST, METADATA_IPV4, 80, 100).vlan(42)),
        (Reason::SteerClaim, Frame::arp(2, METADATA_IPV4, GUEST)),
        (Reason::SteerClaim, Frame::arp(1, METADATA_IPV4, METADATA_IPV4)),
        (Reason::SteerClaim, udp(METADATA_IPV4, GUEST)),
        (Reason::SteerClaim, udp(METADATA_IPV4, GUEST).vlan(42)),
        (Reason::SteerClaim, udp6(METADATA_IPV6, GUEST_IPV6)),
        (Reason::SteerOptions, Frame::ipv4(GUEST, METADATA_IPV4, UDP, &options).with_ipv4(0, &[0x46])),
        (Reason::SteerFragment, udp(GUEST, METADATA_IPV4).with_ipv4(6, &[0x20, 0])),
        (Reason::SteerFragment, Frame::tcp(GUEST, METADATA_IPV4, 80, 100).with_ipv4(6, &[0, 4])),
        (Reason::SteerProtocol, udp(GUEST, METADATA_IPV4)),
        (Reason::SteerProtocol, Frame::ipv4(GUEST, METADATA_IPV4, 1, &[8, 0, 0xf7, 0xfd, 0, 1, 0, 1])),
        (Reason::SteerPort, Frame::tcp(GUEST, METADATA_IPV4, 443, 0)),
        (Reason::SteerArp, Frame::arp(2, GUEST, METADATA_IPV4)),
        (Reason::SteerTags, Frame::tcp(GUEST, METADATA_IPV4, 80, 0).service_vlan(7)),
        (Reason::SteerTags, Frame::arp(1, GUEST, METADATA_IPV4).vlan(42).vlan(7)),
        (Reason::SteerTags, udp(GUEST, METADATA_IPV4).vlan(42).vlan(7).vlan(8).vlan(9)),
        (Reason::SteerIpv6, udp6(GUEST_IPV6, METADATA_IPV6)),
        (Reason::SteerIpv6, icmp6(METADATA_IPV6, &echo)),
        (Reason::SteerIpv6, icmp6(METADATA_LINK_LOCAL, &echo)),
        (Reason::SteerIpv6, icmp6(elsewhere, &neighbour(SOLICITATION, METADATA_IPV6))),
        (Reason::SteerIpv6, icmp6(elsewhere, &neighbour(SOLICITATION, METADATA_LINK_LOCAL)).vlan(42)),
        (Reason::SteerIpv6, behind(&[HOP_BY_HOP], SOLICITATION, METADATA_IPV6)),
        (Reason::SteerUnreadable, udp(GUEST, METADATA_IPV4).cut(30)),
        (Reason::SteerUnreadable, Frame::arp(1, GUEST, METADATA_IPV4).cut(30)),
        (Reason::SteerUnreadable, behind(&[DESTINATION; 7], SOLICITATION, METADATA_IPV6)),
    ]
}

/// Everything that `shield` decides about: what a rogue on the bridge says in a metadata address's name.
pub fn from_bridge() -> Vec<(Reason, Frame)> {
    let udp6 = |source| Frame::ipv6(source, GUEST_IPV6, UDP, &DATAGRAM);
    let advertised = |target| Frame::ipv6(GUEST_IPV6, GUEST_IPV6, ICMPV6, &neighbour(ADVERTISEMENT, target));
    let part = fragment(ICMPV6, 0, true, &neighbour(ADVERTISEMENT, METADATA_IPV6));
    vec![
        (Reason::ShieldClaimIpv4, Frame::ipv4(METADATA_IPV4, GUEST, UDP, &DATAGRAM)),
        (Reason::ShieldClaimIpv4, Frame::ipv4(METADATA_IPV4, GUEST, UDP, &DATAGRAM).vlan(42)),
        (Reason::ShieldClaimIpv4, Frame::tcp(METADATA_IPV4, GUEST, 80, 0)),
        (Reason::ShieldClaimArp, Frame::arp(2, METADATA_IPV4, GUEST)),
        (Reason::ShieldClaimArp, Frame::arp(1, METADATA_IPV4, METADATA_IPV4)),
        (Reason::ShieldClaimArp, Frame::arp(2, METADATA_IPV4, GUEST).vlan(42)),
        (Reason::ShieldClaimIpv6, udp6(METADATA_IPV6)),
        (Reason::ShieldClaimIpv6, udp6(METADATA_LINK_LOCAL).vlan(42)),
        (Reason::ShieldClaimNeighbour, advertised(METADATA_IPV6)),
        (Reason::ShieldClaimNeighbour, advertised(METADATA_LINK_LOCAL).vlan(42)),
        (Reason::ShieldClaimNeighbour, behind(&[DESTINATION], ADVERTISEMENT, METADATA_IPV6)),
        (Reason::ShieldClaimNeighbour, Frame::ipv6(GUEST_IPV6, GUEST_IPV6, FRAGMENT, &part)),
        (Reason::ShieldUnreadable, behind(&[DESTINATION; 7], ADVERTISEMENT, METADATA_IPV6)),
    ]
}

/// A neighbour discovery message behind extension headers of these types, outermost first.
fn behind(headers: &[u8], kind: u8, target: Ipv6Addr) -> Frame {
    let nested = headers
        .iter()
        .rev()
        .fold((ICMPV6, neighbour(kind, target)), |(next, rest), header| (*header, extension(next, 1, &rest)));
    Frame::ipv6(GUEST_IPV6, GUEST_IPV6, nested.0, &nested.1)
}

/// The flags of a TCP segment (RFC 9293, 3.1).
pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;

/// A TCP segment to the metadata address with valid checksums. `options` are whole words.
pub fn segment(source: Ipv4Addr, (from, to): (u16, u16), flags: u8, options: &[u8], data: &[u8]) -> Vec<u8> {
    let mut tcp = [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0; 8]].concat();
    tcp.extend([u8::try_from(5 + options.len() / 4).unwrap() << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend(options);
    tcp.extend(data);
    let sum = !pseudo(source, tcp.len(), &tcp);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    Frame::ipv4(source, METADATA_IPV4, TCP, &tcp).0
}

/// The sum of TCP's pseudo header and `bytes`, folded and not inverted: what a guest that leaves the checksum to its
/// network card writes, if `bytes` is empty.
pub fn pseudo(source: Ipv4Addr, length: usize, bytes: &[u8]) -> u16 {
    let head = [&source.octets()[..], &METADATA_IPV4.octets(), &[0, TCP]].concat();
    let words = head.chunks(2).chain(bytes.chunks(2));
    let words = words.map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0)));
    let mut sum = words.sum::<u64>() + length as u64;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum.try_into().unwrap()
}
