//! The tree itself: what is known of a VM, in EC2's names.
//!
//! In comes a VM; out go directories and leaves, each made when it is walked to. Pure.

use std::borrow::Cow;
use std::iter::once_with;
use std::vec;

use pve_imds_model::instance;
use pve_imds_model::network_data::{Addresses, subnet};
use serde_json::json;

use crate::subject::Subject;

/// A place in the tree. What is below it is made when somebody goes there: of a long way only what stands at it.
pub(super) enum Node<'s> {
    /// A value.
    Leaf(String),
    /// Names below, in the order they are listed.
    Directory(Box<dyn Iterator<Item = Entry<'s>> + 's>),
}

/// A name in a directory, if there is something of that name.
pub(super) struct Entry<'s> {
    /// As it is asked for.
    name: Cow<'s, str>,
    /// As it is listed, if not by its name and, of a directory, a slash.
    listed: Option<String>,
    make: Box<dyn FnOnce() -> Option<Node<'s>> + 's>,
}

impl<'s> Node<'s> {
    /// What `name` is here.
    pub(super) fn child(self, name: &str) -> Option<Self> {
        match self {
            Self::Directory(entries) => {
                let mut named = entries.filter(|entry| entry.name == name);
                named.find_map(|entry| (entry.make)())
            }
            Self::Leaf(_) => None,
        }
    }

    /// The value, or the names, one a line.
    pub(super) fn show(self) -> String {
        match self {
            Self::Leaf(value) => value,
            Self::Directory(entries) => entries.filter_map(Entry::line).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Each leaf, with its path.
    #[cfg(test)]
    pub(super) fn walk(self, path: &str, visit: &mut impl FnMut(&str, &str)) {
        match self {
            Self::Leaf(value) => visit(path, &value),
            Self::Directory(entries) => entries.for_each(|entry| {
                if let Some(node) = (entry.make)() {
                    node.walk(&format!("{path}/{}", entry.name), visit);
                }
            }),
        }
    }
}

impl<'s> Entry<'s> {
    fn new(name: impl Into<Cow<'s, str>>, make: impl FnOnce() -> Option<Node<'s>> + 's) -> Self {
        Self { name: name.into(), listed: None, make: Box::new(make) }
    }

    fn line(self) -> Option<String> {
        let node = (self.make)()?;
        Some(match (self.listed, node) {
            (Some(listed), _) => listed,
            (None, Node::Leaf(_)) => self.name.into_owned(),
            (None, Node::Directory(_)) => self.name.into_owned() + "/",
        })
    }
}

/// Builds a directory, sorted.
#[derive(Default)]
struct Directory<'s>(Vec<Entry<'s>>);

impl<'s> Directory<'s> {
    fn with(mut self, name: impl Into<Cow<'s, str>>, make: impl FnOnce() -> Option<Node<'s>> + 's) -> Self {
        self.0.push(Entry::new(name, make));
        self
    }

    fn leaf<V: Into<String>>(self, name: impl Into<Cow<'s, str>>, value: impl FnOnce() -> V + 's) -> Self {
        self.with(name, || Some(Node::Leaf(value().into())))
    }

    /// A leaf of lines; without any it is not there.
    fn lines(self, name: &'static str, lines: impl FnOnce() -> Vec<String> + 's) -> Self {
        self.with(name, || Some(lines()).filter(|lines| !lines.is_empty()).map(|lines| Node::Leaf(lines.join("\n"))))
    }

    /// A directory in which there is something.
    fn below(self, name: impl Into<Cow<'s, str>>, directory: impl FnOnce() -> Self + 's) -> Self {
        self.with(name, || Some(Node::Directory(Box::new(once_with(directory).flat_map(Self::sorted)))))
    }

    fn sorted(mut self) -> vec::IntoIter<Entry<'s>> {
        self.0.sort_by(|a, b| a.name.cmp(&b.name));
        self.0.into_iter()
    }

    fn done(self) -> Node<'s> {
        Node::Directory(Box::new(self.sorted()))
    }
}

