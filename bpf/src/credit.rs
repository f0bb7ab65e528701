//! What frames on their way to user space cost, in memory that the kernel programs and we both see.
//!
//! `steer` and `funnel` count up what they let pass, we count up what we have consumed; what is between the two is on
//! its way, and neither program lets it grow beyond its bound. In come slots and numbers of segments and chunks, out
//! go differences. Nothing here waits, and nothing here costs a system call.
//!
//! A count that only grows cannot say that a frame was lost where no program sees it (no memory, a device that went
//! down). Whoever reads the ring finds that out: outstanding segments, and nothing that comes.

use std::sync::atomic::Ordering;

use crate::error::MapError;
use crate::sys::Shared;
use crate::tag::Slot;

/// Credit of all slots, and the occupancy of the receive ring. It stays good when its [`crate::Datapath`] is gone.
#[derive(Debug)]
pub struct Credit {
    credits: Shared,
    occupancy: Shared,
    lost: Shared,
    /// What of `shed` and `lost` has been given back.
    reclaimed: u32,
    reclaimed_of: Box<[u32]>,
}

/// The three maps, by descriptor.
pub(crate) struct Maps<Fd> {
    pub(crate) credits: Fd,
    pub(crate) occupancy: Fd,
    pub(crate) lost: Fd,
}

const SLOTS: usize = Slot::CAPACITY as usize;

/// The kernel spaces the values of an array by 8 bytes or a multiple, so in words of 4: `struct credit` has two,
/// `struct occupancy` three of four, and a number alone is one of two.
const STRIDE: usize = 2;

/// Words of `struct occupancy`.
const PASSED: usize = 0;
const TAKEN: usize = 1;
const SHED: usize = 2;
const OCCUPANCY: usize = 4;

impl Credit {
    /// How many segments of one slot may be on their way.
    pub const SEGMENTS: u32 = 256;

    pub(crate) fn map<Fd: std::os::fd::AsFd>(maps: &Maps<Fd>) -> Result<Self, MapError> {
        let share = |map: &'static str, fd: &Fd, words| {
            Shared::map(fd.as_fd(), words).map_err(|source| MapError::Shared { map, source })
        };
        let credits = share("credits", &maps.credits, SLOTS * STRIDE)?;
        let occupancy = share("occupancy", &maps.occupancy, OCCUPANCY)?;
        let lost = share("lost", &maps.lost, SLOTS * STRIDE)?;
        let mut credit =
            Self { credits, occupancy, lost, reclaimed: 0, reclaimed_of: vec![0; SLOTS].into_boxed_slice() };
        // What was shed before is another handle's to give back.
        credit.unclaimed();
        Ok(credit)
    }

    /// User space has consumed that many segments of `slot`: so many more may come.
    pub fn acknowledge(&self, slot: Slot, segments: u32) {
        self.credits.words()[consumed(slot)].fetch_add(segments, Ordering::Relaxed);
    }

    /// Segments of `slot` that were steered and are not consumed. Below 0 if more was acknowledged than came.
    #[must_use]
    pub fn outstanding(&self, slot: Slot) -> i32 {
        // In this order: what is consumed was steered before, so a frame in between is seen as outstanding.
        let consumed = self.consumed(slot);
        let steered = self.credits.words()[steered(slot)].load(Ordering::Acquire);
        steered.wrapping_sub(consumed).cast_signed()
    }

    /// Segments of `slot` that were ever acknowledged, wrapping: whether the count has moved, not how far.
    #[must_use]
    pub fn consumed(&self, slot: Slot) -> u32 {
        self.credits.words()[consumed(slot)].load(Ordering::Acquire)
    }

    /// User space has given that many chunks of the receive ring back.
    pub fn release_chunks(&self, chunks: u32) {
        self.occupancy.words()[TAKEN].fetch_add(chunks, Ordering::Relaxed);
    }

    /// Chunks that `funnel` passed to the socket and nobody has given back.
    #[must_use]
    pub fn chunks_outstanding(&self) -> i32 {
        let words = self.occupancy.words();
        let taken = words[TAKEN].load(Ordering::Acquire);
        words[PASSED].load(Ordering::Acquire).wrapping_sub(taken).cast_signed()
    }

    /// Gives what `funnel` has shed since the last call back to its slots, and says how many segments that were. If it
    /// was none, this costs one load. One handle of a datapath does this, or each gives back the same.
    pub fn reclaim_lost(&mut self) -> u64 {
        let lost = self.unclaimed();
        lost.iter().for_each(|&(slot, segments)| self.acknowledge(slot, segments));
        lost.iter().map(|&(_, segments)| u64::from(segments)).sum()
    }

    /// What was shed since the last call, by slot.
    fn unclaimed(&mut self) -> Vec<(Slot, u32)> {
        let shed = self.occupancy.words()[SHED].load(Ordering::Acquire);
        if shed == self.reclaimed {
            return Vec::new();
        }
        self.reclaimed = shed;
        let now = self.lost.words().iter().step_by(STRIDE).map(|word| word.load(Ordering::Acquire));
        let slots = (0..Slot::CAPACITY).filter_map(Slot::new);
        let mut lost = Vec::new();
        for ((slot, now), before) in slots.zip(now).zip(&mut self.reclaimed_of) {
            if now != *before {
                lost.push((slot, now.wrapping_sub(*before)));
                *before = now;
            }
        }
        lost
    }
}

