//! Nova's `network_data.json`: the network of a VM as OpenStack says it.
//!
//! In comes what the Notes and the options say of the network, and which NICs the VM has; out goes a document with a link
//! for each of these and for no other: cloud-init gives up on one that the guest does not have.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::site::Site;
use crate::vm::Vm;

/// The document.
#[must_use]
pub fn network_data(vm: &Vm, _site: &Site) -> Value {
    let nics = vm.nets.iter().filter_map(|nic| Some((format!("net{}", nic.index), nic.mac.as_ref()?)));
    let links = nics
        .clone()
        .map(|(id, mac)| json!({"id": id, "type": "phy", "ethernet_mac_address": mac.to_ascii_lowercase()}));
    let networks = nics.map(|(id, _)| json!({"id": format!("{id}-dhcp4"), "type": "ipv4_dhcp", "link": id}));
    json!({"links": links.collect::<Vec<_>>(), "networks": networks.collect::<Vec<_>>(), "services": []})
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
    /// Those of `net<index>`.
    #[must_use]
    pub fn of(vm: &Vm, index: u8, site: &Site) -> Self {
        let options = vm.cloudinit.ipconfig.get(&index).filter(|_| site.cloudinit && vm.notes.network_config.is_none());
        let fixed = |key: &str| {
            let value = options.and_then(|options| options.get(key)).filter(|value| value.contains('/'));
            value.cloned().into_iter().collect()
        };
        Self { ipv4: fixed("ip"), ipv6: fixed("ip6") }
    }
}

/// The subnet an address with the length of its prefix is in.
#[must_use]
pub fn subnet(cidr: &str) -> Option<String> {
    let (address, length) = cidr.split_once('/')?;
    let (address, length): (IpAddr, u32) = (address.parse().ok()?, length.parse().ok()?);
    let network: IpAddr = match address {
        IpAddr::V4(address) if length <= 32 => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            std::net::Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) if length <= 128 => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            std::net::Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
        _ => return None,
    };
    Some(format!("{network}/{length}"))
}
