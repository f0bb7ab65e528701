//! Which network interfaces there are, and when one appears or vanishes (rtnetlink(7)).
//!
//! Out comes a stream of [`LinkEvent`]s, present interfaces first; what counts as a birth and a death is decided in
//! [`known`]. Of interfaces that are watched ([`Links::watch`]) every change is told, of the others only those two.
//! Refused are messages that speak of bridge ports (family `AF_BRIDGE`): leaving a bridge is no death.
//!
//! The stream never ends. When the kernel had to drop messages (its buffer for us is finite, and we may be stopped for
//! longer than it lasts), or netlink fails in any other way, the subscription is opened anew, everything is listed
//! anew, and the difference comes as ordinary events followed by [`LinkEvent::Relisted`].

mod known;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, SinkExt, StreamExt};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::proto::{NetlinkCodec, NetlinkFramed};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket, SocketAddr, TokioSocket};
use rustix::net::{SocketType, netdevice, socket, sockopt};

use crate::backoff::Backoff;
use known::{Known, read};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Kernel index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Link kind (`tun`, `veth`, `bridge` …); empty for hardware.
    pub kind: String,
}

impl Interface {
    /// Whether the calling thread's namespace still has an interface of this name and index. Asks the kernel.
    #[must_use]
    pub fn is_there(&self) -> bool {
        is_there(&self.name, self.index)
    }
}

pub(crate) fn is_there(name: &str, index: u32) -> bool {
    let any = socket(rustix::net::AddressFamily::INET, SocketType::DGRAM, None);
    any.and_then(|any| netdevice::name_to_index(any, name)).is_ok_and(|found| found == index)
}

/// What happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// It is there.
    Appeared(Interface),
    /// It is gone.
    Vanished(Interface),
    /// Something about a watched interface is not what it was; its index.
    Changed(u32),
    /// Messages were lost and everything has been listed anew. What seems unchanged may have died meanwhile and been
    /// born again under the same name and index: whatever was tied to it must be looked at.
    Relisted,
}

/// What the kernel may keep for us. A message takes 2 to 4 KiB of it and an interface's birth causes up to six, so this
/// is the birth of some hundred interfaces at once; the usual 208 KiB would be that of ten.
const BUFFER: usize = 4 << 20;

/// An interface that is given an address has not changed, as far as its own messages go.
const GROUPS: [MulticastGroup; 3] = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];

/// Dumps that the kernel calls inconsistent are asked for again, this often. After that the subscription has what they
/// lack.
const DUMPS: usize = 8;

/// Longer than any dump takes. A reply that the kernel had no room for never comes.
const DUMP_TIME: Duration = Duration::from_secs(5);

/// Watches the interfaces of the network namespace it was opened in.
pub struct Links {
    subscription: Subscription,
    known: Known,
    watched: Vec<u32>,
    pending: VecDeque<LinkEvent>,
    /// The subscription's successor. Kept here, so that whoever gives up waiting for an event starts nothing over.
    opening: Option<Opening>,
}

type Opening = futures_util::future::BoxFuture<'static, (Subscription, Vec<Interface>)>;

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("known", &self.known).field("watched", &self.watched).finish_non_exhaustive()
    }
}

impl Links {
    /// Subscribes, then lists: nothing can fall in between. Needs a tokio runtime.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub async fn open() -> io::Result<Self> {
        let (subscription, interfaces) = open().await?;
        let mut known = Known::default();
        let pending = known.all(interfaces).into();
        Ok(Self { subscription, known, watched: Vec::new(), pending, opening: None })
    }

    /// From now on every change of these interfaces is told, and of no others.
    pub fn watch(&mut self, indexes: &[u32]) {
        self.watched = indexes.to_vec();
    }

    /// The next event. Events that are already known come without waiting. May be dropped while it waits.
    pub async fn next(&mut self) -> LinkEvent {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            if let Some(opening) = &mut self.opening {
                let (subscription, interfaces) = opening.await;
                (self.subscription, self.opening) = (subscription, None);
                self.pending.extend(self.known.all(interfaces));
                self.pending.push_back(LinkEvent::Relisted);
                continue;
            }
            let message = self.subscription.next().await;
            self.take(message.map(|message| message.payload));
        }
    }

    /// All interfaces as last heard of, the oldest first. Events that led there and were not asked for yet are taken
    /// back: whoever starts from this list has seen them.
    pub fn present(&mut self) -> Vec<Interface> {
        while let Some(message) = self.subscription.next().now_or_never().filter(|_| self.opening.is_none()) {
            self.take(message.map(|message| message.payload));
        }
        self.pending.clear();
        self.known.interfaces()
    }

    fn take(&mut self, message: Option<NetlinkPayload<RouteNetlinkMessage>>) {
        match message {
            Some(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link))) => self.seen(&link),
            Some(NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link))) => {
                if let Some(interface) = read(&link) {
                    self.pending.extend(self.known.gone(interface.index));
                }
            }
            Some(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address))) => {
                self.changed(address.header.index);
            }
            Some(NetlinkPayload::Overrun(_)) => self.reopen("the kernel dropped messages"),
            None => self.reopen("netlink closed"),
            Some(_) => {}
        }
    }

    fn seen(&mut self, link: &LinkMessage) {
        let Some(interface) = read(link) else { return };
        let index = interface.index;
        let events = self.known.seen(interface);
        let quiet = events.is_empty();
        self.pending.extend(events);
        if quiet {
            self.changed(index);
        }
    }

    /// Of interfaces that are watched.
    fn changed(&mut self, index: u32) {
        let changed = LinkEvent::Changed(index);
        if self.watched.contains(&index) && self.pending.back() != Some(&changed) {
            self.pending.push_back(changed);
        }
    }

    fn reopen(&mut self, why: &'static str) {
        tracing::warn!(why, "events of network interfaces were lost; listing all anew");
        self.opening = Some(Box::pin(open_at_last()));
    }
}

