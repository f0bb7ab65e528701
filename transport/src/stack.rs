//! TCP of one guest: smoltcp on IP packets, sockets made on demand.
//!
//! In come IPv4 packets of this guest (never of another: guests may share addresses, they never share a stack) and
//! calls of its streams; out go IPv4 packets, framed for the station that spoke, and newly established connections.
//! A connection is known by the guest's address and port; the rest of the 4-tuple is always ours. Refused: a SYN when
//! the guest's share of connections is used up, and everything that is no TCP for our port.
//!
//! There is no backlog of listening sockets: a SYN for an unknown 4-tuple makes a socket that listens for exactly
//! this one packet. So a burst of SYNs is bounded by the share and by nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use pve_imds_bpf::Tag;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint, IpProtocol, Ipv4Packet, TcpPacket};

use crate::bounds;
use crate::ether::{METADATA_IP, METADATA_PORT, Station};
use crate::pool::Pool;
use crate::port::{Blueprint, Port, Stations};
use crate::wire::Wire;

/// What a packet brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Nothing that anyone has to be told.
    Absorbed,
    /// The handshake with this peer is done.
    Established(SocketHandle, IpEndpoint),
    /// A SYN came and the guest's share is used up.
    NoShare,
    /// No TCP for our port.
    NotTcp,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// SYN seen.
    HalfOpen { since: Instant },
    /// A stream holds it.
    Open,
    /// Its stream is gone; what is left is the goodbye.
    Orphan {
        /// When patience ends; unknown until the driver comes by with the time.
        until: Option<Instant>,
        /// Bytes were still on their way when that was last decided.
        sending: bool,
    },
}

/// One TCP connection, whatever its stage.
#[derive(Debug)]
pub(crate) struct Connection {
    handle: SocketHandle,
    station: Station,
    stage: Stage,
}

impl Connection {
    /// Where its answers go: where its last frame came from.
    pub(crate) fn station(&self) -> Station {
        self.station
    }
}

/// The TCP of one guest.
pub(crate) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    connections: HashMap<IpEndpoint, Connection>,
    half_open: usize,
    orphans: usize,
    pool: Arc<Pool>,
    now: Instant,
}

