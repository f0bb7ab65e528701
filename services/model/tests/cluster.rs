//! The cluster's own files against what Proxmox makes of them (`tests/fixtures/cluster-files`), and against everything
//! that could stand in their place.
#![allow(clippy::unwrap_used, missing_docs)]

mod changed;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use pve_imds_model::datacenter::Datacenter;
use pve_imds_model::pools::Pools;
use serde_json::{Value, json};

/// Prefix of the addresses that Proxmox draws: nobody here draws any.
const NOT_OURS: &str = "mac_prefix";

fn fixture(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/cluster-files").join(name)).unwrap()
}

fn expected(name: &str) -> Value {
    serde_json::from_slice(&fixture(name)).unwrap()
}

#[test]
fn pools_are_read_as_proxmox_reads_them() {
    let pools = Pools::parse(&fixture("user.cfg"));
    let parents = pools.all().filter_map(|pool| Some((pool.to_string(), pool.parent()?)));
    let read = json!({
        "vm_pool": pools.members().map(|(vmid, pool)| (vmid.to_string(), pool)).collect::<BTreeMap<_, _>>(),
        "pools": pools.all().collect::<Vec<_>>(),
        "parents": parents.collect::<BTreeMap<_, _>>(),
    });
    assert_eq!(read, expected("user.expected.json"));
}

#[test]
fn the_datacenter_is_read_as_proxmox_reads_it() {
    for name in ["datacenter", "datacenter-dup", "datacenter-empty"] {
        let mut expected = expected(&format!("{name}.expected.json"));
        expected.as_object_mut().unwrap().remove(NOT_OURS).unwrap();
        let read = Datacenter::parse(&fixture(&format!("{name}.cfg")));
        assert_eq!(serde_json::to_value(read).unwrap(), expected, "{name}");
    }
}

/// What holds whatever the bytes: every pool has its parents, and a VM is in one that there is.
fn holds(bytes: &[u8]) {
    let pools = Pools::parse(bytes);
    let all: Vec<_> = pools.all().collect();
    assert!(all.iter().filter_map(|pool| pool.parent()).all(|parent| all.contains(&&parent)));
    assert!(pools.members().all(|(vmid, pool)| all.contains(&pool) && pools.of(vmid) == Some(pool)));
    let _ = Datacenter::parse(bytes);
}

#[test]
fn every_prefix_and_every_changed_byte_is_read() {
    for name in ["user.cfg", "datacenter.cfg", "datacenter-dup.cfg"] {
        let whole = fixture(name);
        for length in 0..=whole.len() {
            holds(&whole[..length]);
        }
        changed::each_byte(&whole, holds);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        holds(&bytes);
    }

    #[test]
    fn every_line_is_read(words in prop::collection::vec(prop::sample::select(vec![
        "pool", ":", "/", "a", "..", "106", ",", ";", " ", "\n", "registered-tags", "tag-style", "=", "case-sensitive", "1", "\r", "\0",
    ]), 0..60)) {
        holds(words.concat().as_bytes());
    }
}
