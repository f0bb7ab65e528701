//! TCP by hand: segments as a guest may write them, and the few facts of an answer that the next one needs.
//!
//! It shares nothing with the stack it is used against. Checksums are right: whoever wants them wrong changes a byte.

/// The flags of RFC 9293, as bits of their byte.
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

const ADDRESS: [u8; 4] = [169, 254, 169, 254];
const HEADERS: usize = 40;

/// A segment for the metadata address' port 80.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) source: [u8; 4],
    pub(crate) port: u16,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// At most 40 bytes; padded to whole words.
    pub(crate) options: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl Segment<'_> {
    /// The Ethernet frame from its source address on.
    pub(crate) fn frame(&self, mac: [u8; 6]) -> Vec<u8> {
        let options = self.options.len().min(40).next_multiple_of(4);
        let length = u16::try_from(HEADERS + options + self.payload.len()).unwrap();
        let mut ip = [&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0], &self.source[..], &ADDRESS].concat();
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum);

        let mut tcp = vec![0; 20 + options];
        tcp[0..2].copy_from_slice(&self.port.to_be_bytes());
        tcp[2..4].copy_from_slice(&80u16.to_be_bytes());
        tcp[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.acknowledged.to_be_bytes());
        tcp[12] = u8::try_from(tcp.len() / 4).unwrap() << 4;
        tcp[13] = self.flags;
        tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
        let given = self.options.len().min(options);
        tcp[20..20 + given].copy_from_slice(&self.options[..given]);
        tcp.extend_from_slice(self.payload);
        let pseudo = [&ip[12..20], &[0, 6], &(length - 20).to_be_bytes(), &tcp].concat();
        tcp[16..18].copy_from_slice(&checksum(&pseudo));
        [&mac[..], &[0x08, 0x00], &ip, &tcp].concat()
    }
}

/// What the other side said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Whom it is for.
    pub(crate) port: u16,
    /// The number after its last byte.
    pub(crate) next: u32,
}

impl Answer {
    /// Reads a whole Ethernet frame; `None` for what is no TCP.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let (header, packet) = frame.split_at_checked(14)?;
        let tcp = packet.get(20..).filter(|tcp| tcp.len() >= 20 && header[12..] == [8, 0] && packet[9] == 6)?;
        let flags = u32::from(tcp[13] & SYN != 0) + u32::from(tcp[13] & FIN != 0);
        let data = tcp.len() - usize::from(tcp[12] >> 4) * 4;
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let next = sequence.wrapping_add(u32::try_from(data).unwrap()).wrapping_add(flags);
        Some(Self { port: u16::from_be_bytes([tcp[2], tcp[3]]), next })
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    (!u16::try_from(sum).unwrap()).to_be_bytes()
}
