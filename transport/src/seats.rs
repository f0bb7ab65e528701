//! Who sits where: one seat for each interface lifetime, and how the driver hears of it.
//!
//! In come guests of the daemon, each with the [`Serve`] that takes its connections; out go commands to the driver.

use std::fmt;
use std::net::IpAddr;

use pve_imds_bpf::{Generation, Slot};
use tokio::sync::mpsc;

use crate::bounds;
use crate::stream::TapStream;

/// The far end of one connection, as its frames claim it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Source hardware address of the frame that completed the handshake.
    pub mac: [u8; 6],
    /// Source address.
    pub ip: IpAddr,
    /// Source port.
    pub port: u16,
}

/// Takes over the established connections of one guest. Must return at once: it runs on the ring's thread.
pub trait Serve: Send {
    /// A connection is ready.
    fn serve(&mut self, stream: TapStream, peer: Peer);

    /// The time to live of this guest's packets. Asked whenever some arrive or leave, so it must cost nanoseconds.
    fn hops(&mut self) -> u8 {
        bounds::HOPS
    }
}

/// Which guest, for one interface lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// Where its frames go.
    pub slot: Slot,
    /// Which holder of that slot it is.
    pub generation: Generation,
}

/// Says to the driver which guests there are.
#[derive(Clone, Debug)]
pub struct Guests(pub(crate) mpsc::UnboundedSender<Command>);

impl Guests {
    /// A guest appears; its connections go to `serve`.
    pub fn add(&self, seat: Seat, serve: Box<dyn Serve>) {
        // The driver is gone only while the daemon stops.
        let _ = self.0.send(Command::Add(seat, serve));
    }

    /// A guest vanishes; its connections end.
    pub fn remove(&self, seat: Seat) {
        let _ = self.0.send(Command::Remove(seat));
    }
}

/// What the driver is told.
pub(crate) enum Command {
    Add(Seat, Box<dyn Serve>),
    Remove(Seat),
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(seat, _) => f.debug_tuple("Add").field(seat).finish(),
            Self::Remove(seat) => f.debug_tuple("Remove").field(seat).finish(),
        }
    }
}
