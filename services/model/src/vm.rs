//! A virtual machine as its configuration describes it.
//!
//! [`crate::conf`] fills a [`Vm`] from bytes; nothing here refuses, except a number that is no VMID.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use crate::cloudinit::{CloudInit, Password};
use crate::notes::Notes;
use crate::policy::{Ec2Tokens, HopLimit};
use crate::request::Emulation;
use crate::tap::plain_number;
pub use crate::weight::Weight;

/// A VM's number: 100 to 999,999,999, unique in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct VmId(u32);

impl VmId {
    /// Reads a VMID as Proxmox writes it: digits, no leading zero, in range.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        plain_number(text).and_then(Self::new)
    }

    /// A VMID, if the number is in Proxmox's range.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (100..=999_999_999).contains(&number).then_some(Self(number))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The main section of a VM's configuration, in the meaning Proxmox gives it. `None` and empty stand for "Proxmox has
/// no value": the key is absent or its value did not pass Proxmox's own check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Vm {
    /// From the file's name.
    pub vmid: VmId,
    /// The DNS name the operator gave.
    pub name: Option<String>,
    /// SMBIOS type 1 UUID as written; compare in lower case.
    pub uuid: Option<String>,
    /// The other SMBIOS type 1 fields, decoded.
    pub smbios: BTreeMap<String, String>,
    /// Tags in file order, as written.
    pub tags: Vec<String>,
    /// NICs in index order.
    pub nets: Vec<Nic>,
    /// Processors and memory.
    #[serde(skip)]
    pub size: Size,
    /// Operating system kind (`l26`, `win11` …).
    pub ostype: Option<String>,
    /// VM generation id.
    pub vmgenid: Option<String>,
    /// Why the configuration is locked (`migrate`, `backup` …); never decides whether the VM is served.
    pub lock: Option<String>,
    /// A template cannot start.
    pub template: bool,
    /// Proxmox's own cloud-init options.
    pub cloudinit: CloudInit,
    /// The decoded Notes, trailing white space removed.
    pub description: Option<String>,
    /// What the Notes say to us; see [`crate::notes`].
    #[serde(skip)]
    pub notes: Notes,
    /// How much its documents are made of, as [`crate::conf`] found it.
    #[serde(skip)]
    pub weight: Weight,
    /// Keys of the `[PENDING]` section.
    pub pending_keys: Vec<String>,
    /// Names of the snapshots.
    pub snapshots: Vec<String>,
    /// Names of the special sections.
    pub special_sections: Vec<String>,
}

impl Vm {
    /// A VM of which nothing but its number is known.
    #[must_use]
    pub fn new(vmid: VmId) -> Self {
        Self {
            vmid,
            name: None,
            uuid: None,
            smbios: BTreeMap::new(),
            tags: Vec::new(),
            nets: Vec::new(),
            size: Size::default(),
            ostype: None,
            vmgenid: None,
            lock: None,
            template: false,
            cloudinit: CloudInit::default(),
            description: None,
            notes: Notes::default(),
            weight: Weight::default(),
            pending_keys: Vec::new(),
            snapshots: Vec::new(),
            special_sections: Vec::new(),
        }
    }

    /// What a guest takes for its identity: the SMBIOS UUID in lower case, else the VMID. A clone has another, an edit
    /// changes nothing. Two VMs can share a UUID (a restore, a hand edit): it selects nothing of another VM's.
    #[must_use]
    pub fn instance_id(&self) -> String {
        self.uuid.as_ref().map_or_else(|| self.vmid.to_string(), |uuid| uuid.to_ascii_lowercase())
    }

    /// The name, or `vm<vmid>`, as QEMU calls a VM that has none.
    #[must_use]
    pub fn hostname(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("vm{}", self.vmid))
    }

    /// The dialects it is shown on a node that shows `node`.
    #[must_use]
    pub fn emulation(&self, node: Emulation) -> Emulation {
        match &self.notes.policy {
            Some(Ok(policy)) => policy.emulation(node),
            _ => node,
        }
    }

    /// Whether its own policy leaves it nothing but EC2's dialect.
    #[must_use]
    pub fn keeps_to_ec2(&self) -> bool {
        matches!(&self.notes.policy, Some(Ok(policy)) if policy.emulation(Emulation::Auto) == Emulation::Ec2)
    }

    /// Whether it must show a session token of EC2's where EC2 is asked.
    #[must_use]
    pub fn requires_tokens(&self) -> bool {
        matches!(&self.notes.policy, Some(Ok(policy)) if policy.ec2_tokens == Ec2Tokens::Required)
    }

    /// How far its answers may travel.
    #[must_use]
    pub fn hop_limit(&self) -> HopLimit {
        match &self.notes.policy {
            Some(Ok(policy)) => policy.hop_limit,
            // Whoever is refused is refused from as near as can be.
            Some(Err(_)) => HopLimit::NEAREST,
            None => HopLimit::default(),
        }
    }

    /// The NIC `net<index>`.
    #[must_use]
    pub fn nic(&self, index: u8) -> Option<&Nic> {
        self.nets.iter().find(|nic| nic.index == index)
    }
}

/// How large a VM is: what its guest has after a cold start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Processor cores of one socket.
    pub cores: u32,
    /// Processor sockets.
    pub sockets: u32,
    /// Memory, MiB.
    pub memory: u32,
}

impl Default for Size {
    /// Proxmox's own defaults.
    fn default() -> Self {
        Self { cores: 1, sockets: 1, memory: 512 }
    }
}

/// A NIC (`netN`), as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// `0` for `net0`; also the number in the tap's name.
    pub index: u8,
    /// Emulated model.
    pub model: String,
    /// Hardware address as written; absent when Proxmox would draw one at each start.
    pub mac: Option<String>,
    /// The bridge; without one the NIC is user-mode NAT and has no tap.
    pub bridge: Option<String>,
    /// VLAN tag the bridge port gets.
    pub tag: Option<u16>,
    /// VLANs passed through, as written.
    pub trunks: Option<String>,
    /// The firewall's extra bridge stands between tap and bridge.
    pub firewall: bool,
    /// The guest sees no carrier.
    pub link_down: bool,
    /// MTU; `1` means the bridge's.
    pub mtu: Option<u32>,
    /// Queue pairs.
    pub queues: Option<u8>,
}

impl Nic {
    /// The hardware address, if the configuration tells it.
    #[must_use]
    pub fn address(&self) -> Option<[u8; 6]> {
        let mut address = [0; 6];
        let mut pairs = self.mac.as_ref()?.split(':');
        for byte in &mut address {
            *byte = u8::from_str_radix(pairs.next()?, 16).ok()?;
        }
        pairs.next().is_none().then_some(address)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_vm_without_a_name_still_has_one() {
        let mut vm = Vm::new(VmId::new(106).unwrap());
        assert_eq!((vm.instance_id(), vm.hostname()), ("106".to_owned(), "vm106".to_owned()));
        vm.uuid = Some("ABCDEF01-2345-4678-9ABC-DEF012345607".to_owned());
        vm.name = Some("Web-01".to_owned());
        assert_eq!(vm.instance_id(), "abcdef01-2345-4678-9abc-def012345607");
        assert_eq!(vm.hostname(), "Web-01");
    }

    #[test]
    fn vmids_are_in_range() {
        for (text, expected) in [("100", Some(100)), ("999999999", Some(999_999_999)), ("99", None), ("0100", None)] {
            assert_eq!(VmId::parse(text).map(VmId::get), expected, "{text}");
        }
    }
}
