//! The seam between frames and everything that thinks about them.
//!
//! Below it is the kernel's AF_XDP socket or, in tests, an in-memory twin with loss and delay; above it nobody can
//! tell which. A wire carries whole Ethernet frames of all guests, each tagged with the slot it belongs to
//! ([`pve_imds_bpf::Tag`]). It never blocks and never drops a frame it accepted.
//!
//! A frame is received in two steps. [`Wire::next`] says that it is there and whose; it keeps its place in the wire's
//! memory until [`Wire::read`] copies it out. So frames can wait for their turn without a byte being moved, and all that
//! wait are bounded by the wire. What the other side lends is kept in [`Account`]s.

use std::io;
use std::task::{Context, Poll};

use pve_imds_bpf::{Slot, Tag};

/// Bytes of an Ethernet header without VLAN tag (IEEE 802.3).
pub(crate) const ETHERNET_HEADER: usize = 14;

/// The largest IP packet we send: what every guest takes.
pub const MTU: usize = 1500;

/// The largest frame we send.
pub const MAX_FRAME: usize = ETHERNET_HEADER + MTU;

/// What the other side lends until we say that it was used, so that nobody can send more than can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Account {
    /// The segments of one guest, from `steer` until they are read here.
    Slot(Slot),
    /// The chunks of the receive ring, from `funnel` until they are read here.
    Ring,
}

/// A tagged-frame device with readiness, one reader and one writer.
pub trait Wire {
    /// A received frame in the wire's memory.
    type Frame;

    /// Ready when a frame may have arrived since [`Wire::next`] last said there is none. Spurious readiness is allowed,
    /// a lost wake-up is not.
    ///
    /// # Errors
    /// When the device is gone for good.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The next frame and its tag (`None`: it has none that can be read). Every frame must be given to [`Wire::read`]
    /// in the end: its memory is the wire's.
    fn next(&mut self) -> Option<(Option<Tag>, Self::Frame)>;

    /// Puts the frame into `into` (whose old content is discarded) and gives its memory back to the wire.
    fn read(&mut self, frame: Self::Frame, into: &mut Vec<u8>);

    /// How much of an account is lent and not given back, signed: another processor may be in the middle of a change.
    fn lent(&self, account: Account) -> i32;

    /// How much of an account was ever given back; it wraps. Two equal values with time in between: nothing was.
    fn returned(&self, account: Account) -> u32;

    /// Gives back. What is read from [`Account::Ring`] is given back by [`Wire::read`] itself.
    fn give_back(&mut self, account: Account, amount: i32);

    /// Gives back to their guests the segments that the other side had no room for, as it knows them itself.
    fn reclaim(&mut self);

    /// How many frames [`Wire::send`] will take now.
    fn room(&mut self) -> usize;

    /// Sends a frame of `len` bytes (at most [`MAX_FRAME`]) that `fill` writes in place. Only call with
    /// [`Wire::room`] left.
    fn send<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R;

    /// Hands what was sent to the other side. `false`: some of it stays queued; call again soon.
    ///
    /// # Errors
    /// When the device is gone for good.
    fn flush(&mut self) -> io::Result<bool>;
}
