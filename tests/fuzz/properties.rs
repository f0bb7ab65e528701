//! What has to hold whatever a guest sends: one function for each place where its bytes are read.
//!
//! In come bytes that nobody has looked at; a property that does not hold is a panic. Each function stands on its own
//! and remembers nothing of the input before. The fuzzer calls them (`fuzz_targets`), and so does `make test`
//! (`tests/memory/properties.rs`). What an operator writes is not here: it is no guest's.
#![allow(unreachable_pub, reason = "a crate of its own for the fuzzer, a module for the tests")]
#![allow(clippy::unwrap_used, reason = "a property that does not hold is a panic")]

mod conversation;
mod path;
mod request;
mod tcp;
mod token;
mod vms;

pub use conversation::conversation;
pub use path::path;
pub use request::request;
pub use token::token;

use pve_imds_transport::bpf::{Epoch, Generation, METADATA_MAC, Slot, Tag};
use pve_imds_transport::testing::fuzz::hear;
use pve_imds_transport::{METADATA_IP, Seat};
use tokio::runtime::{Builder, Runtime};

/// The load of the programs that everything here pretends to be part of.
const EPOCH: Epoch = Epoch::new(5).unwrap();

/// A frame as `funnel` hands it over: what is read lies inside it, what is refused was not for us, and the answer goes
/// to whoever spoke and nowhere else.
pub fn frame(bytes: &[u8]) {
    let Some(heard) = hear(bytes) else { return };
    let (header, payload) = bytes.split_at(14);
    assert_eq!(heard.tag.encode(), header[..6], "the guest is the one of the tag");
    assert_eq!(heard.mac, header[6..12], "who spoke is the source address");
    let kind = match heard.packet {
        Some(packet) => {
            assert!(std::ptr::eq(packet, &payload[..packet.len()]), "a packet begins behind its Ethernet header");
            assert_eq!(
                packet.len(),
                usize::from(u16::from_be_bytes([packet[2], packet[3]])),
                "and is as long as it says"
            );
            assert_eq!(packet[16..20], METADATA_IP.octets(), "and is for us");
            assert_eq!(heard.answer.len(), 14);
            [0x08, 0x00]
        }
        None => {
            assert_eq!(payload[..8], [0, 1, 8, 0, 6, 4, 0, 1], "a question of Ethernet for IPv4");
            assert_eq!(payload[24..28], METADATA_IP.octets(), "for our address");
            let body = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &METADATA_MAC, &METADATA_IP.octets(), &payload[8..18]];
            assert_eq!(heard.answer[14..], body.concat(), "is answered with our one address");
            [0x08, 0x06]
        }
    };
    assert_eq!(heard.answer[..6], heard.mac, "the answer goes to who spoke");
    assert_eq!(heard.answer[6..12], header[..6], "through the interface and the VLAN it came from");
    assert_eq!(heard.answer[12..14], kind);
}

/// The tag: six bytes are one tag or none, and a tag is one spelling of six bytes.
pub fn tag(bytes: &[u8]) {
    for six in bytes.windows(6).filter_map(|window| window.first_chunk()) {
        let ordinary = six[0] & 0b11 != 0b10;
        let untidy = six[0] & 0b100 == 0 && six[1..3] != [0, 0];
        let nowhere = u16::from_be_bytes([six[4], six[5]]) >= Slot::CAPACITY;
        match Tag::decode(six) {
            Some(tag) => assert_eq!(tag.encode(), *six),
            None => assert!(ordinary || untidy || nowhere, "{six:02x?}"),
        }
    }
    for [epoch, tagged, high, low, generation, slot_high, slot_low] in bytes.as_chunks().0.iter().copied() {
        let tag = Tag {
            epoch: Epoch::new(epoch % 32).unwrap(),
            vlan: (tagged & 1 == 1).then_some(u16::from_be_bytes([high, low])),
            generation: Generation::new(generation),
            slot: Slot::new(u16::from_be_bytes([slot_high, slot_low]) % Slot::CAPACITY).unwrap(),
        };
        assert_eq!(Tag::decode(&tag.encode()), Some(tag));
    }
}

/// The first holder of this slot.
fn seat(slot: u16) -> Seat {
    Seat { slot: Slot::new(slot).unwrap(), generation: Generation::default() }
}

/// A world whose clock runs only when nobody has anything to do.
fn world() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Whether `bytes` has `word` in it.
fn contains(bytes: &[u8], word: &[u8]) -> bool {
    // Most bytes have not even the first one of a word that is rare.
    bytes.contains(&word[0]) && bytes.windows(word.len()).any(|window| window == word)
}
