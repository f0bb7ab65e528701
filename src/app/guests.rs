//! From interfaces to guests: who appears gets a seat, a stack and a guard; who vanishes leaves them.
//!
//! In come link events, changes of the inventory and the guard's reports; out go seats to the ring and what the guard has
//! to do. An interface that the operator leaves out has no seat and no guard for as long as that holds. A seat is free again
//! only when the kernel sends nobody there any more. Refused: names that are no VM's, and link kinds that the
//! configuration does not accept (anyone with CAP_NET_ADMIN can give a device a tap's name).

mod seating;

use std::collections::HashMap;

use metrics::{counter, describe_counter, describe_gauge, gauge};
use pve_imds_model::exclude::Rule;
use pve_imds_model::request::Link;
use pve_imds_model::tap::TapName;
use pve_imds_transport::bpf::Slot;
use pve_imds_transport::{Guests as Seats, Interface, Seat, Server, Slots};
use tokio::sync::watch;
use tower::ServiceBuilder;

use self::seating::Seating;
use super::admission::Admission;
use super::guard::Report;
use super::stack::{Answers, Node, adopt, stack};
use crate::config::Kinds;

/// Which interfaces are guests'.
#[derive(Clone, Debug)]
pub struct Accept {
    /// Link kinds that may be.
    pub kinds: Kinds,
}

impl Accept {
    /// The tap this interface is, if it is one.
    #[must_use]
    pub fn tap(&self, interface: &Interface) -> Option<TapName> {
        TapName::parse(&interface.name).filter(|_| self.kinds.include(&interface.kind))
    }
}

/// Everyone who has a seat.
#[derive(Debug)]
pub struct Guests<R> {
    accept: Accept,
    admission: Admission,
    node: Node,
    router: R,
    ring: Seats,
    seating: Seating,
    seated: HashMap<u32, Seated>,
    left_out: HashMap<u32, LeftOut>,
    drain: watch::Sender<bool>,
}

/// Someone who has a seat.
#[derive(Clone, Debug)]
pub struct Seated {
    /// On this interface.
    pub interface: Interface,
    /// This one.
    pub seat: Seat,
    link: Link,
    /// It has been guarded since it came.
    guarded: bool,
}

/// Someone whom the operator leaves out.
#[derive(Debug)]
struct LeftOut {
    interface: Interface,
    link: Link,
    rule: Rule,
}

/// What an interface of a guest has to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Guard it and send its questions to this seat.
    Seat(Seat),
    /// Nothing; what was pinned for it goes. The seat that it had, if it had one.
    LeftOut(Option<Seat>),
}

impl<R: Answers> Guests<R> {
    /// Nobody yet.
    #[must_use]
    pub fn new(accept: Accept, admission: Admission, node: Node, router: R, ring: Seats) -> Self {
        let drain = watch::Sender::new(false);
        let seating = Seating::new(Slots::new(Slot::CAPACITY));
        Self { accept, admission, node, router, ring, seating, seated: HashMap::new(), left_out: HashMap::new(), drain }
    }

    /// An interface appeared. If it is a guest's: its place, for the guard. One that is known has the seat it had.
    pub fn appeared(&mut self, interface: &Interface) -> Option<Place> {
        let Some(tap) = self.accept.tap(interface) else {
            if let Some(tap) = TapName::parse(&interface.name) {
                let (kind, accept_kinds) = (&interface.kind, self.accept.kinds.to_string());
                tracing::info!(tap = %interface.name, vmid = %tap.vmid, %kind, accept_kinds, "left alone: no kind of a guest's interface");
            }
            return None;
        };
        let link = self.link(interface).unwrap_or_else(|| self.admission.meet(tap, interface.index));
        match self.admission.rule(link) {
            Some(rule) => Some(self.leave_out(interface, link, rule)),
            None => self.seat(interface, link).map(Place::Seat),
        }
    }

    /// What an interface that was met before is known by.
    fn link(&self, interface: &Interface) -> Option<Link> {
        let seated = self.seated.get(&interface.index).map(|known| (&known.interface, known.link));
        let left_out = || self.left_out.get(&interface.index).map(|known| (&known.interface, known.link));
        seated.or_else(left_out).filter(|(known, _)| *known == interface).map(|(_, link)| link)
    }

    /// The inventory changed: those whose place is another one now.
    pub fn review(&mut self) -> Vec<(Interface, Place)> {
        if !self.admission.leaves_out() {
            return Vec::new();
        }
        let seated = self.seated.values().map(|seated| (&seated.interface, seated.link, None));
        let left_out = self.left_out.values();
        let left_out = left_out.map(|left_out| (&left_out.interface, left_out.link, Some(&left_out.rule)));
        let moved = |(interface, link, before): (&Interface, Link, Option<&Rule>)| {
            let now = self.admission.rule(link);
            (now.as_ref() != before).then(|| interface.clone())
        };
        let mut moved: Vec<Interface> = seated.chain(left_out).filter_map(moved).collect();
        moved.sort_unstable_by_key(|interface| interface.index);
        moved.into_iter().filter_map(|interface| self.appeared(&interface).map(|place| (interface, place))).collect()
    }

    fn leave_out(&mut self, interface: &Interface, link: Link, rule: Rule) -> Place {
        self.seating.gone(interface.index);
        let seat = self.unseat(interface.index).map(|Seated { seat, .. }| seat);
        let left_out = LeftOut { interface: interface.clone(), link, rule };
        tracing::info!(tap = %interface.name, vmid = %link.tap.vmid, index = interface.index, rule = %left_out.rule,
            "excluded: neither guarded nor served");
        self.left_out.insert(interface.index, left_out);
        self.show();
        Place::LeftOut(seat)
    }

