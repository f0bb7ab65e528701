//! The network configuration a guest is given (cloud-init's network-config, version 1 or 2).
//!
//! In comes what the Notes hold, which NICs the VM has and what Proxmox's options say of them; out goes always a
//! document: the block as written when it checks; without a block, what the options say; else DHCPv4 on every NIC.

mod addresses;
mod check;

use std::borrow::Cow;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use self::addresses::{addresses, dhcp};
pub use self::check::{BadNetwork, NetworkText, check};
use crate::network_data::Plan;
use crate::notes::BlockError;
use crate::site::Site;
use crate::vm::{Nic, Vm};
use crate::yaml;

/// Where a network configuration came from: for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The block in the Notes.
    Notes,
    /// Proxmox's `ipconfigN`, on the NICs that have one.
    Options,
    /// There is neither.
    Dhcp,
    /// There is a block, and this is why it is not used.
    DhcpInstead(BlockError),
}

/// DHCPv4 on every NIC, matched by MAC (version 2). A NIC without a MAC in the configuration draws one at each start
/// and cannot be matched: it is left out. No interface is renamed.
#[must_use]
pub fn dhcp_default(nets: &[Nic]) -> String {
    write(&dhcp_document(nets))
}

/// The same as a plan.
pub(crate) fn dhcp_plan(nets: &[Nic]) -> Plan {
    Plan::of(&dhcp_document(nets))
}

fn dhcp_document(nets: &[Nic]) -> Value {
    document(nets, |_| dhcp())
}

/// `ipconfigN` for the NICs that have one and DHCPv4 for the others (version 2), with the VM's name servers, or with the
/// node's where addresses are fixed and the VM names none: nobody else could tell them. A server that Proxmox has by its
/// name is left out, because Talos and netplan refuse the whole document for one, and the node's does not take its place:
/// whoever named it wanted no other.
fn from_options(vm: &Vm, site: &Site) -> Value {
    let options = &vm.cloudinit;
    let is_address = |server: &&String| server.parse::<IpAddr>().is_ok();
    let asked: Vec<_> = options.nameserver.iter().filter(is_address).cloned().collect();
    document(&vm.nets, |nic| {
        let mut ethernet = options.ipconfig.get(&nic.index).map_or_else(dhcp, addresses);
        let fixed = ethernet.contains_key("addresses");
        let or_node = |named: &[String], own: &[String], node: &[String]| {
            if named.is_empty() && fixed { node.to_vec() } else { own.to_vec() }
        };
        let servers = or_node(&options.nameserver, &asked, &site.dns.servers);
        let search = or_node(&options.searchdomain, &options.searchdomain, &site.dns.search);
        let lists = [("addresses", servers), ("search", search)].into_iter().filter(|(_, list)| !list.is_empty());
        let lists: Map<String, Value> = lists.map(|(key, list)| (key.to_owned(), json!(list))).collect();
        if !lists.is_empty() {
            ethernet.insert("nameservers".to_owned(), Value::Object(lists));
        }
        ethernet
    })
}

fn document(nets: &[Nic], of: impl Fn(&Nic) -> Map<String, Value>) -> Value {
    let ethernet = |nic: &Nic| {
        let mac = nic.mac.as_ref()?.to_ascii_lowercase();
        let mut ethernet = Map::from_iter([("match".to_owned(), json!({"macaddress": mac}))]);
        ethernet.extend(of(nic));
        Some((format!("net{}", nic.index), Value::Object(ethernet)))
    };
    let ethernets: Map<String, Value> = nets.iter().filter_map(ethernet).collect();
    json!({"version": 2, "ethernets": ethernets})
}

fn write(document: &Value) -> String {
    // Values built here are JSON already, so writing them cannot fail.
    yaml::write(document).unwrap_or_default()
}

/// What the guest is given, and why.
#[must_use]
pub fn network_config<'v>(vm: &'v Vm, site: &Site) -> (Cow<'v, [u8]>, Source) {
    match decide(vm, site) {
        (Given::Block(block), source) => (Cow::Borrowed(block.as_bytes()), source),
        (Given::Made(document), source) => (Cow::Owned(write(&document).into_bytes()), source),
    }
}

/// What the guest is given, as a plan.
pub(crate) fn plan<'v>(vm: &'v Vm, site: &Site) -> Cow<'v, Plan> {
    match decide(vm, site).0 {
        Given::Block(block) => Cow::Borrowed(block.plan()),
        Given::Made(document) => Cow::Owned(Plan::of(&document)),
    }
}

enum Given<'v> {
    Block(&'v NetworkText),
    Made(Value),
}

fn decide<'v>(vm: &'v Vm, site: &Site) -> (Given<'v>, Source) {
    let source = match &vm.notes.network_config {
        Some(Ok(text)) => return (Given::Block(text), Source::Notes),
        Some(Err(error)) => Source::DhcpInstead(error.clone()),
        None if site.cloudinit && shapes_network(vm) => return (Given::Made(from_options(vm, site)), Source::Options),
        None => Source::Dhcp,
    };
    (Given::Made(dhcp_document(&vm.nets)), source)
}

