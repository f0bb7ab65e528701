//! Which network interfaces there are, and when one appears or vanishes (rtnetlink(7)).
//!
//! Out comes a stream of [`LinkEvent`]s, present interfaces first. A rename is a death and a birth, a new interface
//! under an old index too. Messages that speak of bridge ports (family `AF_BRIDGE`) are refused: leaving a bridge is
//! no death. When the kernel had to drop messages everything is listed anew and the difference reported.

use std::collections::{HashMap, VecDeque};
use std::io;

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::link::{LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::SocketAddr;
use rtnetlink::{Handle, MulticastGroup};

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

/// What happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// It is there.
    Appeared(Interface),
    /// It is gone.
    Vanished(Interface),
}

/// Watches the interfaces of the network namespace it was opened in.
pub struct Links {
    handle: Handle,
    messages: Messages,
    known: Known,
    pending: VecDeque<LinkEvent>,
}

type Messages = futures_util::stream::BoxStream<'static, (NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>;

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Links {
    /// Subscribes, then lists: nothing can fall in between. Needs a tokio runtime.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub async fn open() -> io::Result<Self> {
        let (connection, handle, messages) = rtnetlink::new_multicast_connection(&[MulticastGroup::Link])?;
        tokio::spawn(connection);
        let mut links = Self { handle, messages: messages.boxed(), known: Known::default(), pending: VecDeque::new() };
        links.relist().await?;
        Ok(links)
    }

    /// The next event. Events that are already known come without waiting.
    ///
    /// # Errors
    /// When netlink is gone for good.
    pub async fn next(&mut self) -> io::Result<LinkEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            let Some((message, _)) = self.messages.next().await else {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "netlink closed"));
            };
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    if let Some(interface) = read(&link) {
                        self.pending.extend(self.known.seen(interface));
                    }
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                    if let Some(interface) = read(&link) {
                        self.pending.extend(self.known.gone(interface.index));
                    }
                }
                NetlinkPayload::Overrun(_) => {
                    tracing::warn!("netlink dropped messages; listing all interfaces anew");
                    self.relist().await?;
                }
                _ => {}
            }
        }
    }

    /// The events already known, without waiting: right after [`Links::open`], all present interfaces.
    pub fn present(&mut self) -> Vec<Interface> {
        let appeared = |event| match event {
            LinkEvent::Appeared(interface) => Some(interface),
            LinkEvent::Vanished(_) => None,
        };
        self.pending.drain(..).filter_map(appeared).collect()
    }

    async fn relist(&mut self) -> io::Result<()> {
        // One by one: a thousand whole messages at once are megabytes that the allocator would keep.
        let mut links = self.handle.link().get().execute();
        let mut interfaces = Vec::new();
        while let Some(link) = links.try_next().await.map_err(io::Error::other)? {
            interfaces.extend(read(&link));
        }
        self.pending.extend(self.known.all(interfaces));
        Ok(())
    }
}

fn read(link: &LinkMessage) -> Option<Interface> {
    if link.header.interface_family == AddressFamily::Bridge {
        return None;
    }
    let mut interface = Interface { index: link.header.index, name: String::new(), kind: String::new() };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::LinkInfo(infos) => {
                let kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                interface.kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(interface).filter(|interface| !interface.name.is_empty())
}

/// The interfaces as last heard of. Pure.
#[derive(Debug, Default)]
struct Known(HashMap<u32, Interface>);

impl Known {
    fn seen(&mut self, interface: Interface) -> Vec<LinkEvent> {
        match self.0.insert(interface.index, interface.clone()) {
            Some(before) if before == interface => Vec::new(),
            Some(before) => vec![LinkEvent::Vanished(before), LinkEvent::Appeared(interface)],
            None => vec![LinkEvent::Appeared(interface)],
        }
    }

    fn gone(&mut self, index: u32) -> Option<LinkEvent> {
        self.0.remove(&index).map(LinkEvent::Vanished)
    }

    /// All that exist: whatever else was known is gone.
    fn all(&mut self, interfaces: Vec<Interface>) -> Vec<LinkEvent> {
        let lost: Vec<u32> =
            self.0.keys().filter(|index| !interfaces.iter().any(|link| link.index == **index)).copied().collect();
        let mut events: Vec<_> = lost.into_iter().filter_map(|index| self.gone(index)).collect();
        events.extend(interfaces.into_iter().flat_map(|interface| self.seen(interface)));
        events
    }
}

#[cfg(test)]
mod tests {
    use super::LinkEvent::{Appeared, Vanished};
    use super::*;

    fn link(index: u32, name: &str) -> Interface {
        Interface { index, name: name.to_owned(), kind: "tun".to_owned() }
    }

    #[test]
    fn each_message_is_the_events_it_means() {
        let mut known = Known::default();
        assert_eq!(known.seen(link(7, "tap100i0")), [Appeared(link(7, "tap100i0"))]);
        assert_eq!(known.seen(link(7, "tap100i0")), [], "a change of state is no birth");
        let renamed = [Vanished(link(7, "tap100i0")), Appeared(link(7, "tap101i0"))];
        assert_eq!(known.seen(link(7, "tap101i0")), renamed, "a rename is a death and a birth");
        assert_eq!(known.gone(7), Some(Vanished(link(7, "tap101i0"))));
        assert_eq!(known.gone(7), None);
    }

    #[test]
    fn a_new_list_reports_the_difference() {
        let mut known = Known::default();
        known.seen(link(1, "a"));
        known.seen(link(2, "b"));
        let events = known.all(vec![link(2, "b"), link(3, "c")]);
        assert_eq!(events, [Vanished(link(1, "a")), Appeared(link(3, "c"))]);
    }
}
