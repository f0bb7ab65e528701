//! For tests: frames as guests and forgers send them, and a kernel that judges them without an interface.
//!
//! A [`Frame`] is built from the outside in, with valid IPv4 checksums (bridges drop others) and sizes that are true
//! until it is cut. [`Datapath::judge`] runs one through a program by `BPF_PROG_TEST_RUN` and says what became of it
//! and which counter moved.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use aya::TestRunOptions;
use aya::programs::ProgramError;

use crate::datapath::Datapath;
use crate::object::{FUNNEL, GUARD};
use crate::pins::Program;
use crate::reason::Reason;

/// The objects as they were compiled, by name.
pub const OBJECTS: [(&str, &[u8]); 2] = [("guard", GUARD), ("funnel", FUNNEL)];

/// A classifier, `empty`, that does nothing: what running a program costs at least.
pub static YARDSTICK: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/empty.bpf.o"));

/// The metadata addresses.
pub const METADATA_IPV4: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Amazon's.
pub const METADATA_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
/// `OpenStack`'s.
pub const METADATA_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe);

/// The guest's hardware address in every frame.
pub const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];
/// Its gateway's.
pub const GATEWAY_MAC: [u8; 6] = [0x52, 0x54, 0x00, 0xff, 0xff, 0x01];

const TYPE_IPV4: u16 = 0x0800;
const TYPE_ARP: u16 = 0x0806;
const TYPE_RARP: u16 = 0x8035;
const TYPE_IPV6: u16 = 0x86dd;
const TYPE_VLAN: u16 = 0x8100;
const TYPE_SERVICE_VLAN: u16 = 0x88a8;

/// What service tags were before 802.1ad.
pub const OLD_SERVICE_VLANS: [u16; 3] = [0x9100, 0x9200, 0x9300];

/// An Ethernet frame without its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(pub Vec<u8>);

impl Frame {
    /// Any payload, from the guest to its gateway.
    #[must_use]
    pub fn new(ethertype: u16, payload: &[u8]) -> Self {
        Self([&GATEWAY_MAC[..], &GUEST_MAC, &ethertype.to_be_bytes(), payload].concat())
    }

    /// IPv4 without options.
    #[must_use]
    pub fn ipv4(source: Ipv4Addr, target: Ipv4Addr, protocol: u8, payload: &[u8]) -> Self {
        let size = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
        let head = [0x45, 0, size[0], size[1], 0, 1, 0, 0, 64, protocol, 0, 0];
        let head = [&head[..], &source.octets(), &target.octets()].concat();
        Self::new(TYPE_IPV4, &[head, payload.to_vec()].concat()).summed()
    }

    /// A TCP segment with that many bytes of data; the TCP checksum is 0.
    #[must_use]
    pub fn tcp(source: Ipv4Addr, target: Ipv4Addr, port: u16, data: usize) -> Self {
        let mut segment = vec![0; 20 + data];
        segment[..2].copy_from_slice(&40_000_u16.to_be_bytes());
        segment[2..4].copy_from_slice(&port.to_be_bytes());
        segment[12] = 5 << 4;
        segment[13] = 0x10;
        Self::ipv4(source, target, 6, &segment)
    }

    /// ARP for IPv4 over Ethernet (RFC 826): 1 asks, 2 answers.
    #[must_use]
    pub fn arp(operation: u16, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        let head = [0, 1, 8, 0, 6, 4];
        let parts = [&head[..], &operation.to_be_bytes(), &GUEST_MAC, &sender.octets(), &[0; 6], &target.octets()];
        Self::new(TYPE_ARP, &parts.concat())
    }

    /// RARP (RFC 903): 3 asks, 4 answers.
    #[must_use]
    pub fn rarp(operation: u16, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        Self::arp(operation, sender, target).with(12, &TYPE_RARP.to_be_bytes())
    }

