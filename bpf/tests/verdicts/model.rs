//! The verdicts once more, from the design instead of the programs: what `steer` and `shield` must say of any bytes.
//!
//! Written to be read, on slices that simply end; it shares nothing with `c/` but the addresses.

use pve_imds_bpf::Reason;

/// What must become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    Next,
    Drop(Reason),
    /// To user space.
    Steer {
        /// A question that has a rate.
        metered: bool,
    },
}

use Ruling::{Drop, Next, Steer};

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const RARP: u16 = 0x8035;
const TAGS: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];

const US: [u8; 4] = [169, 254, 169, 254];
const US_IPV6: [[u8; 16]; 2] = [
    [0xfd, 0x00, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54],
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa9, 0xfe, 0xa9, 0xfe],
];

/// What a frame carries behind its Ethernet header and tags.
enum Opened<'a> {
    Packet { kind: u16, tags: usize, bytes: &'a [u8] },
    CutOff,
    TooDeep,
    InAnEnvelope,
}

fn number(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn open(frame: &[u8]) -> Opened<'_> {
    let Some(mut kind) = frame.get(12..14).map(number) else { return Opened::CutOff };
    let (mut tags, mut bytes) = (0, &frame[14..]);
    while TAGS.contains(&kind) {
        if tags == 2 {
            return Opened::TooDeep;
        }
        let Some(inner) = bytes.get(2..4).map(number) else { return Opened::CutOff };
        (kind, tags, bytes) = (inner, tags + 1, &bytes[4..]);
    }
    if kind < 0x600 {
        return match (bytes.first_chunk::<3>(), bytes.first_chunk::<8>()) {
            (None, _) | (Some([0xaa | 0xab, ..]), None) => Opened::CutOff,
            (_, Some([0xaa | 0xab, .., high, low])) if wraps(number(&[*high, *low])) => Opened::InAnEnvelope,
            _ => Opened::Packet { kind, tags, bytes },
        };
    }
    Opened::Packet { kind, tags, bytes }
}

/// What must not travel in SNAP.
fn wraps(kind: u16) -> bool {
    [IPV4, ARP, RARP, IPV6].contains(&kind) || TAGS.contains(&kind)
}

/// What the test run of the kernel does not try.
pub fn untried(frame: &[u8]) -> bool {
    match frame.get(12..14).map(number) {
        None => true,
        Some(IPV4) => frame.len() < 14 + 20,
        Some(IPV6) => frame.len() < 14 + 40,
        Some(_) => false,
    }
}

pub fn steer(frame: &[u8]) -> Ruling {
    match open(frame) {
        Opened::CutOff | Opened::InAnEnvelope => Drop(Reason::SteerUnreadable),
        Opened::TooDeep => Drop(Reason::SteerTags),
        Opened::Packet { kind: IPV4, tags, bytes } => steer_ipv4(bytes, tags),
        Opened::Packet { kind: kind @ (ARP | RARP), tags, bytes } => steer_arp(kind, bytes, tags),
        Opened::Packet { kind: IPV6, bytes, .. } => steer_ipv6(bytes),
        Opened::Packet { .. } => Next,
    }
}

fn steer_ipv4(packet: &[u8], tags: usize) -> Ruling {
    let Some((header, segment)) = packet.split_at_checked(20) else { return Drop(Reason::SteerUnreadable) };
    match (header[12..16] == US, header[16..20] == US) {
        (true, _) => return Drop(Reason::SteerClaim),
        (false, false) => return Next,
        (false, true) => {}
    }
    let fragment = number(&header[6..]) & 0b0011_1111_1111_1111 != 0;
    match (tags, header[0], fragment, header[9]) {
        (1.., ..) => Drop(Reason::SteerTags),
        (0, version, ..) if version != 0x45 => Drop(Reason::SteerOptions),
        (0, _, true, _) => Drop(Reason::SteerFragment),
        (0, _, false, 6) if segment.len() < 20 => Drop(Reason::SteerUnreadable),
        (0, _, false, 6) if number(&segment[2..]) == 80 => Steer { metered: segment[13] & 0x02 != 0 },
        (0, _, false, 6) => Drop(Reason::SteerPort),
        (0, _, false, _) => Drop(Reason::SteerProtocol),
    }
}

/// The sender and the target of an ARP message about IPv4 addresses of stations with six bytes.
fn arp(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let readable = message.len() >= 28 && message[2..6] == [0x08, 0x00, 6, 4];
    readable.then(|| (&message[14..18], &message[24..28]))
}

