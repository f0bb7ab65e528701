//! The parser against pairs of configurations and what Proxmox makes of them (`tests/fixtures/qemu-conf`), and against
//! everything that could stand in their place.
#![allow(clippy::unwrap_used, missing_docs)]

mod changed;

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use pve_imds_model::conf::{MAX_WARNINGS, parse};
use pve_imds_model::network::{check, network_config};
use pve_imds_model::network_data::network_data;
use pve_imds_model::notes::MAX_REMARKS;
use pve_imds_model::policy::MAX_FLAWS;
use pve_imds_model::site::Site;
use pve_imds_model::vm::{Vm, VmId};
use serde_json::Value;

/// What can be told of blocks beside the lines that do nothing: one thing of each name and of the one with `secrets=`,
/// and all that is wrong with a policy.
const BLOCKS: usize = 4 + MAX_FLAWS;

/// Fields of a pair that the parser does not answer for.
const NOT_OURS: [&str; 3] = ["title", "digest", "warnings"];

fn fixtures() -> Vec<(VmId, PathBuf)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qemu-conf");
    let mut found: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "conf"))
        .map(|path| (VmId::parse(path.file_stem().unwrap().to_str().unwrap()).unwrap(), path))
        .collect();
    found.sort();
    assert!(found.len() >= 9, "the pairs are there");
    found
}

/// What holds for every configuration, whatever its bytes.
fn holds(vmid: VmId, bytes: &[u8]) -> Vm {
    let parsed = parse(vmid, bytes);
    let vm = &parsed.vm;
    assert!(parsed.warnings.len() <= MAX_WARNINGS);
    assert!(parsed.vm.notes.remarks.len() <= MAX_REMARKS + BLOCKS + 1);
    assert!(vm.nets.is_sorted_by(|a, b| a.index < b.index) && vm.nets.iter().all(|nic| nic.index <= 31));
    assert!(vm.nets.is_empty() || parsed.is_ready());
    assert!(!vm.hostname().is_empty() && !vm.instance_id().is_empty());
    parsed.vm
}

/// What holds for every VM: it can be shown, and its guest is given a network configuration that checks, and in Nova's form
/// one of its own cards only, of one at least if it has any.
fn serves(vm: &Vm) {
    serde_json::to_string(vm).unwrap();
    assert_eq!(check(&network_config(vm, &Site::default()).0), Ok(()));
    let document = network_data(vm, &Site::default());
    let links = document["links"].as_array().unwrap();
    let own = |mac: &str| vm.nets.iter().any(|nic| nic.mac.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(mac)));
    for link in links.iter().filter(|link| link["type"] == "phy") {
        assert!(own(link["ethernet_mac_address"].as_str().unwrap()), "{link}");
    }
    assert_eq!(links.is_empty(), vm.nets.iter().all(|nic| nic.mac.is_none()), "{document}");
}

#[test]
fn every_pair_is_read_as_proxmox_reads_it() {
    for (vmid, path) in fixtures() {
        let parsed = parse(vmid, &fs::read(&path).unwrap());
        let mut expected: Value = serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap();
        let warnings = expected["warnings"].as_u64().unwrap();
        for field in NOT_OURS {
            expected.as_object_mut().unwrap().remove(field).unwrap();
        }
        assert_eq!(serde_json::to_value(&parsed.vm).unwrap(), expected, "{}", path.display());
        assert_eq!(parsed.warnings.is_empty(), warnings == 0, "{}: {:?}", path.display(), parsed.warnings);
        assert!(parsed.is_ready());
    }
}

#[test]
fn every_prefix_and_every_changed_byte_is_read() {
    std::thread::scope(|scope| {
        for (vmid, path) in fixtures() {
            scope.spawn(move || {
                let whole = fs::read(&path).unwrap();
                for length in 0..=whole.len() {
                    serves(&holds(vmid, &whole[..length]));
                }
                changed::each_byte(&whole, |text| drop(holds(vmid, text)));
            });
        }
    });
}

fn key() -> impl Strategy<Value = String> {
    let stems = vec![
        "name",
        "tags",
        "smbios1",
        "net",
        "ipconfig",
        "sshkeys",
        "cipassword",
        "nameserver",
        "lock",
        "template",
        "description",
        "delete",
        "memory",
        "args",
        "snapstate",
        "cdrom",
        "#",
        "#<!--#",
        "#\u{feff}<!--#",
        "#<!-#",
        "unknown",
        "Name",
        " name",
    ];
    (prop::sample::select(stems), prop_oneof![Just(String::new()), (0..40_u8).prop_map(|n| n.to_string())])
        .prop_map(|(stem, number)| stem.to_owned() + &number)
}

fn value() -> impl Strategy<Value = String> {
    let pieces = vec![
        "virtio",
        "=",
        ",",
        ";",
        "BC:24:11:00:00:01",
        "bridge=vmbr0",
        "tag=5",
        "uuid=",
        "base64=1",
        "serial=QUJD",
        "11111111-1111-4111-8111-111111111103",
        "ip=dhcp",
        "ip6=auto",
        "gw=10.0.0.1",
        "web",
        " ",
        "\t",
        "\r",
        "%0A",
        "%C3",
        "%",
        "ü",
        "\"",
        "user-data",
        "network-config",
        "-->",
        "prepare",
        "1",
        "on",
    ];
    prop::collection::vec(prop::sample::select(pieces), 0..8).prop_map(|pieces| pieces.concat())
}

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (key(), prop::sample::select(vec![": ", ":", "", " : "]), value()).prop_map(|(k, c, v)| k + c + &v),
        1 => prop::sample::select(vec!["[PENDING]", "[snap]", "[x]", "[special:cloudinit]", "[special:x]", "", "[a]]"])
            .prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_configuration_is_read(lines in prop::collection::vec(line(), 0..24)) {
        serves(&holds(VmId::new(100).unwrap(), lines.join("\n").as_bytes()));
    }

    #[test]
    fn all_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        serves(&holds(VmId::new(100).unwrap(), &bytes));
    }

    /// Sections say nothing about the running VM: cutting them off changes only the lists of their names.
    #[test]
    fn sections_never_leak(main in prop::collection::vec(line(), 0..10), rest in prop::collection::vec(line(), 0..10)) {
        let vmid = VmId::new(100).unwrap();
        let main: Vec<_> = main.into_iter().filter(|line| !line.contains('[') && !line.contains('\n')).collect();
        let alone = parse(vmid, main.join("\n").as_bytes()).vm;
        let mut together = parse(vmid, format!("{}\n[snap]\n{}", main.join("\n"), rest.join("\n")).as_bytes()).vm;
        (together.pending_keys, together.snapshots, together.special_sections) = Default::default();
        prop_assert_eq!(alone, together);
    }
}
