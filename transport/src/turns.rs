//! Who is next: frames of all guests wait here, and each guest gets its turn. Pure.
//!
//! In come frames in the order they arrived, out they come in rounds: [`QUANTUM`] frames of one guest, then the next
//! guest that has any (deficit round robin; all frames weigh the same, so the deficit is what is left of the quantum).
//! So a guest that sends one segment waits for at most eight of each other guest, however many those have sent. How
//! many frames wait is bounded by whoever puts them in: they lie in the wire's memory.

use std::collections::{HashMap, VecDeque};

/// Frames of one guest before the next one's turn.
pub(crate) const QUANTUM: u32 = 8;

/// Empty queues kept to be used again, so that a frame that comes and goes costs no allocation.
const SPARE: usize = 8;

/// The most that a queue may have grown to and still be kept.
const ROOMY: usize = 64;

/// Waiting frames by slot.
#[derive(Debug)]
pub(crate) struct Turns<F> {
    queues: HashMap<u16, VecDeque<F>>,
    /// Slots with frames, the one whose turn it is in front.
    order: VecDeque<u16>,
    /// What is left of the turn of the one in front.
    left: u32,
    spare: Vec<VecDeque<F>>,
}

impl<F> Default for Turns<F> {
    fn default() -> Self {
        Self { queues: HashMap::new(), order: VecDeque::new(), left: QUANTUM, spare: Vec::new() }
    }
}

impl<F> Turns<F> {
    /// A frame of this slot has arrived.
    pub(crate) fn push(&mut self, slot: u16, frame: F) {
        let Self { queues, order, spare, .. } = self;
        let queue = queues.entry(slot).or_insert_with(|| {
            order.push_back(slot);
            spare.pop().unwrap_or_default()
        });
        queue.push_back(frame);
    }

    /// The next frame and whose it is.
    pub(crate) fn next(&mut self) -> Option<(u16, F)> {
        let slot = *self.order.front()?;
        let queue = self.queues.get_mut(&slot)?;
        let frame = queue.pop_front()?;
        self.left -= 1;
        if queue.is_empty() {
            let queue = self.queues.remove(&slot).filter(|queue| queue.capacity() <= ROOMY);
            self.spare.extend(queue.filter(|_| self.spare.len() < SPARE));
            self.order.pop_front();
            self.left = QUANTUM;
        } else if self.left == 0 {
            self.order.rotate_left(1);
            self.left = QUANTUM;
        }
        Some((slot, frame))
    }

    /// Nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether a frame of this slot waits.
    pub(crate) fn has(&self, slot: u16) -> bool {
        self.queues.contains_key(&slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(turns: &mut Turns<u32>) -> Vec<(u16, u32)> {
        std::iter::from_fn(|| turns.next()).collect()
    }

    #[test]
    fn each_guests_frames_stay_in_order_and_guests_take_turns() {
        let mut turns = Turns::default();
        (0..20).for_each(|frame| turns.push(7, frame));
        (100..110).for_each(|frame| turns.push(3, frame));
        turns.push(9, 200);
        let order = drain(&mut turns);
        let slots: Vec<u16> = order.iter().map(|(slot, _)| *slot).collect();
        let expected = [vec![7; 8], vec![3; 8], vec![9], vec![7; 8], vec![3; 2], vec![7; 4]].concat();
        assert_eq!(slots, expected);
        for (slot, frames) in [(7, (0..20).collect::<Vec<_>>()), (3, (100..110).collect()), (9, vec![200])] {
            let got: Vec<u32> = order.iter().filter(|(of, _)| *of == slot).map(|(_, frame)| *frame).collect();
            assert_eq!(got, frames);
        }
        assert!(turns.is_empty() && !turns.has(7));
    }

    #[test]
    fn one_frame_waits_for_eight_of_each_other_guest_at_most() {
        let mut turns = Turns::default();
        for flooder in 0..5 {
            (0..256).for_each(|frame| turns.push(flooder, frame));
        }
        // In the middle of somebody's turn.
        (0..3).for_each(|_| assert!(turns.next().is_some()));
        turns.push(42, 0);
        let before = std::iter::from_fn(|| turns.next()).take_while(|(slot, _)| *slot != 42).count();
        assert!(before <= 5 * QUANTUM as usize, "{before}");
    }

    #[test]
    fn nothing_is_lost_and_nothing_kept_whatever_the_order() {
        let mut turns = Turns::default();
        let (mut dice, mut pushed, mut popped) = (1u32, 0u32, 0u32);
        for _ in 0..100_000 {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if dice >> 31 == 0 {
                turns.push((dice >> 8 & 0x3f) as u16, pushed);
                pushed += 1;
            } else if turns.next().is_some() {
                popped += 1;
            }
        }
        popped += u32::try_from(drain(&mut turns).len()).unwrap();
        assert_eq!(pushed, popped);
        assert!(turns.queues.is_empty() && turns.spare.len() <= SPARE);
    }
}
