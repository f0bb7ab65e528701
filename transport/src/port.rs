//! The wire as one connection sees it: smoltcp's device, for the time of one call. Pure but for the wire.
//!
//! In comes at most one IPv4 packet; out go IPv4 packets, each framed for the station that the connection came from.
//! Refused: sending without room. That is back-pressure, not loss: losing a frame of ours would cost the guest a second.

use pve_imds_bpf::Tag;
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::ether::{Kind, Station, limit_hops, write_header};
use crate::wire::{ETHERNET_HEADER, MTU, Wire};

/// The wire as one connection sees it, for the time of one call.
pub(crate) struct Port<'a, W> {
    pub(crate) wire: &'a mut W,
    pub(crate) tag: Tag,
    pub(crate) inbound: Option<&'a [u8]>,
    /// Where the answers go: to the station of the connection, or of the packet being answered.
    pub(crate) station: Station,
    /// The time to live of the answers.
    pub(crate) hops: u8,
}

impl<W> Port<'_, W> {
    fn slip(&mut self) -> Slip<'_, W> {
        Slip { wire: self.wire, tag: self.tag, station: self.station, hops: self.hops }
    }
}

impl<W: Wire> Device for Port<'_, W> {
    type RxToken<'t>
        = Packet<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Slip<'t, W>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let packet = self.inbound.take()?;
        Some((Packet(packet), self.slip()))
    }

    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        if self.wire.room() == 0 {
            return None;
        }
        Some(self.slip())
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// Checksums are verified and filled in: the private veth pair hands over valid ones.
fn capabilities() -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = MTU;
    capabilities
}

pub(crate) struct Packet<'a>(&'a [u8]);

impl RxToken for Packet<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(crate) struct Slip<'a, W> {
    wire: &'a mut W,
    tag: Tag,
    station: Station,
    hops: u8,
}

impl<W: Wire> TxToken for Slip<'_, W> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let Self { wire, tag, station, hops } = self;
        if wire.room() == 0 {
            // The immediate answer to a packet (a reset, a challenge) while the wire is full: the peer asks again.
            return f(&mut vec![0; length]);
        }
        wire.send(ETHERNET_HEADER + length, |frame| {
            let result = f(&mut frame[ETHERNET_HEADER..]);
            write_header(frame, tag, station, Kind::Ipv4);
            // Here and not at the socket: resets come from none.
            limit_hops(&mut frame[ETHERNET_HEADER..], hops);
            result
        })
    }
}

/// A device that only has capabilities: all that making an interface asks for.
pub(crate) struct Blueprint;

impl Device for Blueprint {
    type RxToken<'t> = Packet<'t>;
    type TxToken<'t> = Void;

    fn receive(&mut self, _: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// A token nobody can hold.
pub(crate) enum Void {}

impl TxToken for Void {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, _: usize, _: F) -> R {
        match self {}
    }
}