/// Opened, however often that must be tried: those who are served go on being served meanwhile.
async fn open_at_last() -> (Subscription, Vec<Interface>) {
    let mut backoff = Backoff::default();
    loop {
        match open().await {
            Ok(opened) => return opened,
            Err(error) => {
                tracing::error!(%error, "network interfaces cannot be listed; trying again");
                tokio::time::sleep(backoff.wait()).await;
            }
        }
    }
}

type Message = NetlinkMessage<RouteNetlinkMessage>;

/// What a netlink socket hears of all links. A message takes some 14 KiB once it is read, and a thousand of them at once
/// are megabytes that the allocator would keep, so each is read only when it is asked for; until then it waits in the
/// kernel's buffer.
type Subscription = BoxStream<'static, Message>;

type Framed = NetlinkFramed<RouteNetlinkMessage, TokioSocket, NetlinkCodec>;

/// A netlink socket that is a member of these multicast groups (a bit each; rtnetlink(7)).
fn netlink(groups: u32) -> io::Result<Framed> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
    socket.socket_mut().bind(&SocketAddr::new(0, groups))?;
    Ok(Framed::new(socket))
}

/// Subscribes, then lists: nothing can fall in between. Sockets of their own each time: nothing stands in the
/// subscription's buffer that the list's reply would have no room beside.
async fn open() -> io::Result<(Subscription, Vec<Interface>)> {
    let subscription = netlink(GROUPS.iter().fold(0, |bits, group| bits | 1 << (*group as u32 - 1)))?;
    if let Err(error) = sockopt::set_socket_recv_buffer_size_force(subscription.get_ref().socket_ref(), BUFFER) {
        // Without CAP_NET_ADMIN: more overruns, each of which heals.
        tracing::debug!(%error, "the netlink buffer stays as it is");
    }
    let dumped = tokio::time::timeout(DUMP_TIME, list()).await;
    let interfaces = dumped.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "netlink does not answer"))??;
    Ok((subscription.map(|(message, _)| message).boxed(), interfaces))
}

async fn list() -> io::Result<Vec<Interface>> {
    let mut interfaces = Vec::new();
    for _ in 0..DUMPS {
        interfaces.clear();
        if dump(&mut interfaces).await? {
            break;
        }
    }
    Ok(interfaces)
}

/// All links; `false` if they changed while the kernel told of them, so that one may be missing.
async fn dump(interfaces: &mut Vec<Interface>) -> io::Result<bool> {
    let mut netlink = netlink(0)?;
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(LinkMessage::default()));
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.finalize();
    netlink.send((request, SocketAddr::new(0, 0))).await?;
    let mut whole = true;
    while let Some((reply, _)) = netlink.next().await {
        whole &= reply.header.flags & NLM_F_DUMP_INTR == 0;
        match reply.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => interfaces.extend(read(&link)),
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            NetlinkPayload::Done(_) => return Ok(whole),
            _ => {}
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "netlink closed"))
}

/// Whether a message speaks of an interface as the port of a bridge.
fn of_a_port(link: &LinkMessage) -> bool {
    link.header.interface_family == AddressFamily::Bridge
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_subscription_that_ends_is_opened_anew_and_everything_listed() {
        let mut links = Links::open().await.unwrap();
        let before = links.present();
        assert!(before.iter().any(|interface| interface.name == "lo"), "{before:?}");
        links.known.gone(1);
        links.subscription = futures_util::stream::empty().boxed();
        let mut events = Vec::new();
        while events.last() != Some(&LinkEvent::Relisted) {
            events.push(links.next().await);
        }
        // Other tests make and remove interfaces meanwhile; the loopback is ours to have forgotten.
        let lo = |event: &&LinkEvent| matches!(event, LinkEvent::Appeared(interface) if interface.name == "lo");
        assert_eq!(events.iter().filter(lo).count(), 1, "{events:?}");
    }
}
