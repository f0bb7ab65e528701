//! Debian's own cloud-init, of Debian 12 (22.4) and of Debian 13 (25.1), boots by NoCloud through a guarded interface.
//!
//! In comes a VM's configuration; out comes what the boot left on the guest's disk ([`chroot`](crate::chroot)). Both releases
//! live through each story, for they fail in different ways: the old one asks eleven times in ten seconds and gives up, the
//! new one waits as `Retry-After` says; only the new one reads a network configuration over HTTP.

use std::time::Instant;

use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;

use crate::chroot::{Machine, Release};
use crate::table::Dialect;
use crate::world::{Guest, Node, PATIENCE, until, until_within};

/// The sample configuration with these Notes and these lines besides.
fn config(vmid: u32, notes: &str, options: &str) -> String {
    sample_config(VmId::new(vmid).unwrap(), notes) + options
}

fn machine(node: &Node, vmid: u32, release: Release) -> Machine {
    Machine::new(node, vmid, release, Dialect::NoCloud)
}

/// One life: what the VM is configured as, and what must have come of it.
struct Story {
    notes: &'static str,
    options: &'static str,
    hostname: Option<&'static str>,
    /// Files and lines of theirs.
    made: &'static [(&'static str, &'static [&'static str])],
    /// Files of the network that Debian 13 wrote down. Debian 12 has DHCP, always.
    network: &'static [(&'static str, &'static [&'static str])],
}

/// One without a block and without options.
const PLAIN: Story = Story { notes: "", options: "", hostname: None, made: &[], network: DHCP };

const ETH0: &str = "etc/systemd/network/10-cloud-init-eth0.network";
const ETH1: &str = "etc/systemd/network/10-cloud-init-eth1.network";
const DHCP: &[(&str, &[&str])] = &[(ETH0, &["[Match]", "Name=eth0", "DHCP=ipv4"])];

const STORIES: &[Story] = &[
    PLAIN,
    // User data does what it says, vendor data too; both names are of the user data.
    Story {
        notes: "<!--#user-data\n#cloud-config\nhostname: of-the-block\nwrite_files:\n\
                - {path: /etc/written, content: \"of the block\\n\"}\nruncmd:\n- echo ran >/etc/ran\n-->\n\
                <!--#vendor-data\n#!/bin/sh\necho vendor >/etc/vendor\n-->\n",
        hostname: Some("of-the-block"),
        made: &[("etc/written", &["of the block"]), ("etc/ran", &["ran"]), ("etc/vendor", &["vendor"])],
        ..PLAIN
    },
    // A script, packed.
    Story {
        notes: "<!--#user-data encoding=base64\nIyEvYmluL3NoCmVjaG8gcGFja2VkID4vZXRjL3JhbgoK\n-->\n",
        made: &[("etc/ran", &["packed"])],
        ..PLAIN
    },
    // Proxmox's own options.
    Story {
        options: "ciuser: ops\nsshkeys: ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIA%20kim%0A\n\
                  cipassword: $5$salt$Gcm6FsVtF/Qa77ZKD.iwsJlCVPY0XSMgLJL0Hnww/c1\n\
                  ipconfig0: ip=192.0.2.10/24,gw=192.0.2.1,ip6=2001:db8::10/64,gw6=2001:db8::1\n\
                  nameserver: 192.0.2.53 2001:db8::53\nsearchdomain: shop.example\n",
        made: &[
            ("home/ops/.ssh/authorized_keys", &["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA kim"]),
            ("etc/shadow", &["ops:$5$salt$Gcm6FsVtF/Qa77ZKD.iwsJlCVPY0XSMgLJL0Hnww/c1:…"]),
            ("etc/sudoers.d/90-cloud-init-users", &["ops ALL=(ALL) NOPASSWD:ALL"]),
            ("etc/hosts", &["127.0.1.1 NAME.shop.example NAME"]),
        ],
        network: &[(
            ETH0,
            &[
                "[Match]",
                "Name=eth0",
                "Address=192.0.2.10/24",
                "Gateway=192.0.2.1",
                "Address=2001:db8::10/64",
                "Gateway=2001:db8::1",
                "DNS=192.0.2.53 2001:db8::53",
                "Domains=shop.example",
            ],
        )],
        ..PLAIN
    },
    // Networks that the owner wrote. The MAC is put in for each VM.
    Story {
        notes: "<!--#network-config\nnetwork:\n  version: 2\n  ethernets:\n    lan:\n      \
                match: {macaddress: \"MAC\"}\n      addresses: [192.0.2.20/24, \"2001:db8::20/64\"]\n      \
                routes: [{to: 0.0.0.0/0, via: 192.0.2.1}]\n      nameservers: {addresses: [192.0.2.53], search: [a.example]}\n-->\n",
        network: &[(
            ETH0,
            &[
                "Name=eth0",
                "Address=192.0.2.20/24",
                "Address=2001:db8::20/64",
                "Gateway=192.0.2.1",
                "DNS=192.0.2.53",
                "Domains=a.example",
            ],
        )],
        ..PLAIN
    },
    Story {
        notes: "<!--#network-config\nversion: 1\nconfig:\n- {type: physical, name: eth0, mac_address: \"MAC\", subnets: \
                [{type: static, address: 192.0.2.30/24, gateway: 192.0.2.1}]}\n- {type: nameserver, address: [192.0.2.54]}\n-->\n",
        network: &[(ETH0, &["Name=eth0", "Address=192.0.2.30/24", "Gateway=192.0.2.1"])],
        ..PLAIN
    },
    // A broken network is none.
    Story { notes: "<!--#network-config\nversion: 3\n-->\n", ..PLAIN },
    // Two NICs, each found by its MAC.
    Story {
        options: "net1: virtio=BC:24:11:FF:FF:01,bridge=vmbr0\nipconfig1: ip=198.51.100.7/24\n",
        network: &[
            (ETH0, &["Name=eth0", "DHCP=ipv4"]),
            (ETH1, &["MACAddress=bc:24:11:ff:ff:01", "Name=eth1", "Address=198.51.100.7/24"]),
        ],
        ..PLAIN
    },
];

