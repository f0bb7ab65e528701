//! The tree itself: what is known of a VM, in EC2's names.
//!
//! In comes a VM; out go directories and leaves. Pure.

use std::collections::BTreeMap;

use pve_imds_model::instance;
use pve_imds_model::network_data::{Addresses, subnet};
use serde_json::json;

use crate::subject::Subject;

/// A place in the tree.
#[derive(Debug)]
pub(super) enum Node {
    /// A value.
    Leaf(String),
    /// Names below, in the order they are listed.
    Directory(Vec<Entry>),
}

/// A name in a directory.
#[derive(Debug)]
pub(super) struct Entry {
    /// As it is asked for.
    name: String,
    /// As it is listed, if not by its name and, of a directory, a slash.
    listed: Option<String>,
    node: Node,
}

impl Node {
    /// What `name` is here.
    pub(super) fn child(self, name: &str) -> Option<Self> {
        match self {
            Self::Directory(entries) => entries.into_iter().find(|entry| entry.name == name).map(|entry| entry.node),
            Self::Leaf(_) => None,
        }
    }

    /// The value, or the names, one a line.
    pub(super) fn show(self) -> String {
        match self {
            Self::Leaf(value) => value,
            Self::Directory(entries) => entries.into_iter().map(Entry::line).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Each directory and each leaf, with its path.
    #[cfg(test)]
    pub(super) fn walk(&self, path: &str, visit: &mut impl FnMut(&str, &Self)) {
        visit(path, self);
        if let Self::Directory(entries) = self {
            entries.iter().for_each(|entry| entry.node.walk(&format!("{path}/{}", entry.name), visit));
        }
    }
}

impl Entry {
    fn line(self) -> String {
        match (self.listed, self.node) {
            (Some(listed), _) => listed,
            (None, Node::Leaf(_)) => self.name,
            (None, Node::Directory(_)) => self.name + "/",
        }
    }
}

/// Builds a directory, sorted.
#[derive(Default)]
struct Directory(Vec<Entry>);

impl Directory {
    fn with(mut self, name: impl Into<String>, node: Node) -> Self {
        self.0.push(Entry { name: name.into(), listed: None, node });
        self
    }

    fn leaf(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(name, Node::Leaf(value.into()))
    }

    /// A leaf of lines; without any it is not there.
    fn lines(self, name: &str, lines: &[String]) -> Self {
        if lines.is_empty() { self } else { self.leaf(name, lines.join("\n")) }
    }

    /// A directory in which there is nothing is not there.
    fn below(self, name: &str, directory: Self) -> Self {
        if directory.0.is_empty() { self } else { self.with(name, directory.done()) }
    }

    fn done(mut self) -> Node {
        self.0.sort_by(|a, b| a.name.cmp(&b.name));
        Node::Directory(self.0)
    }
}

/// `/<version>/meta-data/`
pub(super) fn meta_data(subject: &Subject<'_>) -> Node {
    let Subject { vm, node, .. } = subject;
    let each = Addresses::of_each(vm, &subject.site);
    let own = subject.nic.and_then(|nic| each.get(&nic.index));
    let Addresses { ipv4, ipv6 } = own.cloned().unwrap_or_default();
    let mac = subject.nic.and_then(|nic| nic.mac.as_ref()).map(|mac| mac.to_ascii_lowercase());
    let first = |all: &[String]| all.first().map(|cidr| plain(cidr).to_owned()).into_iter().collect::<Vec<_>>();
    let placement =
        Directory::default().leaf("availability-zone", instance::zone(node)).leaf("region", instance::region(node));
    Directory::default()
        .leaf("ami-launch-index", "0")
        .leaf("hostname", vm.hostname())
        .leaf("instance-id", instance::instance_id(vm))
        .leaf("instance-life-cycle", "on-demand")
        .leaf("instance-type", instance::instance_type(vm.size))
        .lines("ipv6", &first(&ipv6))
        .leaf("local-hostname", vm.hostname())
        .lines("local-ipv4", &first(&ipv4))
        .lines("mac", &mac.into_iter().collect::<Vec<_>>())
        .below("network", network(subject, &each))
        .below("placement", placement)
        .below("public-keys", public_keys(subject))
        .leaf("reservation-id", instance::reservation_id(vm))
        .below("tags", Directory::default().below("instance", tags(subject)))
        .done()
}

/// `/<version>/dynamic/`
pub(super) fn dynamic(subject: &Subject<'_>) -> Node {
    let Subject { vm, node, .. } = subject;
    let document = json!({
        "availabilityZone": instance::zone(node),
        "instanceId": instance::instance_id(vm),
        "instanceType": instance::instance_type(vm.size),
        "region": instance::region(node),
        "version": "2017-09-30",
    });
    let identity = Directory::default().leaf("document", format!("{document:#}"));
    Directory::default().below("instance-identity", identity).done()
}

/// `0=key-0`, but `0/openssh-key`.
fn public_keys(subject: &Subject<'_>) -> Directory {
    let keys = (0..).zip(instance::public_keys(subject.vm, &subject.site)).map(|(number, key): (u32, _)| Entry {
        name: number.to_string(),
        listed: Some(format!("{number}={}", key.name)),
        node: Directory::default().leaf("openssh-key", key.line).done(),
    });
    Directory(keys.collect())
}

fn tags(subject: &Subject<'_>) -> Directory {
    let Subject { vm, node, pool, .. } = subject;
    let facts = instance::facts(vm, node, pool.as_ref()).into_iter();
    facts
        .filter(|(key, _)| key != "Name")
        .fold(Directory::default(), |tags, (key, value)| tags.leaf(key, value))
        .leaf("Name", vm.hostname())
}

/// One directory for each NIC whose address the configuration tells, by that address in lower case.
fn network(subject: &Subject<'_>, each: &BTreeMap<u8, Addresses>) -> Directory {
    let vm = subject.vm;
    let mut macs = Directory::default();
    for (number, nic) in vm.nets.iter().filter(|nic| nic.mac.is_some()).enumerate() {
        let mac = nic.mac.as_deref().unwrap_or_default().to_ascii_lowercase();
        let Addresses { ipv4, ipv6 } = each.get(&nic.index).cloned().unwrap_or_default();
        let strip = |all: &[String]| all.iter().map(|cidr| plain(cidr).to_owned()).collect::<Vec<_>>();
        let subnets = |all: &[String]| all.iter().filter_map(|cidr| subnet(cidr)).collect::<Vec<_>>();
        let interface = Directory::default()
            .leaf("device-number", number.to_string())
            .lines("ipv6s", &strip(&ipv6))
            .leaf("local-hostname", vm.hostname())
            .lines("local-ipv4s", &strip(&ipv4))
            .leaf("mac", mac.clone())
            .lines("subnet-ipv4-cidr-block", &subnets(&ipv4).into_iter().take(1).collect::<Vec<_>>())
            .lines("subnet-ipv6-cidr-blocks", &subnets(&ipv6));
        macs = macs.below(&mac, interface);
    }
    Directory::default().below("interfaces", Directory::default().below("macs", macs))
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
        };
        let mut found = Vec::new();
        meta_data(&subject).walk("", &mut |path, node| {
            let shown = match node {
                Node::Leaf(value) => value.clone(),
                Node::Directory(_) => return,
            };
            found.push(format!("{path}: {shown}"));
        });
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
