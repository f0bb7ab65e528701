//! The wire as one guest's stack sees it: smoltcp's device, for the time of one call. Pure but for the wire.
//!
//! In comes at most one IPv4 packet; out go IPv4 packets, each framed for the station that its flow came from. Refused:
//! sending without room. That is back-pressure, not loss: losing a frame of ours would cost the guest a second.

use std::collections::HashMap;

use pve_imds_bpf::Tag;
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{IpAddress, IpEndpoint, Ipv4Packet, TcpPacket};

use crate::ether::{Kind, Station, write_header};
use crate::stack::Connection;
use crate::wire::{ETHERNET_HEADER, MTU, Wire};

/// Where the answers of a stack go: to the station of the connection, or of the packet being answered.
#[derive(Clone, Copy)]
pub(crate) struct Stations<'a>(pub(crate) &'a HashMap<IpEndpoint, Connection>, pub(crate) Station);

impl Stations<'_> {
    fn of(self, packet: &[u8]) -> Station {
        let destination = Ipv4Packet::new_checked(packet).ok().and_then(|ip| {
            let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
            Some(IpEndpoint::new(IpAddress::Ipv4(ip.dst_addr()), tcp.dst_port()))
        });
        destination.and_then(|peer| self.0.get(&peer)).map_or(self.1, Connection::station)
    }
}

/// The wire as one guest's stack sees it, for the time of one call.
pub(crate) struct Port<'a, W> {
    pub(crate) wire: &'a mut W,
    pub(crate) tag: Tag,
    pub(crate) inbound: Option<&'a [u8]>,
    pub(crate) stations: Stations<'a>,
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
        Some((Packet(packet), Slip { wire: self.wire, tag: self.tag, stations: self.stations }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        if self.wire.room() == 0 {
            return None;
        }
        Some(Slip { wire: self.wire, tag: self.tag, stations: self.stations })
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
    stations: Stations<'a>,
}

impl<W: Wire> TxToken for Slip<'_, W> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let Self { wire, tag, stations } = self;
        if wire.room() == 0 {
            // The immediate answer to a packet (a reset, a challenge) while the wire is full: the peer asks again.
            return f(&mut vec![0; length]);
        }
        wire.send(ETHERNET_HEADER + length, |frame| {
            let result = f(&mut frame[ETHERNET_HEADER..]);
            let station = stations.of(&frame[ETHERNET_HEADER..]);
            write_header(frame, tag, station, Kind::Ipv4);
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
