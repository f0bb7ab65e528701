//! The tag: six bytes in the place of a MAC address that name one interface in one of its lives.
//!
//! On the way in `steer` writes it over the destination MAC, on the way out user space writes it over the source MAC
//! and `return` replaces it. Nothing is added to a frame and nothing stripped. Six bytes come in and a [`Tag`] goes out, or
//! nothing: bytes that no program of ours writes are refused.

/// How many interfaces one load of the programs can serve; the size of its maps.
const CAPACITY: u16 = 4096;

/// The place of one served interface, `0..4096`. Whoever hands slots out reuses the one that has been free longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u16);

impl Slot {
    /// How many there are.
    pub const CAPACITY: u16 = CAPACITY;

    /// The slot of that number, if there is one.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number < CAPACITY { Some(Self(number)) } else { None }
    }

    /// `0..4096`.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// Which of a slot's tenants: counts up with each, so that a late frame of the last one is not the next one's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Generation(u8);

impl Generation {
    /// The generation of that number.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// `0..=255`.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The one after this, round and round.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Which load of the programs, `0..32`. Slots mean something within one load only, so frames of another are dropped.
/// Never drawn at random: that would repeat the last one once in 32 starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch(u8);

impl Epoch {
    /// The epoch of that number, if five bits hold it.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < 32 { Some(Self(number)) } else { None }
    }

    /// `0..32`.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The one after this, round and round.
    #[must_use]
    pub const fn next(self) -> Self {
        Self((self.0 + 1) % 32)
    }
}

/// Where a frame came from, or is to go.
///
/// | byte | holds |
/// |---|---|
/// | 0 | epoch << 3, 4 if there is a VLAN tag, 2 (a locally administered unicast address) |
/// | 1, 2 | VLAN TCI, big endian; 0 without |
/// | 3 | generation |
/// | 4, 5 | slot, big endian |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Which load of the programs.
    pub epoch: Epoch,
    /// The 802.1Q tag control information (priority, drop bit and VLAN id) if the guest tagged the frame.
    pub vlan: Option<u16>,
    /// Which tenant of the slot.
    pub generation: Generation,
    /// Which interface.
    pub slot: Slot,
}

const FORM: u8 = 0b10;
const FORM_MASK: u8 = 0b11;
const TAGGED: u8 = 0b100;

impl Tag {
    /// The six bytes.
    #[must_use]
    pub const fn encode(&self) -> [u8; 6] {
        let (tagged, tci) = match self.vlan {
            Some(tci) => (TAGGED, tci.to_be_bytes()),
            None => (0, [0, 0]),
        };
        let slot = self.slot.0.to_be_bytes();
        [self.epoch.0 << 3 | tagged | FORM, tci[0], tci[1], self.generation.0, slot[0], slot[1]]
    }

    /// The tag that six bytes are; `None` if they are an ordinary MAC address or name no slot.
    #[must_use]
    pub const fn decode(bytes: &[u8; 6]) -> Option<Self> {
        let [first, tci_high, tci_low, generation, slot_high, slot_low] = *bytes;
        if first & FORM_MASK != FORM {
            return None;
        }
        let tci = u16::from_be_bytes([tci_high, tci_low]);
        let vlan = match (first & TAGGED != 0, tci) {
            (true, tci) => Some(tci),
            (false, 0) => None,
            (false, _) => return None,
        };
        let Some(slot) = Slot::new(u16::from_be_bytes([slot_high, slot_low])) else { return None };
        Some(Self { epoch: Epoch(first >> 3), vlan, generation: Generation(generation), slot })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// What these six bytes are, said without the codec: epoch, TCI if tagged, generation, slot.
    fn meaning(first: u8, tci: u16, generation: u8, slot: u16) -> Option<(u8, Option<u16>, u8, u16)> {
        let tagged = first & 0b100 != 0;
        let formed = first % 4 == 2 && slot < 4096 && (tagged || tci == 0);
        formed.then_some((first / 8, tagged.then_some(tci), generation, slot))
    }

    /// Both ways: what is read is what is meant, and written again it is what it was.
    fn assert_means(first: u8, tci: u16, generation: u8, slot: u16) {
        let [tci_high, tci_low] = tci.to_be_bytes();
        let [slot_high, slot_low] = slot.to_be_bytes();
        let bytes = [first, tci_high, tci_low, generation, slot_high, slot_low];
        let tag = Tag::decode(&bytes);
        let read = tag.map(|tag| (tag.epoch.number(), tag.vlan, tag.generation.number(), tag.slot.number()));
        assert!(read == meaning(first, tci, generation, slot), "{bytes:02x?} is {tag:?}");
        assert!(tag.is_none_or(|tag| tag.encode() == bytes), "{bytes:02x?} is {tag:?}");
    }

    #[test]
    fn every_first_byte_and_vlan_has_one_meaning_and_one_spelling() {
        for (generation, slot) in [(0, 0), (255, 4095), (255, 4096)] {
            for first in 0..=u8::MAX {
                (0..=u16::MAX).for_each(|tci| assert_means(first, tci, generation, slot));
            }
        }
    }

    #[test]
    fn every_slot_and_generation_has_one_meaning_and_one_spelling() {
        for (first, tci) in [(0b0000_0010, 0), (0b1111_1110, u16::MAX), (0b1111_1010, 1)] {
            for generation in 0..=u8::MAX {
                (0..=u16::MAX).for_each(|slot| assert_means(first, tci, generation, slot));
            }
        }
    }

    #[test]
    fn it_is_a_locally_administered_unicast_address() {
        let tag = Tag { epoch: Epoch(31), vlan: Some(0x2042), generation: Generation(3), slot: Slot(0x0102) };
        assert_eq!(tag.encode(), [0xfe, 0x20, 0x42, 3, 1, 2]);
        assert_eq!(Tag { epoch: Epoch(0), vlan: None, ..tag }.encode(), [0x02, 0, 0, 3, 1, 2]);
    }

    #[test]
    fn numbers_beyond_the_tag_are_refused_and_counting_goes_round() {
        assert_eq!(Slot::new(4096), None);
        assert_eq!(Epoch::new(32), None);
        assert_eq!(Epoch::new(31).unwrap().next(), Epoch::default());
        assert_eq!(Generation::new(255).next(), Generation::default());
    }
}