/// `steered`, of the slot's two words.
fn steered(slot: Slot) -> usize {
    usize::from(slot.number()) * STRIDE
}

/// `consumed`.
fn consumed(slot: Slot) -> usize {
    steered(slot) + 1
}

const _: fn() = || {
    fn assert_send<T: Send + Sync>() {}
    assert_send::<Credit>();
};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;

    /// Files in the place of the maps, and the programs' side of them.
    struct Kernel {
        maps: Maps<File>,
        credits: Shared,
        occupancy: Shared,
        lost: Shared,
    }

    impl Kernel {
        fn new() -> Self {
            use std::os::fd::AsFd;
            let file = |words: usize| {
                let file = tempfile::tempfile().unwrap();
                file.set_len(u64::try_from(words * 4).unwrap()).unwrap();
                file
            };
            let maps = Maps { credits: file(SLOTS * STRIDE), occupancy: file(OCCUPANCY), lost: file(SLOTS * STRIDE) };
            let share = |file: &File, words| Shared::map(file.as_fd(), words).unwrap();
            let credits = share(&maps.credits, SLOTS * STRIDE);
            let occupancy = share(&maps.occupancy, OCCUPANCY);
            let lost = share(&maps.lost, SLOTS * STRIDE);
            Self { maps, credits, occupancy, lost }
        }

        fn steer(&self, slot: Slot, segments: u32) {
            self.credits.words()[steered(slot)].fetch_add(segments, Ordering::Relaxed);
        }

        fn shed(&self, slot: Slot, frames: u32) {
            self.lost.words()[steered(slot)].fetch_add(frames, Ordering::Relaxed);
            self.occupancy.words()[SHED].fetch_add(frames, Ordering::Relaxed);
        }
    }

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    #[test]
    fn what_is_outstanding_is_a_difference_of_its_slot_and_may_wrap() {
        let kernel = Kernel::new();
        let credit = Credit::map(&kernel.maps).unwrap();
        for number in [0, 1, 4095] {
            kernel.steer(slot(number), u32::MAX - 5);
            credit.acknowledge(slot(number), u32::MAX - 9);
            assert_eq!(credit.outstanding(slot(number)), 4);
            kernel.steer(slot(number), 20);
            assert_eq!(credit.outstanding(slot(number)), 24);
            credit.acknowledge(slot(number), 25);
            assert_eq!((credit.outstanding(slot(number)), credit.consumed(slot(number))), (-1, 15));
        }
        assert_eq!(credit.outstanding(slot(2)), 0);
    }

    #[test]
    fn what_was_shed_goes_back_to_its_slots_once() {
        let kernel = Kernel::new();
        kernel.shed(slot(9), 7);
        let mut credit = Credit::map(&kernel.maps).unwrap();
        assert_eq!(credit.reclaim_lost(), 0, "shed before this handle was");
        for round in 1..=3 {
            kernel.shed(slot(9), 2);
            kernel.shed(slot(4095), u32::MAX / 2);
            assert_eq!(credit.reclaim_lost(), 2 + u64::from(u32::MAX / 2));
            assert_eq!(credit.reclaim_lost(), 0);
            assert_eq!(credit.consumed(slot(9)), 2 * round);
        }
    }

    #[test]
    fn chunks_are_counted_apart() {
        let kernel = Kernel::new();
        let credit = Credit::map(&kernel.maps).unwrap();
        kernel.occupancy.words()[PASSED].store(3, Ordering::Relaxed);
        credit.release_chunks(5);
        assert_eq!(credit.chunks_outstanding(), -2);
        kernel.occupancy.words()[PASSED].store(9, Ordering::Relaxed);
        assert_eq!(credit.chunks_outstanding(), 4);
    }
}
