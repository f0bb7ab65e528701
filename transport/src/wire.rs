//! The seam between frames and everything that thinks about them.
//!
//! Below it is the kernel's AF_XDP socket or, in tests, an in-memory twin with loss and delay; above it nobody can
//! tell which. A wire carries whole Ethernet frames of all guests, each tagged with the slot it belongs to
//! ([`pve_imds_bpf::Tag`]). It never blocks and never drops a frame it accepted.

use std::io;
use std::task::{Context, Poll};

/// Bytes of an Ethernet header without VLAN tag (IEEE 802.3).
pub(crate) const ETHERNET_HEADER: usize = 14;

/// The largest IP packet we send: what every guest takes.
pub const MTU: usize = 1500;

/// The largest frame we send.
pub const MAX_FRAME: usize = ETHERNET_HEADER + MTU;

/// A tagged-frame device with readiness, one reader and one writer.
pub trait Wire {
    /// Ready when a frame may have arrived since [`Wire::recv`] last said there is none. Spurious readiness is allowed,
    /// a lost wake-up is not.
    ///
    /// # Errors
    /// When the device is gone for good.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Puts the next frame into `frame` (its old content is discarded). `false`: there is none now.
    fn recv(&mut self, frame: &mut Vec<u8>) -> bool;

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