    fn seat(&mut self, interface: &Interface, link: Link) -> Option<Seat> {
        if let Some(LeftOut { rule, .. }) = self.left_out.remove(&interface.index) {
            tracing::info!(tap = %interface.name, vmid = %link.tap.vmid, %rule, "excluded no longer");
        }
        if let Some(known) = self.seated.get(&interface.index).filter(|known| known.interface == *interface) {
            return Some(known.seat);
        }
        let Some(seat) = self.seating.take(interface) else {
            let (vmid, seats) = (link.tap.vmid.get(), Slot::CAPACITY);
            tracing::error!(tap = %interface.name, vmid, seats, "all seats are taken; the guest waits for one, not served");
            return None;
        };
        let service = ServiceBuilder::new().map_request(adopt).service(stack(&self.node, link, self.router.clone()));
        let server = Server::new(service, self.drain.subscribe()).within(self.admission.hops(link));
        self.ring.add(seat, Box::new(server));
        self.seated.insert(interface.index, Seated { interface: interface.clone(), seat, link, guarded: false });
        self.show();
        tracing::debug!(tap = %interface.name, index = interface.index, vmid = %link.tap.vmid, "interface appeared");
        Some(seat)
    }

    /// An interface vanished. If it was a guest's: the seat it had, for the guard.
    pub fn vanished(&mut self, interface: &Interface) -> Option<Seat> {
        self.left_out.remove(&interface.index);
        self.seating.gone(interface.index);
        let seated = self.unseat(interface.index);
        self.show();
        let Seated { seat, .. } = seated?;
        tracing::info!(tap = %interface.name, vmid = vmid(interface), index = interface.index, "interface vanished");
        Some(seat)
    }

    fn unseat(&mut self, index: u32) -> Option<Seated> {
        let seated = self.seated.remove(&index)?;
        self.ring.remove(seated.seat);
        Some(seated)
    }

    /// What the guard reports. Out comes whoever has got a place by that.
    pub fn reported(&mut self, report: Report) -> Option<(Interface, Place)> {
        match report {
            Report::Guarded(interface, swap) => {
                counter!(ATTACHMENTS, "result" => "guarded").increment(1);
                // Whoever is guarded once more (after lost events) needs no second line for it.
                let seated = self.seated.get_mut(&interface.index);
                if seated.is_some_and(|seated| !std::mem::replace(&mut seated.guarded, true)) {
                    let vmid = vmid(&interface);
                    tracing::info!(tap = %interface.name, vmid, index = interface.index, ?swap, "guarded and served");
                }
            }
            // A guest that is gone before its turn is no failure.
            Report::Failed(interface, error) if self.seated.contains_key(&interface.index) => {
                counter!(ATTACHMENTS, "result" => "failed").increment(1);
                let (vmid, index) = (vmid(&interface), interface.index);
                tracing::error!(tap = %interface.name, vmid, index, error, "cannot guard the interface; trying again");
            }
            Report::FailedAgain(interface) if self.seated.contains_key(&interface.index) => {
                counter!(ATTACHMENTS, "result" => "failed").increment(1);
            }
            Report::Failed(..) | Report::FailedAgain(_) => {}
            Report::Released(seat) => {
                let interface = self.seating.free(seat)?;
                let place = self.appeared(&interface)?;
                return Some((interface, place));
            }
        }
        None
    }

    /// Everyone, the oldest interface first.
    #[must_use]
    pub fn seated(&self) -> Vec<Seated> {
        let mut seated: Vec<_> = self.seated.values().cloned().collect();
        seated.sort_unstable_by_key(|seated| seated.interface.index);
        seated
    }

    /// Everyone whom the operator leaves out.
    pub fn left_out(&self) -> impl Iterator<Item = &Interface> {
        self.left_out.values().map(|left_out| &left_out.interface)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.seated.len()
    }

    /// Asks every connection to finish the answer it is in.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }

    /// Connections still open. Each holds one receiver, and so does each guest's server.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.drain.receiver_count().saturating_sub(self.seated.len())
    }

    fn show(&self) {
        for (name, count) in [(GUESTS, self.seated.len()), (EXCLUDED, self.left_out.len())] {
            // No node has 2^32 interfaces.
            gauge!(name).set(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
}

/// The VM that the interface's name says.
pub(super) fn vmid(interface: &Interface) -> Option<u32> {
    TapName::parse(&interface.name).map(|tap| tap.vmid.get())
}

const GUESTS: &str = "pve_imds_guests";
const EXCLUDED: &str = "pve_imds_guests_excluded";
const ATTACHMENTS: &str = "pve_imds_guard_attachments_total";

/// Describes the metrics of this room. Call once after the recorder is installed.
pub fn describe() {
    describe_gauge!(GUESTS, "Guest interfaces that have a place in the daemon: served as soon as they are guarded");
    describe_counter!(ATTACHMENTS, "Attempts to guard a guest's interface, by result; a failed one is tried again");
    describe_gauge!(EXCLUDED, "Guest interfaces that the configuration leaves out");
    gauge!(GUESTS).set(0.0);
    gauge!(EXCLUDED).set(0.0);
    // A series that begins with its first failure hides that failure from `increase()`.
    for result in ["guarded", "failed"] {
        counter!(ATTACHMENTS, "result" => result).absolute(0);
    }
}