fn steer_arp(kind: u16, message: &[u8], tags: usize) -> Ruling {
    match arp(message) {
        None => Drop(Reason::SteerUnreadable),
        Some((sender, _)) if sender == US => Drop(Reason::SteerClaim),
        Some((_, target)) if target != US => Next,
        Some(_) if tags > 0 => Drop(Reason::SteerTags),
        Some(_) if kind == ARP && message[..2] == [0, 1] && message[6..8] == [0, 1] => Steer { metered: true },
        Some(_) => Drop(Reason::SteerArp),
    }
}

fn steer_ipv6(packet: &[u8]) -> Ruling {
    let Some((header, rest)) = packet.split_at_checked(40) else { return Drop(Reason::SteerUnreadable) };
    let ours = |address: &[u8]| US_IPV6.iter().any(|us| us == address);
    match (ours(&header[8..24]), ours(&header[24..40]), names_us(header, rest, &[135, 136, 137])) {
        (true, ..) => Drop(Reason::SteerClaim),
        (_, true, _) => Drop(Reason::SteerIpv6),
        (_, _, Some(true)) => Drop(Reason::SteerIpv6),
        (_, _, Some(false)) => Next,
        (_, _, None) => Drop(Reason::SteerUnreadable),
    }
}

pub fn shield(frame: &[u8]) -> Ruling {
    let unreadable = Drop(Reason::ShieldUnreadable);
    match open(frame) {
        Opened::CutOff | Opened::TooDeep | Opened::InAnEnvelope => unreadable,
        Opened::Packet { kind: IPV4, bytes, .. } => match bytes.get(..20) {
            None => unreadable,
            Some(header) if header[12..16] == US => Drop(Reason::ShieldClaimIpv4),
            Some(_) => Next,
        },
        Opened::Packet { kind: kind @ (ARP | RARP), bytes, .. } => match arp(bytes) {
            None => unreadable,
            Some((sender, _)) if sender == US => Drop(Reason::ShieldClaimArp),
            Some((_, target)) if kind == RARP && target == US => Drop(Reason::ShieldClaimArp),
            Some(_) => Next,
        },
        Opened::Packet { kind: IPV6, bytes, .. } => match bytes.split_at_checked(40) {
            None => unreadable,
            Some((header, _)) if US_IPV6.iter().any(|us| *us == header[8..24]) => Drop(Reason::ShieldClaimIpv6),
            Some((header, rest)) => match names_us(header, rest, &[136, 137]) {
                Some(true) => Drop(Reason::ShieldClaimNeighbour),
                Some(false) => Next,
                None => unreadable,
            },
        },
        Opened::Packet { .. } => Next,
    }
}

const ICMP: u8 = 58;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const EXTENSIONS: [u8; 5] = [0, 43, 60, FRAGMENT, AUTHENTICATION];

/// Whether a message of these kinds about a metadata address is behind at most five headers; `None` if that is hidden.
fn names_us(header: &[u8], mut bytes: &[u8], kinds: &[u8]) -> Option<bool> {
    let mut next = header[6];
    // Right behind the address, the first byte of another message is enough; only the three kinds are looked into.
    if next == ICMP && bytes.first().is_some_and(|kind| ![135, 136, 137].contains(kind)) {
        return Some(false);
    }
    // What follows the packet is nobody's. Of one that is said to be larger than its field can say, all is its own.
    match usize::from(number(&header[4..])) {
        0 if next == 0 => {}
        size => bytes = &bytes[..size.min(bytes.len())],
    }
    let mut fragment = false;
    for _ in 0..6 {
        if next != ICMP && !EXTENSIONS.contains(&next) {
            return Some(false);
        }
        let head = bytes.get(..4)?;
        if next == ICMP {
            return match (kinds.contains(&head[0]), fragment) {
                (false, _) => Some(false),
                // RFC 6980: there is no such thing.
                (true, true) => Some(true),
                (true, false) => {
                    let about = |at: usize| bytes.get(at..at + 16).map(|about| US_IPV6.iter().any(|us| us == about));
                    if about(8)? || head[0] != 137 { about(8) } else { about(24) }
                }
            };
        }
        let length = match next {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(head[1]) + 2) * 4,
            _ => (usize::from(head[1]) + 1) * 8,
        };
        if next == FRAGMENT {
            fragment = true;
            if number(&head[2..]) >> 3 != 0 {
                return if EXTENSIONS.contains(&head[0]) { None } else { Some(false) };
            }
        }
        next = head[0];
        bytes = bytes.get(length..).unwrap_or_default();
    }
    None
}
