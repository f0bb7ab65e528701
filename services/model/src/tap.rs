//! The name of a guest's interface on the node, and what it says.
//!
//! Proxmox names the host end of NIC `n` of VM `vmid` `tap<vmid>i<n>` (qemu-server, the tap scripts). In comes an
//! interface name; out comes a [`TapName`] or a refusal. Firewall bridges (`fwbr…`, `fwpr…`), containers (`veth…`)
//! and everything else are refused.

use std::fmt;

use crate::vm::VmId;

/// Highest NIC number: Proxmox knows `net0` to `net31`.
pub const MAX_NIC: u8 = 31;

/// A guest interface's name: VM and NIC number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TapName {
    /// The VM it belongs to.
    pub vmid: VmId,
    /// The NIC of that VM: `0` for `net0`.
    pub nic: u8,
}

impl TapName {
    /// Reads `tap106i0`. `None` for any other kind of name, numbers with leading zeros and numbers out of range.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (vmid, nic) = name.strip_prefix("tap")?.split_once('i')?;
        Some(Self {
            vmid: VmId::parse(vmid)?,
            nic: plain_number(nic).filter(|n| *n <= u32::from(MAX_NIC))?.try_into().ok()?,
        })
    }
}

/// A decimal number as Proxmox writes one: digits only, no sign, no leading zero.
#[must_use]
pub fn plain_number(text: &str) -> Option<u32> {
    let canonical = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

impl fmt::Display for TapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tap{}i{}", self.vmid, self.nic)
    }
}

impl fmt::Debug for TapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_taps_of_vms() {
        for (name, expected) in [
            ("tap106i0", Some((106, 0))),
            ("tap100i31", Some((100, 31))),
            ("tap999999999i5", Some((999_999_999, 5))),
            ("tap99i0", None),
            ("tap106i32", None),
            ("tap0106i0", None),
            ("tap106i00", None),
            ("tap106i", None),
            ("tapi0", None),
            ("tap+106i0", None),
            ("tap106i0p", None),
            ("veth106i0", None),
            ("fwpr106p0", None),
            ("tap1000000000i0", None),
            ("", None),
        ] {
            let got = TapName::parse(name).map(|tap| (tap.vmid.get(), tap.nic));
            assert_eq!(got, expected, "{name}");
        }
    }

    #[test]
    fn displays_what_it_read() {
        let tap = TapName::parse("tap106i3").map(|tap| tap.to_string());
        assert_eq!(tap.as_deref(), Some("tap106i3"));
    }
}
