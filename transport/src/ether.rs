//! Our own Ethernet: frames in, who spoke and what out. Pure.
//!
//! smoltcp sees IP packets only. Its Ethernet would drop frames that a guest sent through its gateway's MAC, and
//! would ask ARP questions of its own; we answer to whoever spoke, where they spoke from. In comes a tagged frame as
//! `funnel` hands it over; out comes an [`Inbound`] or a [`Refused`]. Refused is everything that `steer` would not
//! have let through: this parser trusts nobody, not even the kernel.

use std::net::Ipv4Addr;

use pve_imds_bpf::{METADATA_MAC, Tag};

use crate::wire::ETHERNET_HEADER;

/// The metadata address.
pub const METADATA_IP: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// The port metadata is served on.
pub const METADATA_PORT: u16 = 80;

const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_ARP: [u8; 2] = [0x08, 0x06];
/// Hardware type Ethernet, protocol IPv4, lengths 6 and 4 (RFC 826).
const ARP_ETHERNET_IPV4: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const ARP_REQUEST: [u8; 2] = [0, 1];
const ARP_REPLY: [u8; 2] = [0, 2];
const ARP_LENGTH: usize = 28;

/// Length of an ARP answer on the wire.
pub(crate) const ARP_FRAME: usize = ETHERNET_HEADER + ARP_LENGTH;

/// Where an answer has to go: the far end as the flow's own frames named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Station {
    /// Hardware address that spoke.
    pub(crate) mac: [u8; 6],
    /// VLAN tag control information the guest put on its frames, if any.
    pub(crate) vlan: Option<u16>,
}

/// What a frame is to us.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inbound<'a> {
    /// "Who has the metadata address?"
    ArpRequest {
        /// Who asks, as the ARP sender fields say.
        sender: Ipv4Addr,
        /// Hardware address in the ARP sender field; the answer's target field.
        hardware: [u8; 6],
    },
    /// An IPv4 packet for the metadata address, without trailing padding.
    Ipv4(&'a [u8]),
}

/// Why a frame means nothing to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Shorter than its headers say.
    Truncated,
    /// Its destination is not a tag.
    NoTag,
    /// Neither ARP for us nor IPv4 for us.
    NotOurs,
}

/// Reads one frame from the wire.
pub(crate) fn parse(frame: &[u8]) -> Result<(Tag, Station, Inbound<'_>), Refused> {
    let (header, payload) = frame.split_first_chunk::<ETHERNET_HEADER>().ok_or(Refused::Truncated)?;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, kind @ ..] = *header;
    let tag = Tag::decode(&[d0, d1, d2, d3, d4, d5]).ok_or(Refused::NoTag)?;
    let station = Station { mac: [s0, s1, s2, s3, s4, s5], vlan: tag.vlan };
    let inbound = match kind {
        TYPE_IPV4 => ipv4(payload)?,
        TYPE_ARP => arp(payload)?,
        _ => return Err(Refused::NotOurs),
    };
    Ok((tag, station, inbound))
}

fn ipv4(payload: &[u8]) -> Result<Inbound<'_>, Refused> {
    let header = payload.first_chunk::<20>().ok_or(Refused::Truncated)?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[16..20] != METADATA_IP.octets() {
        return Err(Refused::NotOurs);
    }
    // Neither longer than its frame nor shorter than the header that says so.
    let packet = payload.get(..length).filter(|packet| packet.len() >= header.len());
    packet.map(Inbound::Ipv4).ok_or(Refused::Truncated)
}

fn arp(payload: &[u8]) -> Result<Inbound<'_>, Refused> {
    let packet = payload.first_chunk::<ARP_LENGTH>().ok_or(Refused::Truncated)?;
    if packet[..6] != ARP_ETHERNET_IPV4 || packet[6..8] != ARP_REQUEST || packet[24..28] != METADATA_IP.octets() {
        return Err(Refused::NotOurs);
    }
    let [hardware @ .., p0, p1, p2, p3] = *packet[8..18].first_chunk::<10>().ok_or(Refused::Truncated)?;
    Ok(Inbound::ArpRequest { sender: Ipv4Addr::new(p0, p1, p2, p3), hardware })
}

