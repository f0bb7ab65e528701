//! The facts about a TCP segment that decide what becomes of it before smoltcp sees it. Pure.
//!
//! In comes an IPv4 packet; out comes who sent it and whether it opens a connection. Refused: what is no TCP for our
//! port. A segment that *opens* has been verified as smoltcp will verify it, checksum and all: on its word a connection
//! is thrown away and another one made. So is one that would have answers go elsewhere ([`is_whole`]). All else is
//! verified by smoltcp alone.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpAddress, IpEndpoint, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

use crate::ether::METADATA_PORT;

/// What a segment is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Who claims to have sent it.
    pub(crate) from: IpEndpoint,
    /// It opens a connection, and this is the sequence number it opens it with.
    pub(crate) opens: Option<TcpSeqNumber>,
}

impl Segment {
    /// `None` for what is no TCP for our port.
    pub(crate) fn peek(packet: &[u8]) -> Option<Self> {
        let ip = Ipv4Packet::new_checked(packet).ok()?;
        if ip.version() != 4 || ip.next_header() != IpProtocol::Tcp {
            return None;
        }
        let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
        if tcp.dst_port() != METADATA_PORT {
            return None;
        }
        let opens = if tcp.syn() { opens(&ip, &tcp) } else { None };
        Some(Self { from: IpEndpoint::new(IpAddress::Ipv4(ip.src_addr()), tcp.src_port()), opens })
    }
}

/// Whether a packet is one that smoltcp will take for TCP.
pub(crate) fn is_whole(packet: &[u8]) -> bool {
    let Ok(ip) = Ipv4Packet::new_checked(packet) else { return false };
    TcpPacket::new_checked(ip.payload()).is_ok_and(|tcp| verified(&ip, &tcp).is_some())
}

fn verified<'a>(ip: &Ipv4Packet<&[u8]>, tcp: &TcpPacket<&'a [u8]>) -> Option<TcpRepr<'a>> {
    let (source, destination) = (IpAddress::Ipv4(ip.src_addr()), IpAddress::Ipv4(ip.dst_addr()));
    let verify = ChecksumCapabilities::default();
    Ipv4Repr::parse(ip, &verify).ok()?;
    TcpRepr::parse(tcp, &source, &destination, &verify).ok()
}

fn opens(ip: &Ipv4Packet<&[u8]>, tcp: &TcpPacket<&[u8]>) -> Option<TcpSeqNumber> {
    let segment = verified(ip, tcp)?;
    let alone = segment.control == TcpControl::Syn && segment.ack_number.is_none();
    alone.then_some(segment.seq_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Raw;

    #[test]
    fn only_a_whole_and_lonely_syn_opens() {
        let syn = Raw { syn: true, ack: None, sequence: 7, ..Raw::default() };
        let opens = |packet: Vec<u8>| Segment::peek(&packet).map(|segment| segment.opens.map(|number| number.0));
        assert_eq!(opens(syn.packet()), Some(Some(7)));
        assert_eq!(Segment::peek(&syn.packet()).unwrap().from, syn.from());
        for (what, other) in [
            ("SYN, ACK", Raw { ack: Some(1), ..syn }),
            ("SYN, FIN", Raw { fin: true, ..syn }),
            ("SYN, RST", Raw { rst: true, ..syn }),
            ("ACK", Raw { syn: false, ack: Some(1), ..syn }),
            ("from port 0", Raw { port: 0, ..syn }),
        ] {
            assert_eq!(opens(other.packet()), Some(None), "{what}");
        }
        for at in [10, 15, 24, 36] {
            let mut broken = syn.packet();
            broken[at] ^= 1;
            assert_eq!(opens(broken).flatten(), None, "byte {at}");
        }
    }

    #[test]
    fn what_is_no_tcp_for_our_port_is_none() {
        let whole = Raw { syn: true, ack: None, ..Raw::default() }.packet();
        let changed = |at: usize, to: u8| {
            let mut packet = whole.clone();
            packet[at] = to;
            packet
        };
        for (what, packet) in [
            ("nothing", Vec::new()),
            ("half an IP header", whole[..10].to_vec()),
            ("half a TCP header", whole[..30].to_vec()),
            ("UDP", changed(9, 17)),
            ("port 81", changed(23, 81)),
            ("IPv6", changed(0, 0x65)),
            ("a TCP header of 60 bytes that is not there", changed(32, 0xf0)),
        ] {
            assert_eq!(Segment::peek(&packet), None, "{what}");
        }
    }
}
