//! TCP segments by hand: what no honest stack sends, and what ours says to it.

use std::net::Ipv4Addr;

use smoltcp::wire::{
    IPV4_HEADER_LEN, IpAddress, IpEndpoint, IpProtocol, Ipv4Packet, TCP_HEADER_LEN, TcpPacket, TcpSeqNumber,
};

use crate::ether::{METADATA_IP, METADATA_PORT};

/// A segment of a guest, with any flags and numbers. Checksums are right; whoever wants them wrong changes a byte.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, clippy::struct_excessive_bools, reason = "the fields of RFC 9293")]
pub struct Raw<'a> {
    pub ip: Ipv4Addr,
    pub port: u16,
    pub sequence: u32,
    /// Sets the flag too.
    pub ack: Option<u32>,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    pub psh: bool,
    pub window: u16,
    pub payload: &'a [u8],
}

impl Default for Raw<'_> {
    fn default() -> Self {
        Self {
            ip: Ipv4Addr::new(169, 254, 1, 2),
            port: 40_000,
            sequence: 0,
            ack: None,
            syn: false,
            fin: false,
            rst: false,
            psh: false,
            window: u16::MAX,
            payload: &[],
        }
    }
}

impl Raw<'_> {
    /// As an IPv4 packet for the metadata address.
    ///
    /// # Panics
    /// With more payload than fits a packet.
    #[must_use]
    pub fn packet(&self) -> Vec<u8> {
        let length = IPV4_HEADER_LEN + TCP_HEADER_LEN + self.payload.len();
        let mut bytes = vec![0; length];
        let mut ip = Ipv4Packet::new_unchecked(&mut bytes);
        ip.set_version(4);
        ip.set_header_len(20);
        ip.set_total_len(u16::try_from(length).expect("a payload fits its packet"));
        ip.set_dont_frag(true);
        ip.set_hop_limit(64);
        ip.set_next_header(IpProtocol::Tcp);
        ip.set_src_addr(self.ip);
        ip.set_dst_addr(METADATA_IP);
        ip.fill_checksum();
        let mut tcp = TcpPacket::new_unchecked(ip.payload_mut());
        tcp.set_src_port(self.port);
        tcp.set_dst_port(METADATA_PORT);
        tcp.set_seq_number(number(self.sequence));
        tcp.set_header_len(20);
        tcp.set_ack_number(number(self.ack.unwrap_or(0)));
        tcp.set_ack(self.ack.is_some());
        tcp.set_syn(self.syn);
        tcp.set_fin(self.fin);
        tcp.set_rst(self.rst);
        tcp.set_psh(self.psh);
        tcp.set_window_len(self.window);
        tcp.payload_mut().copy_from_slice(self.payload);
        tcp.fill_checksum(&IpAddress::Ipv4(self.ip), &IpAddress::Ipv4(METADATA_IP));
        bytes
    }

    /// Where it claims to come from.
    #[must_use]
    pub fn from(&self) -> IpEndpoint {
        IpEndpoint::new(IpAddress::Ipv4(self.ip), self.port)
    }
}

/// What our stack said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, clippy::struct_excessive_bools, reason = "the fields of RFC 9293")]
pub struct Spoken {
    pub ip: Ipv4Addr,
    pub port: u16,
    pub sequence: u32,
    pub ack: u32,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    pub payload: Vec<u8>,
}

impl Spoken {
    /// Reads an IPv4 packet. `None` for what is no TCP.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let ip = Ipv4Packet::new_checked(packet).ok().filter(|ip| ip.next_header() == IpProtocol::Tcp)?;
        let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
        Some(Self {
            ip: ip.dst_addr(),
            port: tcp.dst_port(),
            sequence: tcp.seq_number().0.cast_unsigned(),
            ack: tcp.ack_number().0.cast_unsigned(),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            payload: tcp.payload().to_vec(),
        })
    }
}

fn number(value: u32) -> TcpSeqNumber {
    TcpSeqNumber(value.cast_signed())
}