/// Writes the Ethernet header of an answer: to the station, from the tag that `return` turns into our address.
pub(crate) fn write_header(frame: &mut [u8], tag: Tag, station: Station, kind: Kind) {
    let tag = Tag { vlan: station.vlan, ..tag };
    frame[..6].copy_from_slice(&station.mac);
    frame[6..12].copy_from_slice(&tag.encode());
    frame[12..ETHERNET_HEADER].copy_from_slice(match kind {
        Kind::Ipv4 => &TYPE_IPV4,
        Kind::Arp => &TYPE_ARP,
    });
}

/// Writes the time to live of an IPv4 packet, and what that does to its header's checksum (RFC 1624).
pub(crate) fn limit_hops(packet: &mut [u8], hops: u8) {
    let Some(header) = packet.first_chunk_mut::<20>() else { return };
    // A packet with none left would not even leave our own side.
    let hops = hops.max(1);
    let before = std::mem::replace(&mut header[8], hops);
    if before == hops {
        return;
    }
    let word = |high: u8| u32::from(u16::from_be_bytes([high, 0]));
    let checksum = u16::from_be_bytes([header[10], header[11]]);
    let sum = u32::from(!checksum) + (0xffff - word(before)) + word(hops);
    // Three numbers of 16 bits: what is carried twice cannot be carried a third time.
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = (!((folded & 0xffff) + (folded >> 16))).to_be_bytes();
    (header[10], header[11]) = (high, low);
}

/// What an answer carries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// An IPv4 packet.
    Ipv4,
    /// An ARP reply.
    Arp,
}

/// Writes the whole answer to "who has the metadata address?" ([`ARP_FRAME`] bytes).
pub(crate) fn write_arp_reply(frame: &mut [u8], tag: Tag, station: Station, sender: Ipv4Addr, hardware: [u8; 6]) {
    write_header(frame, tag, station, Kind::Arp);
    let packet = &mut frame[ETHERNET_HEADER..];
    packet[..6].copy_from_slice(&ARP_ETHERNET_IPV4);
    packet[6..8].copy_from_slice(&ARP_REPLY);
    packet[8..14].copy_from_slice(&METADATA_MAC);
    packet[14..18].copy_from_slice(&METADATA_IP.octets());
    packet[18..24].copy_from_slice(&hardware);
    packet[24..28].copy_from_slice(&sender.octets());
}

#[cfg(test)]
mod tests {
    use pve_imds_bpf::{Epoch, Generation, Slot};

    use super::*;

    const GUEST: [u8; 6] = [0xbc, 0x24, 0x11, 0, 0, 1];

    fn tag(vlan: Option<u16>) -> Tag {
        Tag { epoch: Epoch::new(3).unwrap(), vlan, generation: Generation::new(9), slot: Slot::new(513).unwrap() }
    }

    fn frame(vlan: Option<u16>, kind: [u8; 2], payload: &[u8]) -> Vec<u8> {
        [&tag(vlan).encode()[..], &GUEST, &kind, payload].concat()
    }

    fn arp_request(operation: u8, target: [u8; 4]) -> Vec<u8> {
        [&ARP_ETHERNET_IPV4[..], &[0, operation], &GUEST, &[169, 254, 1, 2], &[0; 6], &target, &[0; 18]].concat()
    }

