//! A whole Debian, booted by systemd in QEMU, is set up by the daemon: what a VM's owner sees.
//!
//! In come Notes with user data and Proxmox's option for the network; out comes the machine's own report from its serial
//! console. Nothing in it knows of tests but the user data, which has it report and switch itself off. It finds its seed by
//! the SMBIOS serial number that README has set, over an address that it got by DHCP.

use std::fs;

use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;

use crate::world::Node;
use crate::world::dhcp::Dhcp;
use crate::world::machine::SERIAL;
use crate::world::machine::{boot_system, file, tap};

/// All that the machine says of itself comes in one piece, so that systemd's own lines stand before or behind it.
const USER_DATA: &str = r#"#cloud-config
write_files:
- {path: /etc/written, content: "by its user data\n"}
runcmd:
- - sh
  - -c
  - |
    for name in hostname written address route keys instance seed; do
      echo "=== $name"
      case $name in
        hostname) hostname ;;
        written) cat /etc/written ;;
        address) ip -o addr show scope global | awk '{ print $4 }' ;;
        route) { ip -4 route show default; ip -6 route show default; } | awk '{ print $1, $2, $3 }' ;;
        keys) cat /home/debian/.ssh/authorized_keys ;;
        instance) cat /var/lib/cloud/data/instance-id ;;
        seed) cat /sys/class/dmi/id/product_serial ;;
      esac
      echo "=== end $name "
    done >/run/report
    cat /run/report >/dev/console
power_state: {mode: poweroff}
"#;

#[test]
fn a_debian_with_systemd_is_set_up() {
    assert!(
        include_str!("../../README.md").contains(&format!("serial=$(printf %s '{SERIAL}'")),
        "README's serial number"
    );
    let mut node = Node::new();
    let user_data = USER_DATA.replacen('\n', "\nhostname: of-the-notes\n", 1);
    let notes = format!("<!--#user-data\n{user_data}-->\n");
    // One gateway is a neighbour, the other one is outside its address's prefix.
    let network = "ipconfig0: ip=10.9.9.77/24,gw=10.9.9.1,ip6=2001:db8:9::77/128,gw6=2001:db8:f::1\n";
    node.tree.put(101, &(sample_config(VmId::new(101).unwrap(), &notes) + network)).unwrap();
    let _dhcp = Dhcp::start(&node, 1);
    node.start();
    tap(&node, "tap101i0", 1);
    let console = boot_system(&node.namespace, "tap101i0", 101, &format!("serial={SERIAL}"));
    for (name, expected) in [
        ("hostname", "of-the-notes\n"),
        ("written", "by its user data\n"),
        // The network of the option, in this boot already, and not the lease any more.
        ("address", "10.9.9.77/24\n2001:db8:9::77/128\n"),
        ("route", "default via 10.9.9.1\ndefault via 2001:db8:f::1\n"),
        ("instance", "00000000-0000-4000-8000-000000000101\n"),
        ("seed", &format!("{SERIAL}\n")),
    ] {
        assert_eq!(file(&console, name), Some(expected), "{name}:\n{console}");
    }
    assert!(console.contains("Datasource DataSourceNoCloudNet"), "{console}");
    let log = fs::read_to_string(node.log()).unwrap();
    let from = format!(" tap101i0 {}:", Dhcp::FIRST);
    for name in ["meta-data", "user-data", "vendor-data", "network-config"] {
        let request = format!(" GET /nocloud/{name} 200 ok ");
        assert!(log.lines().any(|line| line.contains(&from) && line.contains(&request)), "{name}:\n{log}");
    }
}

/// In the ways of OpenStack and of EC2: nothing but the machine's SMBIOS fields differs from one to the other, and what
/// EC2's dialect has no word for.
#[test]
fn a_debian_with_systemd_is_set_up_by_openstacks_and_by_ec2s_metadata() {
    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA ops";
    let mut node = Node::new();
    node.start();
    for (vmid, uuid, product, datasource, instance, address, first) in [
        (
            102,
            "00000000-0000-4000-8000-000000000102",
            "OpenStack Nova",
            "DataSourceOpenStack",
            "00000000-0000-4000-8000-000000000102",
            "10.9.9.77/24\n2001:db8:9::77/128\n",
            "GET /openstack 200 ok ",
        ),
        (
            103,
            "ec200000-0000-4000-8000-000000000103",
            "Standard PC",
            "DataSourceEc2",
            "i-08000000000000103",
            // Its metadata names cards, and cloud-init asks for their addresses by DHCP.
            "10.9.9.50/24\n",
            "PUT /latest/api/token 200 ok ",
        ),
    ] {
        let config = sample_config(VmId::new(vmid).unwrap(), &format!("<!--#user-data\n{USER_DATA}-->\n"));
        let config = config.replace("uuid=00000000", &format!("uuid={}", &uuid[..8]));
        let options = "ipconfig0: ip=10.9.9.77/24,gw=10.9.9.1,ip6=2001:db8:9::77/128,gw6=2001:db8:f::1\n\
                       sshkeys: ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIA%20ops%0A\n";
        node.tree.put(vmid, &(config + options)).unwrap();
        // It has one address to give, and each of them is to have it.
        let _dhcp = Dhcp::start(&node, 1);
        let interface = format!("tap{vmid}i0");
        tap(&node, &interface, 1);
        let console = boot_system(&node.namespace, &interface, vmid, &format!("product={product},uuid={uuid}"));
        for (name, expected) in [
            ("hostname", &*format!("vm{vmid}\n")),
            ("written", "by its user data\n"),
            ("address", address),
            ("keys", &format!("{KEY}\n")),
            ("instance", &format!("{instance}\n")),
        ] {
            assert_eq!(file(&console, name), Some(expected), "{datasource}, {name}:\n{console}");
        }
        assert!(console.contains(&format!("Datasource {datasource}")), "{console}");
        let log = fs::read_to_string(node.log()).unwrap();
        let asked: Vec<_> =
            log.lines().filter(|line| line.contains(&format!(" {interface} 1")) && line.contains(" us")).collect();
        assert!(asked.iter().any(|line| line.contains(first)), "{log}");
        println!("{datasource}: {} requests, from {:.23} to {:.23}", asked.len(), asked[0], asked[asked.len() - 1]);
    }
}