impl Stack {
    /// An empty stack; `seed` must be unpredictable (it feeds the sequence numbers).
    pub(crate) fn new(seed: u64, pool: Arc<Pool>, now: Instant) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut Blueprint, now);
        // A prefix of length 0 makes every guest address directly reachable: there is no routing on a link.
        interface.update_ip_addrs(|addresses| {
            let everywhere = IpCidr::new(IpAddress::Ipv4(METADATA_IP), 0);
            let full = addresses.push(everywhere);
            debug_assert!(full.is_ok(), "an interface has room for its first address");
        });
        let sockets = SocketSet::new(Vec::new());
        Self { interface, sockets, connections: HashMap::new(), half_open: 0, orphans: 0, pool, now }
    }

    /// Takes one IPv4 packet for the metadata address that `station` sent.
    pub(crate) fn arrive<W: Wire>(
        &mut self,
        now: Instant,
        packet: &[u8],
        station: Station,
        tag: Tag,
        wire: &mut W,
    ) -> Arrival {
        self.now = now;
        let Some(segment) = Segment::peek(packet) else { return Arrival::NotTcp };
        if segment.opens() {
            if self.connections.get(&segment.from).is_some_and(|known| self.replaceable(known)) {
                self.remove(segment.from);
            }
            if !self.connections.contains_key(&segment.from) && !self.admit(segment.from, station) {
                return Arrival::NoShare;
            }
        }
        if let Some(connection) = self.connections.get_mut(&segment.from) {
            connection.station = station;
        }
        let mut port = Port { wire, tag, inbound: Some(packet), stations: Stations(&self.connections, station) };
        self.interface.poll_ingress_single(now, &mut port, &mut self.sockets);
        // At once: a SYN that its own socket did not take (a bad checksum) must not leave one that takes another's.
        self.advance(segment.from)
    }

    /// Sends what is due. `true`: there is more, the wire is full.
    pub(crate) fn depart<W: Wire>(&mut self, now: Instant, tag: Tag, wire: &mut W) -> bool {
        self.now = now;
        self.expire();
        let nobody = Station { mac: [0; 6], vlan: None };
        let mut port = Port { wire, tag, inbound: None, stations: Stations(&self.connections, nobody) };
        // One segment of each socket a round, so that a guest's connections share what room there is.
        while self.interface.poll_egress(now, &mut port, &mut self.sockets) == PollResult::SocketStateChanged {}
        let full = port.wire.room() == 0;
        self.reap();
        full
    }

    /// When [`Stack::depart`] has to be called again if nothing arrives.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Instant> {
        if self.connections.is_empty() {
            return None;
        }
        let farewell = self.connections.values().filter_map(|connection| match connection.stage {
            Stage::HalfOpen { since } => Some(since + handshake()),
            Stage::Orphan { until, .. } => until,
            Stage::Open => None,
        });
        let farewell = if self.half_open + self.orphans > 0 { farewell.min() } else { None };
        let timer = self.interface.poll_at(now, &self.sockets);
        [farewell, timer].into_iter().flatten().min()
    }

    /// The socket of a stream.
    pub(crate) fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// A stream lets go of its connection. Without a goodbye of its own (`shutdown`) the peer hears a reset.
    pub(crate) fn release(&mut self, peer: IpEndpoint, shutdown: bool) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        let socket = self.sockets.get_mut::<Socket<'_>>(connection.handle);
        if !shutdown {
            socket.abort();
        }
        connection.stage = Stage::Orphan { until: None, sending: true };
        self.orphans += 1;
    }

    /// The interface is gone: every stream learns it, nothing is sent any more.
    pub(crate) fn abandon(&mut self) {
        for connection in self.connections.values() {
            self.sockets.get_mut::<Socket<'_>>(connection.handle).abort();
        }
    }

    /// A new SYN may take the place of a connection that is only saying goodbye.
    fn replaceable(&self, connection: &Connection) -> bool {
        let state = self.sockets.get::<Socket<'_>>(connection.handle).state();
        matches!(connection.stage, Stage::Orphan { .. })
            && matches!(
                state,
                State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck | State::TimeWait | State::Closed
            )
    }

    /// Makes a socket for a SYN. `false`: the share is used up.
    fn admit(&mut self, peer: IpEndpoint, station: Station) -> bool {
        if self.half_open >= bounds::HALF_OPEN {
            self.evict_oldest();
        }
        let held = self.connections.len();
        if held - self.half_open >= bounds::OPEN {
            return false;
        }
        let Some(socket) = self.pool.take(held < bounds::GRANTED) else { return false };
        let handle = self.sockets.add(socket);
        self.half_open += 1;
        self.connections.insert(peer, Connection { handle, station, stage: Stage::HalfOpen { since: self.now } });
        true
    }

    /// After a packet of `peer` changed a socket: who is established now, who never will be.
    fn advance(&mut self, peer: IpEndpoint) -> Arrival {
        let Some(connection) = self.connections.get_mut(&peer) else { return Arrival::Absorbed };
        let state = self.sockets.get::<Socket<'_>>(connection.handle).state();
        match (connection.stage, state) {
            (Stage::HalfOpen { .. }, State::Listen | State::Closed) => {
                self.remove(peer);
                Arrival::Absorbed
            }
            (Stage::HalfOpen { .. }, State::SynReceived) => Arrival::Absorbed,
            (Stage::HalfOpen { .. }, _) => {
                connection.stage = Stage::Open;
                self.half_open -= 1;
                Arrival::Established(connection.handle, peer)
            }
            (Stage::Open | Stage::Orphan { .. }, _) => Arrival::Absorbed,
        }
    }

    /// Ends what takes too long. A peer that is still there hears a reset, with the next bytes that are sent.
    fn expire(&mut self) {
        if self.orphans + self.half_open == 0 {
            return;
        }
        let now = self.now;
        for connection in self.connections.values_mut() {
            let socket = self.sockets.get_mut::<Socket<'_>>(connection.handle);
            let late = match &mut connection.stage {
                Stage::HalfOpen { since } => now >= *since + handshake(),
                Stage::Orphan { until, sending } => {
                    let unsent = socket.send_queue() > 0;
                    if until.is_none() || *sending && !unsent {
                        let patience = if unsent { bounds::DELIVERY } else { bounds::GOODBYE };
                        *until = Some(now + duration(patience));
                        *sending = unsent;
                    }
                    until.is_some_and(|until| now >= until)
                }
                Stage::Open => false,
            };
            if late {
                socket.abort();
            }
        }
    }

    /// Whether every answer has arrived.
    pub(crate) fn is_delivered(&self) -> bool {
        let queued = |connection: &Connection| self.sockets.get::<Socket<'_>>(connection.handle).send_queue() > 0;
        !self.connections.values().any(queued)
    }

    /// Removes what has said goodbye.
    fn reap(&mut self) {
        if self.orphans + self.half_open == 0 {
            return;
        }
        let over = |connection: &Connection| {
            let state = self.sockets.get::<Socket<'_>>(connection.handle).state();
            match connection.stage {
                Stage::HalfOpen { .. } => matches!(state, State::Closed | State::Listen),
                // TIME-WAIT keeps a port from being used again too early; ours is the listening side and a SYN on a
                // closing 4-tuple replaces it anyway.
                Stage::Orphan { .. } => matches!(state, State::Closed | State::TimeWait),
                Stage::Open => false,
            }
        };
        let done: Vec<IpEndpoint> =
            self.connections.iter().filter(|(_, connection)| over(connection)).map(|(peer, _)| *peer).collect();
        for peer in done {
            self.remove(peer);
        }
    }

    fn evict_oldest(&mut self) {
        let oldest = self
            .connections
            .iter()
            .filter_map(|(peer, connection)| match connection.stage {
                Stage::HalfOpen { since } => Some((since, *peer)),
                Stage::Open | Stage::Orphan { .. } => None,
            })
            .min_by_key(|(since, _)| *since);
        if let Some((_, peer)) = oldest {
            self.remove(peer);
        }
    }

    fn remove(&mut self, peer: IpEndpoint) {
        let Some(connection) = self.connections.remove(&peer) else { return };
        let smoltcp::socket::Socket::Tcp(socket) = self.sockets.remove(connection.handle);
        self.pool.give(socket);
        match connection.stage {
            Stage::HalfOpen { .. } => self.half_open -= 1,
            Stage::Orphan { .. } => self.orphans -= 1,
            Stage::Open => {}
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let peers: Vec<IpEndpoint> = self.connections.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.remove(peer));
    }
}

fn handshake() -> Duration {
    duration(bounds::HANDSHAKE)
}

pub(crate) fn duration(time: std::time::Duration) -> Duration {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// The two facts about a TCP segment that decide whether it needs a socket.
struct Segment {
    from: IpEndpoint,
    syn: bool,
    ack: bool,
}

impl Segment {
    /// `None` for what is no TCP for our port. Nothing is verified here: smoltcp does that.
    fn peek(packet: &[u8]) -> Option<Self> {
        let ip = Ipv4Packet::new_checked(packet).ok()?;
        if ip.next_header() != IpProtocol::Tcp {
            return None;
        }
        let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
        let from = IpEndpoint::new(IpAddress::Ipv4(ip.src_addr()), tcp.src_port());
        (tcp.dst_port() == METADATA_PORT).then(|| Self { from, syn: tcp.syn(), ack: tcp.ack() })
    }

    fn opens(&self) -> bool {
        self.syn && !self.ack
    }
}