/// `/<version>/meta-data/`
pub(super) fn meta_data<'s>(subject: &'s Subject<'_>) -> Node<'s> {
    let Subject { vm, node, .. } = subject;
    let mac = || subject.nic.and_then(|nic| nic.mac.as_ref()).map(|mac| mac.to_ascii_lowercase());
    let first = |all: &[String]| all.first().map(|cidr| plain(cidr).to_owned()).into_iter().collect();
    let placement = || {
        Directory::default()
            .leaf("availability-zone", || instance::zone(node))
            .leaf("region", || instance::region(node))
    };
    Directory::default()
        .leaf("ami-launch-index", || "0")
        .leaf("hostname", || vm.hostname())
        .leaf("instance-id", || instance::instance_id(vm))
        .leaf("instance-life-cycle", || "on-demand")
        .leaf("instance-type", || instance::instance_type(vm.size))
        .lines("ipv6", move || first(&own(subject).ipv6))
        .leaf("local-hostname", || vm.hostname())
        .lines("local-ipv4", move || first(&own(subject).ipv4))
        .lines("mac", move || mac().into_iter().collect())
        .with("network", || network(subject))
        .below("placement", placement)
        .with("public-keys", || public_keys(subject))
        .leaf("reservation-id", || instance::reservation_id(vm))
        .below("tags", || Directory::default().below("instance", || tags(subject)))
        .done()
}

/// `/<version>/dynamic/`
pub(super) fn dynamic<'s>(subject: &'s Subject<'_>) -> Node<'s> {
    let Subject { vm, node, .. } = subject;
    let document = || {
        let document = json!({
            "availabilityZone": instance::zone(node),
            "instanceId": instance::instance_id(vm),
            "instanceType": instance::instance_type(vm.size),
            "region": instance::region(node),
            "version": "2017-09-30",
        });
        format!("{document:#}")
    };
    let identity = move || Directory::default().leaf("document", document);
    Directory::default().below("instance-identity", identity).done()
}

/// The fixed addresses of the NIC that asks.
fn own(subject: &Subject<'_>) -> Addresses {
    let own = subject.nic.map(|nic| Addresses::of(subject.vm, nic.index, &subject.site));
    own.unwrap_or_default()
}

/// `0=key-0`, but `0/openssh-key`.
fn public_keys<'s>(subject: &'s Subject<'_>) -> Option<Node<'s>> {
    let keys = (0..).zip(instance::public_keys(subject.vm, &subject.site)).map(|(number, key): (u32, _)| {
        let listed = Some(format!("{number}={}", key.name));
        let below = move || Some(Directory::default().leaf("openssh-key", move || key.line).done());
        Entry { listed, ..Entry::new(number.to_string(), below) }
    });
    let mut keys = keys.peekable();
    keys.peek().is_some().then(|| Node::Directory(Box::new(keys)))
}

fn tags<'s>(subject: &'s Subject<'_>) -> Directory<'s> {
    let Subject { vm, node, pool, .. } = subject;
    let facts = instance::facts(vm, node, pool.as_ref()).into_iter();
    facts
        .filter(|(key, _)| key != "Name")
        .fold(Directory::default(), |tags, (key, value)| tags.leaf(key, || value))
        .leaf("Name", || vm.hostname())
}

/// One directory for each NIC whose address the configuration tells, by that address in lower case.
fn network<'s>(subject: &'s Subject<'_>) -> Option<Node<'s>> {
    let mut told = subject.vm.nets.iter().filter(|nic| nic.mac.is_some()).enumerate().peekable();
    told.peek()?;
    let macs = move || {
        told.fold(Directory::default(), |macs, (number, nic)| {
            let mac = nic.mac.as_deref().unwrap_or_default().to_ascii_lowercase();
            macs.below(mac.clone(), move || interface(subject, number, nic.index, mac))
        })
    };
    let interfaces = move || Directory::default().below("macs", macs);
    Some(Directory::default().below("interfaces", interfaces).done())
}

