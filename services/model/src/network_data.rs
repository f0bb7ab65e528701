//! Nova's `network_data.json`: the network of a VM as OpenStack says it.
//!
//! In comes what NoCloud is given, a block of version 1 or 2 or what the options say, and which NICs the VM has; out go
//! Nova's document and the fixed addresses, both of the same reading: a [`Plan`] read by [`first`] or [`second`], laid onto
//! the [`cards`] there are, written by [`nova`]. Refused: a plan for nobody here. A block that cannot be used, or that names
//! no NIC of this VM, is DHCP on each of them: without a link the guest would have no network at all.

mod bond;
mod cards;
mod first;
mod nova;
mod plan;
mod second;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;

use serde_json::Value;

use self::cards::{Laid, Made};
pub(crate) use self::plan::Plan;
use self::plan::{Cidr, Way};
use crate::network;
use crate::site::Site;
use crate::vm::Vm;
use crate::yaml;

impl Plan {
    /// What a text says that was checked to be a network configuration. One that is kept by nobody (with a key that is a
    /// list, with more than [`yaml::MAX_KEPT`] nodes) says nothing.
    pub(crate) fn of_text(text: &[u8]) -> Self {
        yaml::read_last(text).map(|document| Self::of(&document)).unwrap_or_default()
    }

    /// What a document of either version says.
    pub(crate) fn of(document: &Value) -> Self {
        let body = document.get("network").unwrap_or(document);
        match body["version"].as_u64() {
            Some(1) => first::read(body),
            Some(2) => second::read(body),
            _ => Self::default(),
        }
    }
}

/// The document.
#[must_use]
pub fn network_data(vm: &Vm, site: &Site) -> Value {
    with_links(vm, site, nova::document)
}

/// Whether there is a link in it. Without one it would be an order to have no network at all.
#[must_use]
pub fn has_links(vm: &Vm, site: &Site) -> bool {
    with_links(vm, site, |_, laid| !laid.is_empty())
}

/// Does `what` with what is laid of the VM's plan, or of DHCP where that is nothing.
fn with_links<T>(vm: &Vm, site: &Site, what: impl FnOnce(&Plan, &[Laid<'_>]) -> T) -> T {
    let plan = network::plan(vm, site);
    let laid = cards::lay(&plan, &vm.nets);
    if !laid.is_empty() {
        return what(&plan, &laid);
    }
    let dhcp = network::dhcp_plan(&vm.nets);
    what(&dhcp, &cards::lay(&dhcp, &vm.nets))
}

/// The fixed addresses of a NIC, with the length of their prefix, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// IPv4, the first one first.
    pub ipv4: Vec<String>,
    /// IPv6, the first one first.
    pub ipv6: Vec<String>,
}

impl Addresses {
    /// Those of `net<index>` itself, not of VLANs on it or of a bond that it is in.
    #[must_use]
    pub fn of(vm: &Vm, index: u8, site: &Site) -> Self {
        Self::of_each(vm, site).remove(&index).unwrap_or_default()
    }

    /// Those of every NIC that has any, by its index.
    #[must_use]
    pub fn of_each(vm: &Vm, site: &Site) -> BTreeMap<u8, Self> {
        with_links(vm, site, |_, laid| {
            let mut each = BTreeMap::<u8, Self>::new();
            for Laid { kind, link, .. } in laid {
                let Made::Card(index) = kind else { continue };
                for way in &link.ways {
                    let Way::Fixed(cidr) = way else { continue };
                    let Self { ipv4, ipv6 } = each.entry(*index).or_default();
                    if cidr.address.is_ipv4() { ipv4 } else { ipv6 }.push(cidr.to_string());
                }
            }
            each
        })
    }
}

/// The subnet an address with the length of its prefix is in.
#[must_use]
pub fn subnet(cidr: &str) -> Option<String> {
    cidr.contains('/').then(|| Cidr::parse(cidr, None)).flatten().map(|cidr| cidr.network().to_string())
}
