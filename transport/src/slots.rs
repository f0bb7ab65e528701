//! Which guest sits in which slot. Pure.
//!
//! In come appearances and disappearances of interfaces; out come seats. A slot that was left is taken again as late
//! as possible (first freed, first reused) and by another generation, so a frame that was under way while its
//! interface vanished finds nobody. Refused: more guests than there are slots.

use std::collections::VecDeque;

use pve_imds_bpf::{Generation, Slot};

use crate::seats::Seat;

/// The seats of all guests.
#[derive(Debug)]
pub struct Slots {
    /// First one to be taken in front.
    free: VecDeque<Seat>,
}

impl Slots {
    /// `count` free seats. The kernel programs know [`Slot::CAPACITY`] of them.
    #[must_use]
    pub fn new(count: u16) -> Self {
        let seat = |slot| Seat { slot, generation: Generation::default() };
        Self { free: (0..count).filter_map(Slot::new).map(seat).collect() }
    }

    /// The seat that has been free for the longest time. `None`: all are taken.
    pub fn take(&mut self) -> Option<Seat> {
        self.free.pop_front()
    }

    /// Gives a seat back. Its next holder is another generation.
    pub fn free(&mut self, seat: Seat) {
        self.free.push_back(Seat { generation: seat.generation.next(), ..seat });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seat: Seat) -> (u16, u8) {
        (seat.slot.number(), seat.generation.number())
    }

    #[test]
    fn a_slot_comes_back_last_and_as_another_generation() {
        let mut slots = Slots::new(3);
        let first = slots.take().unwrap();
        assert_eq!(numbers(first), (0, 0));
        slots.free(first);
        let next: Vec<_> = std::iter::from_fn(|| slots.take()).map(numbers).collect();
        assert_eq!(next, [(1, 0), (2, 0), (0, 1)]);
        assert_eq!(slots.take(), None);
    }

    #[test]
    fn generations_wrap() {
        let mut slots = Slots::new(1);
        for round in 0..=256u32 {
            let seat = slots.take().unwrap();
            assert_eq!(u32::from(seat.generation.number()), round % 256);
            slots.free(seat);
        }
    }
}