/// Whether the options say anything that plain DHCP does not.
fn shapes_network(vm: &Vm) -> bool {
    let options = &vm.cloudinit;
    !options.ipconfig.is_empty() || !options.nameserver.is_empty() || !options.searchdomain.is_empty()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conf;
    use crate::site::Dns;
    use crate::vm::VmId;

    fn vm(conf: &str) -> Vm {
        conf::parse(VmId::new(100).unwrap(), conf.as_bytes()).vm
    }

    #[test]
    fn the_default_is_dhcp_on_every_nic_with_a_mac() {
        let two = vm("net10: virtio=BC:24:11:00:00:0A\nnet0: e1000=bc:24:11:00:00:01,bridge=vmbr0\nnet1: virtio\n");
        assert_eq!(
            dhcp_default(&two.nets),
            r#"version: 2
ethernets:
  net0:
    match:
      macaddress: "bc:24:11:00:00:01"
    dhcp4: true
  net10:
    match:
      macaddress: "bc:24:11:00:00:0a"
    dhcp4: true
"#
        );
        assert_eq!(dhcp_default(&[]), "version: 2\nethernets: {}\n");
        for nets in [&two.nets[..], &[]] {
            assert_eq!(check(dhcp_default(nets).as_bytes()), Ok(()));
        }
    }

    #[test]
    fn a_good_block_is_served_as_written_and_a_bad_one_not_at_all() {
        let nic = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n";
        let dhcp = dhcp_default(&vm(nic).nets);
        let with = |block: &str| vm(&format!("{nic}#<!--#network-config\n{block}#-->\n"));

        let good = with("#version%3A 2   # as written\n#ethernets%3A {}\n");
        let (text, source) = network_config(&good, &Site::default());
        assert_eq!((&*text, source), (&b"version: 2   # as written\nethernets: {}"[..], Source::Notes));

        for bad in ["#version%3A 3\n", "#{\n", ""] {
            let bad = with(bad);
            let (text, source) = network_config(&bad, &Site::default());
            assert_eq!(&*text, dhcp.as_bytes());
            assert!(matches!(source, Source::DhcpInstead(BlockError { line: 1 | 2, .. })), "{source:?}");
        }
        assert_eq!(network_config(&vm(nic), &Site::default()), (Cow::Borrowed(dhcp.as_bytes()), Source::Dhcp));
    }

    #[test]
    fn options_shape_the_nics_they_name() {
        const NICS: &str = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\nnet1: virtio=BC:24:11:00:00:02,bridge=vmbr0\n";
        let node = Dns { servers: vec!["192.0.2.53".into()], search: vec!["node.example".into()] };
        let site = Site { dns: node.into(), ..Site::default() };
        let dhcp = json!({"dhcp4": true});
        let node_dns = json!({"addresses": ["192.0.2.53"], "search": ["node.example"]});
        for (options, net0, net1) in [
            ("ipconfig0: ip6=auto", json!({"accept-ra": true}), dhcp.clone()),
            (
                "ipconfig0: ip=192.0.2.5/24,gw=192.0.2.1,ip6=2001:db8::5/64,gw6=2001:db8::1",
                json!({
                    "addresses": ["192.0.2.5/24", "2001:db8::5/64"],
                    "gateway4": "192.0.2.1",
                    "gateway6": "2001:db8::1",
                    "nameservers": node_dns,
                }),
                dhcp.clone(),
            ),
            (
                "ipconfig1: ip=192.0.2.5/24\nnameserver: 192.0.2.9 192.0.2.8\nsearchdomain: a.example",
                json!({"dhcp4": true, "nameservers": {"addresses": ["192.0.2.9", "192.0.2.8"], "search": ["a.example"]}}),
                json!({
                    "addresses": ["192.0.2.5/24"],
                    "nameservers": {"addresses": ["192.0.2.9", "192.0.2.8"], "search": ["a.example"]},
                }),
            ),
            // A name server by its name is none.
            (
                "nameserver: 2001:db8::53 ns.example",
                json!({"dhcp4": true, "nameservers": {"addresses": ["2001:db8::53"]}}),
                json!({"dhcp4": true, "nameservers": {"addresses": ["2001:db8::53"]}}),
            ),
            (
                "ipconfig0: ip=192.0.2.5/24\nnameserver: ns.example",
                json!({"addresses": ["192.0.2.5/24"], "nameservers": {"search": ["node.example"]}}),
                dhcp.clone(),
            ),
            // One that is broken costs itself and nothing else.
            (
                "ipconfig0: ip=192.0.2.5\nipconfig1: ip=192.0.2.6/24",
                dhcp.clone(),
                json!({"addresses": ["192.0.2.6/24"], "nameservers": node_dns}),
            ),
            // What is pending is not yet, and what a snapshot says was.
            (
                "ipconfig0: ip6=auto\n[PENDING]\nipconfig0: ip=192.0.2.5/24\n[snap]\nipconfig1: ip=192.0.2.6/24",
                json!({"accept-ra": true}),
                dhcp.clone(),
            ),
        ] {
            let vm = vm(&format!("{NICS}{options}\n"));
            let (text, source) = network_config(&vm, &site);
            assert_eq!(source, Source::Options, "{options}");
            assert_eq!(check(&text), Ok(()), "{options}");
            let document: Value = yaml::read_once(&text).unwrap();
            for (nic, mut expected) in [("net0", net0), ("net1", net1)] {
                let mac = if nic == "net0" { "bc:24:11:00:00:01" } else { "bc:24:11:00:00:02" };
                expected["match"] = json!({"macaddress": mac});
                assert_eq!(document["ethernets"][nic], expected, "{options}: {nic}");
            }
            let off = Site { cloudinit: false, ..site.clone() };
            assert_eq!(network_config(&vm, &off), (Cow::Owned(dhcp_default(&vm.nets).into_bytes()), Source::Dhcp));
        }
        // A block wins wholly.
        let both = vm(&format!("{NICS}ipconfig0: ip=192.0.2.5/24\n#<!--#network-config\n#version%3A 2\n#-->\n"));
        assert_eq!(network_config(&both, &site), (Cow::Borrowed(&b"version: 2"[..]), Source::Notes));
    }
}
