//! Which guest sits in which slot. Pure but for the generation that a load begins with, which is drawn.
//!
//! In come appearances and disappearances of interfaces; out come seats. A slot that was left is taken again as late
//! as possible (first freed, first reused) and by another generation, so a frame that was under way while its
//! interface vanished finds nobody. Refused: more guests than there are slots.
//!
//! Epochs come back after 32 loads. A load that began with the same generations as the one before it of its epoch would
//! know the seats of that one; drawn, they are the same once in 256 times, and a frame would have to be that old besides.

use std::collections::VecDeque;

use pve_imds_bpf::{Generation, Slot};

use crate::driver::entropy;
use crate::seats::Seat;

/// The seats of all guests.
#[derive(Debug)]
pub struct Slots {
    /// First one to be taken in front.
    free: VecDeque<Seat>,
}

impl Slots {
    /// `count` free seats of a new load. The kernel programs know [`Slot::CAPACITY`] of them.
    #[must_use]
    pub fn new(count: u16) -> Self {
        let [drawn, ..] = entropy().to_ne_bytes();
        Self::beginning_with(Generation::new(drawn), count)
    }

    fn beginning_with(generation: Generation, count: u16) -> Self {
        let seat = |slot| Seat { slot, generation };
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

    /// Slots as they are when a nought is drawn.
    fn fresh(count: u16) -> Slots {
        Slots::beginning_with(Generation::default(), count)
    }

    #[test]
    fn a_load_does_not_begin_where_the_last_one_of_its_epoch_did() {
        let begun: Vec<_> = (0..64).map(|_| Slots::new(2)).collect();
        let first = |slots: &Slots| slots.free.iter().map(|seat| seat.generation.number()).collect::<Vec<_>>();
        assert!(begun.iter().all(|slots| first(slots)[0] == first(slots)[1]));
        let distinct: std::collections::HashSet<_> = begun.iter().map(first).collect();
        // All sixty-four are the same once in 256^63 runs; fewer than half are different as good as never.
        assert!(distinct.len() > 32, "{} of 64", distinct.len());
    }

    #[test]
    fn loads_that_begin_with_different_generations_have_no_seat_in_common() {
        let seats = |generation| {
            let mut slots = Slots::beginning_with(Generation::new(generation), Slot::CAPACITY);
            std::iter::from_fn(move || slots.take()).collect::<std::collections::HashSet<_>>()
        };
        let (old, new) = (seats(255), seats(0));
        assert_eq!((old.len(), new.len()), (4096, 4096));
        assert!(old.is_disjoint(&new));
    }

    #[test]
    fn a_slot_comes_back_last_and_as_another_generation() {
        let mut slots = fresh(3);
        let first = slots.take().unwrap();
        assert_eq!(numbers(first), (0, 0));
        slots.free(first);
        let next: Vec<_> = std::iter::from_fn(|| slots.take()).map(numbers).collect();
        assert_eq!(next, [(1, 0), (2, 0), (0, 1)]);
        assert_eq!(slots.take(), None);
    }

    #[test]
    fn generations_wrap() {
        let mut slots = fresh(1);
        for round in 0..=256u32 {
            let seat = slots.take().unwrap();
            assert_eq!(u32::from(seat.generation.number()), round % 256);
            slots.free(seat);
        }
    }

    /// What has to hold, said another way: who is free since when, who sits where, which holder each slot had last.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Model {
        free: Vec<u16>,
        held: Vec<(u16, u8)>,
        last: [Option<u8>; 3],
    }

    impl Model {
        fn take(&mut self, got: Option<(u16, u8)>) {
            let Some((slot, generation)) = got else {
                return assert_eq!(self.held.len(), 3, "a seat is refused only when all are taken");
            };
            assert!(self.held.iter().all(|(held, _)| *held != slot), "nobody sits there");
            assert_eq!(self.free.remove(0), slot, "first freed, first reused");
            assert_ne!(self.last[usize::from(slot)], Some(generation), "another generation than the last holder's");
            self.last[usize::from(slot)] = Some(generation);
            self.held.push((slot, generation));
            self.held.sort_unstable();
        }

        fn free(&mut self, seat: (u16, u8)) {
            self.held.retain(|held| *held != seat);
            self.free.push(seat.0);
        }
    }

    #[test]
    fn no_sequence_of_twelve_gives_a_seat_twice() {
        let start = (fresh(3).free, Model { free: vec![0, 1, 2], held: Vec::new(), last: [None; 3] });
        let mut seen = std::collections::HashSet::new();
        let mut layer = vec![start];
        for _ in 0..12 {
            let mut next = Vec::new();
            for (free, model) in layer.drain(..) {
                let mut taken = (Slots { free: free.clone() }, model.clone());
                taken.1.take(taken.0.take().map(numbers));
                let freed = model.held.iter().map(|&(slot, generation)| {
                    let mut freed = (Slots { free: free.clone() }, model.clone());
                    let seat = Seat { slot: Slot::new(slot).unwrap(), generation: Generation::new(generation) };
                    freed.0.free(seat);
                    freed.1.free((slot, generation));
                    freed
                });
                let unseen = |(slots, model): &(Slots, Model)| {
                    seen.insert((slots.free.iter().copied().map(numbers).collect::<Vec<_>>(), model.clone()))
                };
                next.extend(freed.chain([taken]).filter(unseen).map(|(slots, model)| (slots.free, model)));
            }
            layer = next;
        }
        assert!(seen.len() > 300, "{} states", seen.len());
    }
}