    /// IPv6; `next` is the type of the first byte of `payload`.
    #[must_use]
    pub fn ipv6(source: Ipv6Addr, target: Ipv6Addr, next: u8, payload: &[u8]) -> Self {
        let size = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [0x60, 0, 0, 0, size[0], size[1], next, 255];
        Self::new(TYPE_IPV6, &[&head[..], &source.octets(), &target.octets(), payload].concat())
    }

    /// Tags the frame (802.1Q), outside the tags it has.
    #[must_use]
    pub fn vlan(self, tci: u16) -> Self {
        self.tagged(TYPE_VLAN, tci)
    }

    /// Tags the frame with a service tag (802.1ad), outside the tags it has.
    #[must_use]
    pub fn service_vlan(self, tci: u16) -> Self {
        self.tagged(TYPE_SERVICE_VLAN, tci)
    }

    /// Tags the frame with a service tag of the time before 802.1ad, outside the tags it has.
    #[must_use]
    pub fn old_service_vlan(self, tci: u16) -> Self {
        self.tagged(OLD_SERVICE_VLANS[0], tci)
    }

    /// Tags the frame with a tag of any type, outside the tags it has.
    #[must_use]
    pub fn tagged(mut self, ethertype: u16, tci: u16) -> Self {
        let tag = [ethertype.to_be_bytes(), tci.to_be_bytes()].concat();
        self.0.splice(12..12, tag);
        self
    }

    /// Cuts the frame after that many bytes.
    #[must_use]
    pub fn cut(mut self, size: usize) -> Self {
        self.0.truncate(size);
        self
    }

    /// Puts bytes behind the frame that no header counts.
    #[must_use]
    pub fn padded(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// Writes over the bytes at `offset`.
    #[must_use]
    pub fn with(mut self, offset: usize, bytes: &[u8]) -> Self {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// As [`Frame::with`], in the IPv4 header of an untagged frame, and sums it anew.
    #[must_use]
    pub fn with_ipv4(self, offset: usize, bytes: &[u8]) -> Self {
        self.with(14 + offset, bytes).summed()
    }

    fn summed(mut self) -> Self {
        self.0[24..26].fill(0);
        let size = usize::from(self.0[14] & 0x0f) * 4;
        let words = self.0[14..14 + size].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        let sum = !u16::try_from(sum).unwrap();
        self.0[24..26].copy_from_slice(&sum.to_be_bytes());
        self
    }
}

/// A neighbour discovery message (RFC 4861): 135 solicits, 136 advertises.
#[must_use]
pub fn neighbour(kind: u8, target: Ipv6Addr) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat()
}

/// A redirect (RFC 4861): the way to `destination` leads through `target`.
#[must_use]
pub fn redirect(target: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    [&[137, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &destination.octets()].concat()
}

/// An extension header of 8 bytes (or more, in eights) in front of `rest`, whose type is `next`.
#[must_use]
pub fn extension(next: u8, eights: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = vec![0; usize::from(eights) * 8];
    header[0] = next;
    header[1] = eights - 1;
    [&header, rest].concat()
}

/// A fragment header in front of `rest`, whose type is `next`; the offset is in eights.
#[must_use]
pub fn fragment(next: u8, offset: u16, more: bool, rest: &[u8]) -> Vec<u8> {
    let field = (offset << 3 | u16::from(more)).to_be_bytes();
    [&[next, 0, field[0], field[1], 0, 0, 0, 1][..], rest].concat()
}

/// What the kernel knows of a frame beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The interface the frame is on; 1 is the loopback device, which is always there. 0 means 1.
    pub ifindex: u32,
    /// The interface it came in through.
    pub ingress_ifindex: u32,
    /// The firewall's mark.
    pub mark: u32,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On, as if there were no program.
    Next,
    /// Nowhere.
    Drop,
    /// To another interface or the socket.
    Redirect,
}

/// A judged frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Where it goes.
    pub verdict: Verdict,
    /// The counters that moved.
    pub reasons: Vec<Reason>,
    /// The bytes as they are now.
    pub frame: Frame,
    /// The mark as it is now.
    pub mark: u32,
}