    fn packet(total: u16, destination: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0x45; 40];
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[16..20].copy_from_slice(&destination);
        packet
    }

    #[test]
    fn a_packet_with_other_hops_has_the_checksum_of_one_made_so() {
        let checksum = |header: &[u8]| {
            let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
        };
        let made = |hops: u8, word: u16| {
            let mut header = [0x45, 0, 0, 40, 0, 1, 0x40, 0, hops, 6, 0, 0, 169, 254, 169, 254, 169, 254, 1, 2];
            header[4..6].copy_from_slice(&word.to_be_bytes());
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        };
        for word in (0..=u16::MAX).step_by(251) {
            for (from, to) in [(64, 1), (64, 63), (64, 64), (1, 64), (1, 255), (255, 1), (64, 65)] {
                let mut header = made(from, word);
                limit_hops(&mut header, to);
                assert_eq!(header, made(to, word), "{from} {to} {word}");
            }
        }
        let mut header = made(64, 7);
        limit_hops(&mut header, 0);
        assert_eq!(header, made(1, 7), "none left is none sent");
    }

    #[test]
    fn each_frame_is_what_it_is_or_refused() {
        let us = METADATA_IP.octets();
        let ours = packet(38, us);
        let rows: Vec<(&str, Vec<u8>, Result<Inbound<'_>, Refused>)> = vec![
            ("ip, padding cut", frame(None, TYPE_IPV4, &ours), Ok(Inbound::Ipv4(&ours[..38]))),
            ("ip longer than its frame", frame(None, TYPE_IPV4, &packet(41, us)), Err(Refused::Truncated)),
            ("ip shorter than its header", frame(None, TYPE_IPV4, &packet(19, us)), Err(Refused::Truncated)),
            ("ip for others", frame(None, TYPE_IPV4, &packet(40, [10, 0, 0, 1])), Err(Refused::NotOurs)),
            ("ip cut", frame(None, TYPE_IPV4, &ours[..19]), Err(Refused::Truncated)),
            (
                "arp",
                frame(None, TYPE_ARP, &arp_request(1, us)),
                Ok(Inbound::ArpRequest { sender: Ipv4Addr::new(169, 254, 1, 2), hardware: GUEST }),
            ),
            ("arp reply", frame(None, TYPE_ARP, &arp_request(2, us)), Err(Refused::NotOurs)),
            ("arp for others", frame(None, TYPE_ARP, &arp_request(1, [10, 0, 0, 1])), Err(Refused::NotOurs)),
            ("arp cut", frame(None, TYPE_ARP, &arp_request(1, us)[..27]), Err(Refused::Truncated)),
            ("ipv6", frame(None, [0x86, 0xdd], &[0; 60]), Err(Refused::NotOurs)),
            ("cut", vec![2; 13], Err(Refused::Truncated)),
            ("no tag", [&[0xff; 6][..], &GUEST, &TYPE_IPV4, &ours].concat(), Err(Refused::NoTag)),
        ];
        for (name, frame, expected) in rows {
            assert_eq!(parse(&frame).map(|(_, _, inbound)| inbound), expected, "{name}");
        }
    }

    #[test]
    fn the_station_is_who_spoke_and_where() {
        let frame = frame(Some(42), TYPE_IPV4, &packet(40, METADATA_IP.octets()));
        let (got, station, _) = parse(&frame).unwrap();
        assert_eq!(got, tag(Some(42)));
        assert_eq!(station, Station { mac: GUEST, vlan: Some(42) });
    }

    #[test]
    fn an_arp_answer_names_the_one_address_we_have() {
        let station = Station { mac: GUEST, vlan: Some(42) };
        let mut answer = [0; ARP_FRAME];
        write_arp_reply(&mut answer, tag(None), station, Ipv4Addr::new(169, 254, 1, 2), GUEST);
        assert_eq!(answer[..6], GUEST);
        assert_eq!(answer[6..12], tag(Some(42)).encode());
        assert_eq!(answer[12..22], [0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2]);
        assert_eq!(answer[22..28], METADATA_MAC);
        assert_eq!(answer[28..32], METADATA_IP.octets());
        assert_eq!(answer[32..38], GUEST);
        assert_eq!(answer[38..42], [169, 254, 1, 2]);
    }

    /// What `parse` has to say, from the bytes' places alone: which of them are the packet, or who asks.
    fn spelled_out(frame: &[u8]) -> Result<Inbound<'_>, Refused> {
        const QUESTION: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
        let us = [169, 254, 169, 254];
        if frame.len() < 14 {
            return Err(Refused::Truncated);
        }
        if frame[0] & 3 != 2 || frame[4] >= 16 || frame[0] & 4 == 0 && frame[1..3] != [0, 0] {
            return Err(Refused::NoTag);
        }
        match (u16::from_be_bytes([frame[12], frame[13]]), frame.len()) {
            (0x0800, ..34) | (0x0806, ..42) => Err(Refused::Truncated),
            (0x0800, _) if frame[30..34] != us => Err(Refused::NotOurs),
            (0x0800, length) => match 14 + usize::from(frame[16]) * 256 + usize::from(frame[17]) {
                end if (34..=length).contains(&end) => Ok(Inbound::Ipv4(&frame[14..end])),
                _ => Err(Refused::Truncated),
            },
            (0x0806, _) if frame[14..22] != QUESTION || frame[38..42] != us => Err(Refused::NotOurs),
            (0x0806, _) => Ok(Inbound::ArpRequest {
                sender: Ipv4Addr::new(frame[28], frame[29], frame[30], frame[31]),
                hardware: [frame[22], frame[23], frame[24], frame[25], frame[26], frame[27]],
            }),
            _ => Err(Refused::NotOurs),
        }
    }

    /// The same verdict, and of a packet the same bytes at the same place.
    fn agree(frame: &[u8]) {
        let got = parse(frame).map(|(_, _, inbound)| inbound);
        let expected = spelled_out(frame);
        let there = match (&got, &expected) {
            (Ok(Inbound::Ipv4(got)), Ok(Inbound::Ipv4(expected))) => std::ptr::eq(*got, *expected),
            _ => got == expected,
        };
        assert!(there, "{frame:02x?}: {got:?} and not {expected:?}");
    }

    /// Payloads of 66 bytes, so that frames are 80: ours, somebody else's, and nothing.
    fn shapes() -> [[u8; 66]; 5] {
        let us = METADATA_IP.octets();
        let shape = |payload: &[u8]| {
            let mut shape = [0; 66];
            shape[..payload.len()].copy_from_slice(payload);
            shape
        };
        [
            shape(&packet(40, us)),
            shape(&packet(66, us)),
            shape(&arp_request(1, us)[..28]),
            shape(&arp_request(2, us)[..28]),
            [0xff; 66],
        ]
    }

    #[test]
    fn every_ethertype_at_every_length_is_judged_right() {
        for shape in shapes() {
            for kind in 0..=u16::MAX {
                let frame = frame(None, kind.to_be_bytes(), &shape);
                (0..=frame.len()).for_each(|length| agree(&frame[..length]));
            }
        }
    }

    #[test]
    fn every_value_of_every_header_byte_is_judged_right_at_every_length() {
        for (kind, shape, header) in [(TYPE_IPV4, shapes()[0], 34), (TYPE_ARP, shapes()[2], 42)] {
            let whole = frame(Some(42), kind, &shape);
            for (place, value) in (0..header).flat_map(|place| (0..=255).map(move |value| (place, value))) {
                let mut frame = whole.clone();
                frame[place] = value;
                (0..=frame.len()).for_each(|length| agree(&frame[..length]));
            }
        }
    }

    #[test]
    fn every_length_a_packet_can_claim_is_judged_right() {
        let us = METADATA_IP.octets();
        for claimed in 0..=u16::MAX {
            let frame = frame(None, TYPE_IPV4, &packet(claimed, us));
            [34, 35, 53, 54].into_iter().for_each(|length| agree(&frame[..length]));
        }
    }
}
