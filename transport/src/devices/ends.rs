//! One end of the pair as the kernel describes it, and what is to be thought of it. Pure.

use pve_imds_bpf::words;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use super::{Device, MARK, MTU};

words! {
    /// What somebody has changed and we put right.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Change {
        /// It was set down.
        Down => "down",
        /// It has another MTU.
        Mtu => "mtu",
        /// It answers ARP.
        Arp => "arp",
        /// It has an address, or would make itself one.
        Addresses => "addresses",
        /// IPv6 is on.
        Ipv6 => "ipv6",
        /// It leaves checksums to hardware that is not there.
        Offload => "offload",
        /// It is a port of something.
        Master => "master",
    }
}

words! {
    /// Why a pair cannot be put right and another one must be made.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Loss {
        /// An end was removed, or moved to another namespace, or has come back since.
        Gone => "gone",
        /// An end has another name.
        Renamed => "renamed",
        /// What is there now under our index is not a veth to the other end.
        Parted => "parted",
    }
}

/// One end as the kernel describes it.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) veth: bool,
    /// It has our mark: we have made it, or used it.
    pub(super) marked: bool,
    pub(super) peer: Option<u32>,
    /// The peer's index is one of another namespace.
    pub(super) abroad: bool,
    pub(super) up: bool,
    pub(super) arp: bool,
    pub(super) mtu: u32,
    /// In part from messages of their own.
    pub(super) addresses: bool,
    pub(super) master: bool,
    /// From `/proc/sys`, not in any message.
    pub(super) ipv6: bool,
    /// From ethtool, not in any message.
    pub(super) offload: bool,
}

impl End {
    pub(super) fn read(link: &LinkMessage) -> Self {
        let flags = link.header.flags;
        let mut end = Self {
            index: link.header.index,
            name: String::new(),
            veth: false,
            marked: false,
            peer: None,
            abroad: false,
            up: flags.contains(LinkFlags::Up),
            arp: !flags.contains(LinkFlags::Noarp),
            mtu: 0,
            addresses: false,
            master: false,
            ipv6: false,
            offload: false,
        };
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => end.name.clone_from(name),
                LinkAttribute::Link(peer) => end.peer = Some(*peer),
                LinkAttribute::LinkNetNsId(_) => end.abroad = true,
                LinkAttribute::LinkInfo(infos) => end.veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
                LinkAttribute::IfAlias(alias) => end.marked = alias == MARK,
                LinkAttribute::Mtu(mtu) => end.mtu = *mtu,
                LinkAttribute::Controller(master) => end.master = *master != 0,
                LinkAttribute::AfSpecUnspec(families) => end.addresses = families.iter().any(makes_addresses),
                _ => {}
            }
        }
        end
    }

    pub(super) fn is_veth_to(&self, other: &Self) -> bool {
        self.veth && !self.abroad && self.peer == Some(other.index)
    }

    pub(super) fn device(&self) -> Device {
        Device { name: self.name.clone(), index: self.index }
    }
}

fn makes_addresses(family: &AfSpecUnspec) -> bool {
    let AfSpecUnspec::Inet6(items) = family else { return false };
    items.iter().any(|item| matches!(item, AfSpecInet6::AddrGenMode(mode) if *mode != In6AddrGenMode::None))
}

/// What is wrong with the end that should be `device`, at the other side of `peer`.
pub(super) fn judge(device: &Device, peer: u32, end: &End) -> Result<Vec<Change>, Loss> {
    let losses =
        [(end.name != device.name, Loss::Renamed), (!end.veth || end.abroad || end.peer != Some(peer), Loss::Parted)];
    if let Some((_, loss)) = losses.into_iter().find(|(so, _)| *so) {
        return Err(loss);
    }
    let changes = [
        (!end.up, Change::Down),
        (end.mtu != MTU, Change::Mtu),
        (end.arp, Change::Arp),
        (end.addresses, Change::Addresses),
        (end.ipv6, Change::Ipv6),
        (end.offload, Change::Offload),
        (end.master, Change::Master),
    ];
    Ok(changes.into_iter().filter(|(so, _)| *so).map(|(_, change)| change).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right() -> End {
        End {
            index: 7,
            name: "imds-a".to_owned(),
            veth: true,
            marked: true,
            peer: Some(8),
            abroad: false,
            up: true,
            arp: false,
            mtu: MTU,
            addresses: false,
            master: false,
            ipv6: false,
            offload: false,
        }
    }

    #[test]
    fn each_deviation_has_its_judgement() {
        type Deviate = fn(&mut End);
        let rows: [(Deviate, Result<&[Change], Loss>); 11] = [
            (|_| {}, Ok(&[])),
            (|end| end.name = "other".to_owned(), Err(Loss::Renamed)),
            (|end| end.veth = false, Err(Loss::Parted)),
            (|end| end.abroad = true, Err(Loss::Parted)),
            (|end| end.peer = Some(9), Err(Loss::Parted)),
            (|end| end.up = false, Ok(&[Change::Down])),
            (|end| end.mtu = 1500, Ok(&[Change::Mtu])),
            (|end| (end.arp, end.up) = (true, false), Ok(&[Change::Down, Change::Arp])),
            (|end| (end.addresses, end.ipv6) = (true, true), Ok(&[Change::Addresses, Change::Ipv6])),
            (|end| end.offload = true, Ok(&[Change::Offload])),
            (|end| end.master = true, Ok(&[Change::Master])),
        ];
        let device = Device { name: "imds-a".to_owned(), index: 7 };
        for (number, (deviate, expected)) in rows.into_iter().enumerate() {
            let mut end = right();
            deviate(&mut end);
            assert_eq!(judge(&device, 8, &end), expected.map(<[Change]>::to_vec), "row {number}");
        }
    }
}