/// Fields of `struct __sk_buff` (linux/bpf.h), as offsets.
const SKB_SIZE: usize = 192;
const SKB_MARK: usize = 8;
const SKB_INGRESS_IFINDEX: usize = 36;
const SKB_IFINDEX: usize = 40;

impl Datapath {
    /// What `program` does with a frame.
    #[must_use]
    pub fn judge(&self, program: Program, frame: &Frame, beside: Beside) -> Judged {
        let before = self.counters();
        let mut data = vec![0; frame.0.len() + 64];
        let mut context_out = [0; SKB_SIZE];
        let (verdict, size) = self.rule(program, &frame.0, beside, Some((&mut data, &mut context_out))).unwrap();
        data.truncate(size);
        let moved = |((reason, now), (_, then)): ((Reason, u64), (Reason, u64))| (now != then).then_some(reason);
        Judged {
            verdict,
            reasons: self.counters().into_iter().zip(before).filter_map(moved).collect(),
            frame: Frame(data),
            mark: u32::from_ne_bytes(context_out[SKB_MARK..][..4].try_into().unwrap()),
        }
    }

    /// Only where it goes, and fast: for frames by the hundred thousand. `None` if the kernel refuses to try: it runs no
    /// program on less than an Ethernet header, or than an IP header in a frame that says it has one.
    #[must_use]
    pub fn verdict(&self, program: Program, bytes: &[u8], beside: Beside) -> Option<Verdict> {
        self.rule(program, bytes, beside, None).map(|(verdict, _)| verdict)
    }

    fn rule(
        &self,
        program: Program,
        bytes: &[u8],
        beside: Beside,
        out: Option<(&mut [u8], &mut [u8])>,
    ) -> Option<(Verdict, usize)> {
        let mut context = [0; SKB_SIZE];
        context[SKB_MARK..][..4].copy_from_slice(&beside.mark.to_ne_bytes());
        context[SKB_INGRESS_IFINDEX..][..4].copy_from_slice(&beside.ingress_ifindex.to_ne_bytes());
        context[SKB_IFINDEX..][..4].copy_from_slice(&beside.ifindex.max(1).to_ne_bytes());
        let (data_out, context_out) = out.unzip();
        let options = TestRunOptions { data_in: Some(bytes), data_out, ..Default::default() };
        let ran = match program {
            Program::Funnel => self.run(program, options),
            _ => self.run(program, TestRunOptions { ctx_in: Some(&context), ctx_out: context_out, ..options }),
        };
        let ran = match ran {
            Err(ProgramError::SyscallError(why)) if why.io_error.kind() == io::ErrorKind::InvalidInput => return None,
            other => other.unwrap(),
        };
        // XDP_DROP and XDP_REDIRECT of linux/bpf.h; TCX_NEXT, TC_ACT_SHOT and TC_ACT_REDIRECT of linux/pkt_cls.h.
        let verdict = match (program == Program::Funnel, ran.return_value) {
            (true, 1) | (false, 2) => Verdict::Drop,
            (true, 4) | (false, 7) => Verdict::Redirect,
            (false, u32::MAX) => Verdict::Next,
            (_, other) => panic!("{program} returned {other}"),
        };
        Some((verdict, ran.data_size_out.try_into().unwrap()))
    }

    /// Nanoseconds for one of `repeat` runs of `program` on a frame that it leaves alone; the kernel counts whole ones.
    #[must_use]
    pub fn cost(&self, program: Program, frame: &Frame, repeat: u32) -> u128 {
        let options = TestRunOptions { data_in: Some(&frame.0), repeat, ..Default::default() };
        self.run(program, options).unwrap().duration.as_nanos()
    }
}
