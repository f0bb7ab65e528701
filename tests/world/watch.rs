//! The places where nothing of the metadata addresses may be heard: bridges, the uplink, and the guests' ears.

use super::capture::Capture;
use super::{Guest, Namespace, Node};

/// What leaves the node. It goes when it is dropped.
pub fn uplink(node: &Node) -> Namespace {
    let uplink = Namespace::new("uplink");
    node.namespace.ip(&format!("link add up0 type veth peer name eth0 netns {}", uplink.name()));
    node.namespace.ip("link set up0 up master vmbr0");
    uplink.ip("link set eth0 up");
    uplink
}

/// A capture at each place.
pub struct Watch(Vec<(String, Capture)>);

impl Watch {
    /// On these interfaces, of whatever speaks to or of a metadata address, and at these guests, of whatever speaks in
    /// its name and is not us. What [`super::rogue::Rogue`] sends itself is not counted on a bridge.
    pub fn start(places: &[(&Namespace, &str)], guests: &[&Guest]) -> Self {
        let places = places
            .iter()
            .map(|(namespace, name)| (format!("{name} of {}", namespace.name()), Capture::start(namespace, name)));
        let guests = guests.iter().map(|guest| (format!("guest {}", guest.vmid), Capture::of_forgeries(guest)));
        Self(places.chain(guests).collect())
    }

    /// For a control: whether each place has heard something with each of these words in it.
    pub fn all_heard(&self, words: &[&str]) -> bool {
        self.0.iter().all(|(_, capture)| {
            let seen = capture.seen();
            words.iter().all(|word| seen.iter().any(|line| line.contains(word)))
        })
    }

    /// Ends it. Nobody heard anything.
    #[track_caller]
    pub fn heard_nothing(self) {
        for (place, capture) in self.0 {
            let seen = capture.stop();
            assert!(seen.is_empty(), "{place} heard {} frames, first: {}", seen.len(), seen[0]);
        }
    }
}