/// The NIC `net<index>`, which is the one of this number among those that are told.
fn interface<'s>(subject: &'s Subject<'_>, number: usize, index: u8, mac: String) -> Directory<'s> {
    let vm = subject.vm;
    let Addresses { ipv4, ipv6 } = Addresses::of(vm, index, &subject.site);
    let strip = |all: &[String]| all.iter().map(|cidr| plain(cidr).to_owned()).collect();
    let subnets = |all: &[String]| all.iter().filter_map(|cidr| subnet(cidr)).collect::<Vec<_>>();
    let (own4, own6) = (subnets(&ipv4), subnets(&ipv6));
    Directory::default()
        .leaf("device-number", move || number.to_string())
        .lines("ipv6s", move || strip(&ipv6))
        .leaf("local-hostname", || vm.hostname())
        .lines("local-ipv4s", move || strip(&ipv4))
        .leaf("mac", || mac)
        .lines("subnet-ipv4-cidr-block", || own4.into_iter().take(1).collect())
        .lines("subnet-ipv6-cidr-blocks", || own6)
}

/// An address without the length of its prefix.
fn plain(cidr: &str) -> &str {
    cidr.split('/').next().unwrap_or(cidr)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pve_imds_model::conf;
    use pve_imds_model::request::Emulation;
    use pve_imds_model::site::Site;
    use pve_imds_model::vm::VmId;

    use super::*;
    use crate::entry::Entered;

    const CONFIG: &str = "name: web-1\ntags: web\nsmbios1: uuid=ec2e1916-9099-7caf-fd21-012345abcdef\n\
                          sshkeys: ssh-ed25519%20AAAA%20ops%0A\n\
                          net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\nnet2: e1000,bridge=vmbr0\n\
                          ipconfig0: ip=192.0.2.5/24,ip6=2001:db8::5/64\n";

    #[test]
    fn every_place_of_the_tree() {
        let vm = Arc::new(conf::parse(VmId::new(106).unwrap(), CONFIG.as_bytes()).vm);
        let subject = Subject {
            vm: &vm,
            link: None,
            nic: vm.nic(0),
            pool: None,
            node: "pve1",
            site: Site::default(),
            emulation: Emulation::Auto,
            entered: &Entered::default(),
            rendered: None,
        };
        let mut found = Vec::new();
        meta_data(&subject).walk("", &mut |path, value| found.push(format!("{path}: {value}")));
        assert_eq!(
            found,
            [
                "/ami-launch-index: 0",
                "/hostname: web-1",
                "/instance-id: i-ffd21012345abcdef",
                "/instance-life-cycle: on-demand",
                "/instance-type: proxmox.1c.512m",
                "/ipv6: 2001:db8::5",
                "/local-hostname: web-1",
                "/local-ipv4: 192.0.2.5",
                "/mac: bc:24:11:00:00:01",
                "/network/interfaces/macs/bc:24:11:00:00:01/device-number: 0",
                "/network/interfaces/macs/bc:24:11:00:00:01/ipv6s: 2001:db8::5",
                "/network/interfaces/macs/bc:24:11:00:00:01/local-hostname: web-1",
                "/network/interfaces/macs/bc:24:11:00:00:01/local-ipv4s: 192.0.2.5",
                "/network/interfaces/macs/bc:24:11:00:00:01/mac: bc:24:11:00:00:01",
                "/network/interfaces/macs/bc:24:11:00:00:01/subnet-ipv4-cidr-block: 192.0.2.0/24",
                "/network/interfaces/macs/bc:24:11:00:00:01/subnet-ipv6-cidr-blocks: 2001:db8::/64",
                "/placement/availability-zone: pve1a",
                "/placement/region: pve1",
                "/public-keys/0/openssh-key: ssh-ed25519 AAAA ops",
                "/reservation-id: r-ffd21012345abcdef",
                "/tags/instance/Name: web-1",
                "/tags/instance/pve:node: pve1",
                "/tags/instance/pve:vmid: 106",
                "/tags/instance/web: ",
            ]
        );
        let keys = meta_data(&subject).child("public-keys").unwrap();
        assert_eq!(keys.show(), "0=key-0");
    }
}
