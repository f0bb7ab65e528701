//! The interfaces as last heard of, and what a message about one means. Pure.
//!
//! | what happens to an interface | what it is to us |
//! |---|---|
//! | made, moved into this namespace | a birth |
//! | removed, moved to another namespace | a death |
//! | renamed | a death and a birth, under one index: it is another guest's from then on |
//! | another one under an old index or name | a death and a birth; if the death was never heard of, both at once |
//! | down, up, promiscuous, MTU, address, queues | nothing |
//! | onto a bridge, off it, onto another | nothing: the guard sits before the bridge and stays |

use std::collections::{HashMap, HashSet};

use rtnetlink::packet_route::link::{LinkAttribute, LinkInfo, LinkMessage};

use super::{Interface, LinkEvent, of_a_port};

/// The interface a message speaks of. `None` for bridge ports and messages without a name.
pub(super) fn read(link: &LinkMessage) -> Option<Interface> {
    if of_a_port(link) {
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

/// The interfaces as last heard of.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<u32, Interface>);

impl Known {
    /// It is there, as far as this message says.
    pub(super) fn seen(&mut self, interface: Interface) -> Vec<LinkEvent> {
        match self.0.insert(interface.index, interface.clone()) {
            Some(before) if before == interface => Vec::new(),
            Some(before) => vec![LinkEvent::Vanished(before), LinkEvent::Appeared(interface)],
            None => vec![LinkEvent::Appeared(interface)],
        }
    }

    /// It is gone.
    pub(super) fn gone(&mut self, index: u32) -> Option<LinkEvent> {
        self.0.remove(&index).map(LinkEvent::Vanished)
    }

    /// These are all that exist: whatever else was known is gone. Deaths come first, so that seats are free for births.
    pub(super) fn all(&mut self, interfaces: Vec<Interface>) -> Vec<LinkEvent> {
        let present: HashSet<u32> = interfaces.iter().map(|interface| interface.index).collect();
        let mut lost: Vec<u32> = self.0.keys().filter(|index| !present.contains(index)).copied().collect();
        lost.sort_unstable();
        let mut events: Vec<_> = lost.into_iter().filter_map(|index| self.gone(index)).collect();
        events.extend(interfaces.into_iter().flat_map(|interface| self.seen(interface)));
        events
    }

    /// All of them, the oldest first.
    pub(super) fn interfaces(&self) -> Vec<Interface> {
        let mut interfaces: Vec<_> = self.0.values().cloned().collect();
        interfaces.sort_unstable_by_key(|interface| interface.index);
        interfaces
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
        let veth = Interface { kind: "veth".to_owned(), ..link(7, "tap101i0") };
        let another = [Vanished(link(7, "tap101i0")), Appeared(veth.clone())];
        assert_eq!(known.seen(veth.clone()), another, "another kind is another interface");
        assert_eq!(known.gone(7), Some(Vanished(veth)));
        assert_eq!(known.gone(7), None);
    }

    #[test]
    fn a_new_list_reports_the_difference() {
        let mut known = Known::default();
        known.seen(link(1, "a"));
        known.seen(link(2, "b"));
        known.seen(link(4, "d"));
        let events = known.all(vec![link(2, "b"), link(3, "c"), link(4, "e")]);
        let expected = [Vanished(link(1, "a")), Appeared(link(3, "c")), Vanished(link(4, "d")), Appeared(link(4, "e"))];
        assert_eq!(events, expected);
        assert_eq!(known.interfaces(), [link(2, "b"), link(3, "c"), link(4, "e")]);
    }

    #[test]
    fn a_list_of_ten_thousand_is_compared_at_once() {
        let many = |from: u32| (from..from + 10_000).map(|index| link(index, "x")).collect::<Vec<_>>();
        let mut known = Known::default();
        known.all(many(1));
        // Quadratic, this would be 10^8 comparisons: ten seconds here.
        let begun = tokio::time::Instant::now();
        assert_eq!(known.all(many(5001)).len(), 10_000);
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
    }
}
