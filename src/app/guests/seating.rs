//! Who waits for a seat where all are taken. Pure.
//!
//! In come interfaces that want a seat, seats that are free again, and interfaces that are gone; out come seats and, for
//! a seat that somebody waits for, whose turn it is: the one that has waited the longest.

use std::collections::VecDeque;

use pve_imds_transport::{Interface, Seat, Slots};

/// The seats, and the line before them.
#[derive(Debug)]
pub(super) struct Seating {
    slots: Slots,
    waiting: VecDeque<Interface>,
}

impl Seating {
    pub(super) fn new(slots: Slots) -> Self {
        Self { slots, waiting: VecDeque::new() }
    }

    /// A seat for this interface. `None`: it waits for one.
    pub(super) fn take(&mut self, interface: &Interface) -> Option<Seat> {
        self.gone(interface.index);
        let seat = self.slots.take();
        if seat.is_none() {
            self.waiting.push_back(interface.clone());
        }
        seat
    }

    /// A seat is free. Whoever comes out of the line is to ask for it now.
    pub(super) fn free(&mut self, seat: Seat) -> Option<Interface> {
        self.slots.free(seat);
        self.waiting.pop_front()
    }

    /// Nobody waits at this index any more.
    pub(super) fn gone(&mut self, index: u32) {
        self.waiting.retain(|interface| interface.index != index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_that_is_free_again_is_the_longest_waiting_ones() {
        let tap = |index: u32| Interface { index, name: format!("tap{index}i0"), kind: "tun".to_owned() };
        let mut seating = Seating::new(Slots::new(2));
        let [first, second] = [101, 102].map(|index| seating.take(&tap(index)).unwrap());
        for index in [103, 104, 105, 103] {
            assert_eq!(seating.take(&tap(index)), None);
        }
        seating.gone(104);
        assert_eq!(seating.free(first), Some(tap(105)));
        assert!(seating.take(&tap(105)).is_some());
        // Whoever asked once more went to the end, and stands there once.
        assert_eq!(seating.free(second), Some(tap(103)));
        let last = seating.take(&tap(103)).unwrap();
        assert_eq!(seating.free(last), None);
    }
}
