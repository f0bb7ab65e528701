//! Which interfaces the operator leaves out (`guests.exclude`): no guard, no service.
//!
//! In come the rules, and what is known of an interface's VM; out goes the first rule that matches, or none. Everything is
//! compared letter by letter, as it stands in Proxmox's files: leaving a guest out opens it, and what merely resembles a
//! rule must not. So a VM of which nothing is known is never left out, except by its number. Pure.

use std::collections::BTreeSet;
use std::fmt;

use crate::format::is_tag;
use crate::pools::PoolId;
use crate::vm::{Nic, Vm, VmId};

/// The operator's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exclude {
    /// VMs by number, whether their configuration is known or not.
    pub vmids: BTreeSet<VmId>,
    /// VMs by the pool they are in. A pool below is a pool of its own: `lab` says nothing of `lab/a`.
    pub pools: BTreeSet<PoolId>,
    /// VMs by tag.
    pub tags: BTreeSet<Tag>,
    /// NICs by the bridge that their configuration names. Other NICs of the same VM stay.
    pub bridges: BTreeSet<Bridge>,
}

/// A tag as Proxmox takes it: letters, digits, `_`, `.`, `+` and `-`, not beginning with the last three.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(Box<str>);

/// A bridge's name: that of a network interface (netdevice(7)).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bridge(Box<str>);

/// `IFNAMSIZ` without the final NUL.
const INTERFACE_NAME: usize = 15;

impl Tag {
    /// Reads a tag.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_tag(text).then(|| Self(text.into()))
    }

    /// Whether the VM has it, letter by letter.
    #[must_use]
    pub fn is_of(&self, vm: &Vm) -> bool {
        vm.tags.iter().any(|tag| **tag == *self.0)
    }
}

impl Bridge {
    /// Reads a name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let inner = |b: u8| b.is_ascii_graphic() && !b"/:,;=".contains(&b);
        ((1..=INTERFACE_NAME).contains(&text.len()) && text.bytes().all(inner) && ![".", ".."].contains(&text))
            .then(|| Self(text.into()))
    }
}

/// The rule that leaves an interface out. Its text is what the log and `taps` say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `guests.exclude.vmids`
    Vmid(VmId),
    /// `guests.exclude.pools`
    Pool(PoolId),
    /// `guests.exclude.tags`
    Tag(Tag),
    /// `guests.exclude.bridges`
    Bridge(Bridge),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vmid(vmid) => write!(f, "vmid {vmid}"),
            Self::Pool(pool) => write!(f, "pool {pool}"),
            Self::Tag(Tag(tag)) => write!(f, "tag {tag}"),
            Self::Bridge(Bridge(bridge)) => write!(f, "bridge {bridge}"),
        }
    }
}

impl Exclude {
    /// Nobody is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.vmids.is_empty() && self.pools.is_empty() && self.tags.is_empty() && self.bridges.is_empty()
    }

    /// The rule that leaves out NIC `nic` of VM `vmid`; the first of several, in the order of [`Rule`]. `known`: the VM's
    /// configuration and the pool it is in, if there is a configuration that says something.
    #[must_use]
    pub fn rule(&self, vmid: VmId, nic: u8, known: Option<(&Vm, Option<&PoolId>)>) -> Option<Rule> {
        if self.vmids.contains(&vmid) {
            return Some(Rule::Vmid(vmid));
        }
        let (vm, pool) = known?;
        if let Some(pool) = pool.filter(|pool| self.pools.contains(pool)) {
            return Some(Rule::Pool(pool.clone()));
        }
        if let Some(tag) = self.tags.iter().find(|tag| tag.is_of(vm)) {
            return Some(Rule::Tag(tag.clone()));
        }
        let bridge = vm.nic(nic).and_then(|Nic { bridge, .. }| bridge.as_deref())?;
        self.bridges.iter().find(|Bridge(other)| **other == *bridge).cloned().map(Rule::Bridge)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conf;

    const CONFIG: &str =
        "tags: lab;Web\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\nnet1: virtio,bridge=vmbr1\nnet2: e1000\n";

    fn one<T: Ord>(item: Option<T>) -> BTreeSet<T> {
        BTreeSet::from_iter(item)
    }

    #[test]
    fn what_matches_letter_by_letter_is_left_out_and_nothing_else() {
        let id = |number| VmId::new(number).unwrap();
        let vm = conf::parse(id(106), CONFIG.as_bytes()).vm;
        let vmids = |number| Exclude { vmids: one(VmId::new(number)), ..Exclude::default() };
        let pools = |pool| Exclude { pools: one(PoolId::parse(pool)), ..Exclude::default() };
        let tags = |tag| Exclude { tags: one(Tag::parse(tag)), ..Exclude::default() };
        let bridges = |bridge| Exclude { bridges: one(Bridge::parse(bridge)), ..Exclude::default() };
        for (exclude, nic, pool, expected) in [
            (Exclude::default(), 0, Some("lab"), None),
            (vmids(106), 0, None, Some("vmid 106")),
            (vmids(106), 9, None, Some("vmid 106")),
            (vmids(107), 0, None, None),
            (pools("lab"), 0, Some("lab"), Some("pool lab")),
            (pools("lab/a"), 0, Some("lab/a"), Some("pool lab/a")),
            // A pool below is one of its own, and so is one above.
            (pools("lab"), 0, Some("lab/a"), None),
            (pools("lab/a"), 0, Some("lab"), None),
            (pools("Lab"), 0, Some("lab"), None),
            (pools("lab"), 0, None, None),
            (tags("lab"), 0, None, Some("tag lab")),
            (tags("Web"), 0, None, Some("tag Web")),
            (tags("web"), 0, None, None),
            (tags("la"), 0, None, None),
            (bridges("vmbr0"), 0, None, Some("bridge vmbr0")),
            (bridges("vmbr0"), 1, None, None),
            (bridges("vmbr1"), 1, None, Some("bridge vmbr1")),
            // Neither has one.
            (bridges("vmbr0"), 2, None, None),
            (bridges("vmbr0"), 9, None, None),
        ] {
            let pool = pool.map(|pool| PoolId::parse(pool).unwrap());
            let rule = exclude.rule(id(106), nic, Some((&vm, pool.as_ref())));
            assert_eq!(rule.map(|rule| rule.to_string()).as_deref(), expected, "{exclude:?} {nic} {pool:?}");
            // Of whom nothing is known, only the number counts.
            let unknown = exclude.rule(id(106), nic, None).map(|rule| rule.to_string());
            assert_eq!(unknown.as_deref(), expected.filter(|rule| rule.starts_with("vmid")), "{exclude:?}");
        }
    }

    #[test]
    fn names_that_proxmox_does_not_take_are_no_rules() {
        for (tag, valid) in
            [("lab", true), ("_a.b+c-d", true), ("0", true), ("", false), ("-a", false), ("a b", false), ("a;b", false)]
        {
            assert_eq!(Tag::parse(tag).is_some(), valid, "{tag:?}");
        }
        for (bridge, valid) in [
            ("vmbr0", true),
            ("fifteen-letters", true),
            ("sixteen--letters", false),
            ("", false),
            ("a/b", false),
            ("a,b", false),
            ("a b", false),
            ("..", false),
        ] {
            assert_eq!(Bridge::parse(bridge).is_some(), valid, "{bridge:?}");
        }
    }
}
