//! A plan, laid onto the NICs that a VM has.
//!
//! In come a plan and the NICs of the configuration; out come the links of it that this guest has or can make, with names
//! of our own, because what a plan calls them may be anything. Refused: cards of nobody here, because cloud-init gives the
//! whole network up for one; a second plan for a NIC; bonds of no such card; VLANs on neither a card nor a bond, whose names
//! cloud-init gets wrong.

use std::collections::BTreeMap;

use super::plan::{Kind, Link, Mac, Names, Plan};
use crate::vm::Nic;

/// A link of this VM.
#[derive(Debug)]
pub(super) struct Laid<'p> {
    /// Unlike any other here.
    pub(super) id: String,
    pub(super) kind: Made,
    pub(super) mac: Mac,
    pub(super) mtu: Option<u16>,
    /// Who is asked for names here.
    pub(super) names: Names,
    pub(super) link: &'p Link,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// `net<index>`.
    Card(u8),
    /// On the link of that id.
    Vlan { on: String, tag: u16 },
    /// Of the cards of these ids.
    Bond(Vec<String>),
}

/// The links, each behind those that it is made of.
pub(super) fn lay<'p>(plan: &'p Plan, nics: &[Nic]) -> Vec<Laid<'p>> {
    let mut table = Table { plan, laid: Vec::new(), places: BTreeMap::new() };
    plan.links.iter().for_each(|link| table.card(link, nics));
    plan.links.iter().for_each(|link| table.bond(link));
    plan.links.iter().for_each(|link| table.vlan(link));
    table.laid
}

struct Table<'p> {
    plan: &'p Plan,
    laid: Vec<Laid<'p>>,
    /// By the plan's names.
    places: BTreeMap<&'p str, usize>,
}

impl<'p> Table<'p> {
    fn put(&mut self, link: &'p Link, id: String, kind: Made, mac: Mac, mtu: Option<u16>) {
        if self.laid.iter().any(|other| other.id == id) {
            return;
        }
        let or = |own: &Names, all: &Names| Names {
            servers: if own.servers.is_empty() { all.servers.clone() } else { own.servers.clone() },
            search: if own.search.is_empty() { all.search.clone() } else { own.search.clone() },
        };
        // A name that stands there twice is the first one's.
        self.places.entry(&link.name).or_insert(self.laid.len());
        self.laid.push(Laid { id, kind, mac, mtu, names: or(&link.names, &self.plan.names), link });
    }

    fn at(&self, name: &str) -> Option<&Laid<'p>> {
        self.places.get(name).and_then(|place| self.laid.get(*place))
    }

    fn card(&mut self, link: &'p Link, nics: &[Nic]) {
        let Kind::Card = link.kind else { return };
        let found = nics.iter().find_map(|nic| {
            let (mac, name) = (Mac(nic.address()?), format!("net{}", nic.index));
            (link.mac.map_or(link.name == name, |wanted| wanted == mac)).then_some((nic, mac, name))
        });
        let Some((nic, mac, id)) = found else { return };
        // To Proxmox an MTU of 1 is the bridge's, whatever that is.
        let own = nic.mtu.and_then(|mtu| u16::try_from(mtu).ok()).filter(|mtu| *mtu > 1);
        self.put(link, id, Made::Card(nic.index), mac, link.mtu.or(own));
    }

    fn bond(&mut self, link: &'p Link) {
        let Kind::Bond { of, .. } = &link.kind else { return };
        let taken =
            |id: &String| self.laid.iter().any(|other| matches!(&other.kind, Made::Bond(of) if of.contains(id)));
        let mut members: Vec<&Laid<'_>> = Vec::new();
        for member in of.iter().filter_map(|name| self.at(name)) {
            let known = members.iter().any(|known| known.id == member.id);
            if matches!(member.kind, Made::Card(_)) && !taken(&member.id) && !known {
                members.push(member);
            }
        }
        let Some(mac) = link.mac.or_else(|| members.first().map(|member| member.mac)) else { return };
        if members.is_empty() {
            return;
        }
        let of = members.iter().map(|member| member.id.clone()).collect();
        let number = self.laid.iter().filter(|other| matches!(other.kind, Made::Bond(_))).count();
        self.put(link, format!("bond{number}"), Made::Bond(of), mac, link.mtu);
    }

    fn vlan(&mut self, link: &'p Link) {
        let Kind::Vlan { on, tag } = &link.kind else { return };
        let Some(below) = self.at(on).filter(|below| !matches!(below.kind, Made::Vlan { .. })) else { return };
        let (on, mac) = (below.id.clone(), link.mac.unwrap_or(below.mac));
        self.put(link, format!("{on}.{tag}"), Made::Vlan { on, tag: *tag }, mac, link.mtu);
    }
}
