//! What the fuzz targets need of this room: one frame looked at by itself, a guest that says whatever it likes, and how
//! much all guests make us hold.
//!
//! In come bytes that nobody has looked at. Nothing is judged here: what has to hold is written in `tests/fuzz`, once
//! for the fuzzer and for the tests.

use std::fmt;

use pve_imds_bpf::{METADATA_MAC, Tag};

use super::{Line, Switch};
use crate::bounds;
use crate::driver::Driver;
use crate::ether::{self, ARP_FRAME, Inbound, Kind};
use crate::seats::Seat;
use crate::wire::{ETHERNET_HEADER, Wire};

/// The most bytes of buffers that one guest's connections may hold.
pub const SHARE: usize = (bounds::HALF_OPEN + bounds::OPEN) * (bounds::SEND_BUFFER + bounds::RECEIVE_BUFFER);

/// A frame that means something to us.
#[derive(Debug)]
pub struct Heard<'a> {
    /// Which guest's it is.
    pub tag: Tag,
    /// Who spoke.
    pub mac: [u8; 6],
    /// The IPv4 packet in it; `None` for an ARP question.
    pub packet: Option<&'a [u8]>,
    /// The ARP answer, or an Ethernet header on the way back with nothing behind it.
    pub answer: Vec<u8>,
}

/// Reads a frame as the driver does and writes what the answer to it begins with. `None`: it is refused.
#[must_use]
pub fn hear(frame: &[u8]) -> Option<Heard<'_>> {
    let (tag, station, inbound) = ether::parse(frame).ok()?;
    let (packet, answer) = match inbound {
        Inbound::ArpRequest { sender, hardware } => {
            let mut answer = vec![0; ARP_FRAME];
            ether::write_arp_reply(&mut answer, tag, station, sender, hardware);
            (None, answer)
        }
        Inbound::Ipv4(packet) => {
            let mut answer = vec![0; ETHERNET_HEADER];
            ether::write_header(&mut answer, tag, station, Kind::Ipv4);
            (Some(packet), answer)
        }
    };
    Some(Heard { tag, mac: station.mac, packet, answer })
}

/// A guest without a stack: it says what it is told to and keeps what it hears.
pub struct Rogue {
    switch: Switch,
    tag: Tag,
}

impl fmt::Debug for Rogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rogue").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl Switch {
    /// Plugs in a guest that has no stack of its own.
    #[must_use]
    pub fn plug_rogue(&self, seat: Seat) -> Rogue {
        self.lock().guests.insert(seat.slot.number(), (seat, Line::default()));
        let tag = Tag { epoch: self.epoch, vlan: None, generation: seat.generation, slot: seat.slot };
        Rogue { switch: self.clone(), tag }
    }
}

impl Rogue {
    /// Says `bytes`, a frame from its source address on. What stands before that is the kernel's to write: the guest
    /// chooses no more of it than the VLAN.
    pub fn say(&self, vlan: Option<u16>, bytes: &[u8]) {
        let tag = Tag { vlan, ..self.tag };
        self.switch.inject(&[&tag.encode()[..], bytes].concat());
    }

    /// The next frame it hears.
    ///
    /// # Panics
    /// When it does not come from the metadata address' hardware address.
    #[must_use]
    pub fn hear(&self) -> Option<Vec<u8>> {
        let mut frame = self.switch.next(self.tag.slot.number())?;
        // The twin's place for the VLAN tag.
        frame.truncate(frame.len() - 2);
        assert_eq!(frame[6..12], METADATA_MAC, "an answer comes from our address");
        Some(frame)
    }
}

impl<W: Wire> Driver<W> {
    /// Asks, at any time later, how many bytes of buffers all guests' connections hold.
    pub fn buffers(&self) -> impl Fn() -> usize + use<W> {
        let pool = self.pool.clone();
        move || pool.held()
    }
}