#[test]
fn cloud_init_boots_as_its_configuration_says() {
    let mut node = Node::new();
    let numbered = || (200..).zip(STORIES.iter().flat_map(|story| Release::BOTH.map(|release| (story, release))));
    for (vmid, (story, _)) in numbered() {
        let notes = story.notes.replace("MAC", &Guest::mac(vmid));
        node.tree.put(vmid, &config(vmid, &notes, story.options)).unwrap();
    }
    node.start();
    let machines: Vec<_> = numbered().map(|(vmid, (_, release))| machine(&node, vmid, release)).collect();
    for machine in &machines {
        // Its name says nothing: the far end is another card that no configuration speaks of.
        machine.guest.namespace.ip("link add eth1 address bc:24:11:ff:ff:01 type veth peer name eth2");
    }
    let boots = std::thread::scope(|scope| {
        let boots: Vec<_> = machines.iter().map(|machine| scope.spawn(|| machine.boot())).collect();
        boots.into_iter().map(|boot| boot.join().unwrap()).collect::<Vec<_>>()
    });
    for ((machine, boot), (vmid, (story, release))) in machines.iter().zip(&boots).zip(numbered()) {
        println!("{vmid}: {release:?} {:?} {:?}", story.notes, story.options);
        machine.is_whole(&node, boot);
        assert_eq!(boot.hostname(), story.hostname.map_or_else(|| format!("vm{vmid}"), str::to_owned), "{}", boot.said);
        for (path, lines) in story.made {
            let lines: Vec<_> = lines.iter().map(|line| line.replace("NAME", &format!("vm{vmid}"))).collect();
            boot.has_lines(path, &lines.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let mac = format!("MACAddress={}", Guest::mac(vmid));
        match release {
            Release::Debian12 => boot.has_lines("etc/network/interfaces.d/50-cloud-init", &["iface eth0 inet dhcp"]),
            Release::Debian13 => {
                boot.has_lines(ETH0, &[&mac]);
                for (path, lines) in story.network {
                    boot.has_lines(path, lines);
                }
            }
        }
    }
}

#[test]
fn cloud_init_waits_for_a_configuration_that_comes_late() {
    let mut node = Node::new();
    node.start();
    let machines =
        [(201, Release::Debian12), (202, Release::Debian13)].map(|(vmid, release)| machine(&node, vmid, release));
    let boots = std::thread::scope(|scope| {
        let boots = machines.each_ref().map(|machine| scope.spawn(|| machine.boot()));
        // Five seconds, as a migration or a cluster's catching up may take, and less than the ten that 22.4 has.
        for machine in &machines {
            // What each asks for first.
            let first = if machine.release == Release::Debian12 { "meta-data" } else { "network-config" };
            let first = format!("GET /nocloud/{first}");
            until("the guest was refused four times", || (machine.answers(&node, &first, "503") >= 4).then_some(()));
        }
        for machine in &machines {
            node.vm(machine.guest.vmid);
        }
        boots.map(|boot| boot.join().unwrap())
    });
    for (machine, boot) in machines.iter().zip(&boots) {
        machine.is_whole(&node, boot);
        assert_eq!(boot.hostname(), format!("only-for-{}", machine.guest.vmid));
    }
}

#[test]
fn cloud_init_meets_broken_user_data_and_boots_whole_once_it_is_mended() {
    let mut node = Node::new();
    let broken = "<!--#user-data\n#cloud-config\nhostname: half\n";
    for vmid in [201, 202] {
        node.tree.put(vmid, &config(vmid, broken, "")).unwrap();
    }
    node.start();
    let [old, new] =
        [(201, Release::Debian12), (202, Release::Debian13)].map(|(vmid, release)| machine(&node, vmid, release));
    let waited = std::thread::scope(|scope| {
        let begun = Instant::now();
        let waiting = scope.spawn(|| new.boot());
        // The old one gives up and goes on as nobody in particular: another instance, so that the next boot is a first one.
        let gave_up = old.boot();
        assert!(gave_up.datasource().starts_with("DataSourceNone"), "{}", gave_up.said);
        assert_ne!(gave_up.hostname(), "half", "{}", gave_up.said);
        // Longer than anything but waiting without end would take.
        until_within(PATIENCE * 2, "the new one asked for fifteen seconds", || {
            (begun.elapsed().as_secs() >= 15 && new.answers(&node, "GET /nocloud/user-data", "503") > 1).then_some(())
        });
        assert!(!waiting.is_finished(), "it waits");
        let refused = new.answers(&node, "GET /nocloud/user-data", "503");
        assert!(refused as u64 <= begun.elapsed().as_secs() / 2 + 1, "it keeps to Retry-After: {refused}");
        for vmid in [201, 202] {
            node.vm(vmid);
        }
        waiting.join().unwrap()
    });
    for (machine, boot) in [(&new, waited), (&old, old.boot())] {
        machine.is_whole(&node, &boot);
        assert_eq!(boot.hostname(), format!("only-for-{}", machine.guest.vmid), "{}", boot.said);
    }
}

#[test]
fn cloud_init_takes_a_reboot_for_what_it_is_and_another_uuid_for_another_machine() {
    let mut node = Node::new();
    let plan = [(201, Release::Debian12), (202, Release::Debian13)];
    let tell = |node: &mut Node, vmid: u32, word: &str, uuid: &str| {
        let notes = format!("<!--#user-data\n#!/bin/sh\necho {word} >>/etc/told\n-->\n");
        let config = config(vmid, &notes, "").replace("uuid=0000", &format!("uuid={uuid}"));
        node.tree.put(vmid, &config).unwrap();
    };
    for (vmid, _) in plan {
        tell(&mut node, vmid, "once", "0000");
    }
    node.start();
    let machines = plan.map(|(vmid, release)| machine(&node, vmid, release));
    for machine in &machines {
        let vmid = machine.guest.vmid;
        machine.is_whole(&node, &machine.boot());
        // Other user data for the same machine: it is served, and a script runs once in a machine's life.
        for (word, uuid, told) in [("twice", "0000", "once\n"), ("anew", "FFFF", "once\nanew\n")] {
            tell(&mut node, vmid, word, uuid);
            until("the change is seen", || machine.guest.get("/nocloud/user-data").contains(word).then_some(()));
            let boot = machine.boot();
            assert_eq!(boot.file("etc/told").as_deref(), Some(told), "{}", boot.said);
            let instance = format!("{}0000-0000-4000-8000-{vmid:012}\n", uuid.to_lowercase());
            assert_eq!(boot.file("var/lib/cloud/data/instance-id"), Some(instance), "{}", boot.said);
        }
    }
}
