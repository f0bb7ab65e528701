//! What the compiled objects hold, read without a kernel: programs and where they go, maps, globals, the licence.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;

use aya_obj::{Object, ProgramSection};
use pve_imds_bpf::Slot;
use pve_imds_bpf::testing::OBJECTS;

// linux/bpf.h
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const XSKMAP: u32 = 17;

fn object(name: &str) -> Object {
    let (_, bytes) = OBJECTS.into_iter().find(|(object, _)| *object == name).unwrap();
    Object::parse(bytes).unwrap()
}

#[test]
fn four_programs_for_the_hooks_of_the_design() {
    let guard = object("guard");
    let mut names: Vec<_> = guard.programs.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["return_", "shield", "steer"]);
    assert!(guard.programs.values().all(|program| matches!(program.section, ProgramSection::SchedClassifier)));

    let funnel = object("funnel");
    assert_eq!(funnel.programs.keys().collect::<Vec<_>>(), ["funnel"]);
    assert!(matches!(funnel.programs["funnel"].section, ProgramSection::Xdp { frags: true, .. }));
}

#[test]
fn the_maps_have_room_for_every_slot() {
    let slots = u32::from(Slot::CAPACITY);
    let counters = u32::try_from(pve_imds_bpf::Reason::ALL.len()).unwrap();
    for (name, expected) in [
        (
            "guard",
            BTreeMap::from([
                ("buckets".to_owned(), (ARRAY, 4, 8, slots)),
                ("counters".to_owned(), (PERCPU_ARRAY, 4, 8, counters)),
                ("credits".to_owned(), (ARRAY, 4, 8, slots)),
                ("drops".to_owned(), (HASH, 4, 16, slots)),
                ("interfaces".to_owned(), (HASH, 4, 4, slots)),
                ("slots".to_owned(), (ARRAY, 4, 8, slots)),
            ]),
        ),
        (
            "funnel",
            BTreeMap::from([
                ("counters".to_owned(), (PERCPU_ARRAY, 4, 8, counters)),
                ("lost".to_owned(), (ARRAY, 4, 4, slots)),
                ("occupancy".to_owned(), (ARRAY, 4, 12, 1)),
                ("sockets".to_owned(), (XSKMAP, 4, 4, 1)),
            ]),
        ),
    ] {
        let maps: BTreeMap<_, _> = object(name)
            .maps
            .into_iter()
            .filter(|(name, _)| name != ".rodata")
            .map(|(name, map)| (name, (map.map_type(), map.key_size(), map.value_size(), map.max_entries())))
            .collect();
        assert_eq!(maps, expected, "{name}");
    }
}

/// Pages of these are shared with user space.
#[test]
fn what_is_shared_can_be_mapped() {
    const BPF_F_MMAPABLE: u32 = 1 << 10;
    for (name, expected) in [("guard", &["credits"][..]), ("funnel", &["lost", "occupancy"])] {
        let mut maps: Vec<_> = object(name)
            .maps
            .into_iter()
            .filter(|(_, map)| map.map_flags() & BPF_F_MMAPABLE != 0)
            .map(|(name, _)| name)
            .collect();
        maps.sort_unstable();
        assert_eq!(maps, expected, "{name}");
    }
}

#[test]
fn the_loader_can_set_what_it_must() {
    for (name, globals) in
        [("guard", &[("epoch", 1), ("device_a", 4), ("own_mac", 6)][..]), ("funnel", &[("epoch", 1), ("ring", 4)])]
    {
        for &(global, size) in globals {
            let value = vec![0; size];
            let wanted = [(global, (&value[..], true))].into_iter().collect();
            object(name).patch_map_data(wanted).unwrap_or_else(|why| panic!("{name}.{global}: {why}"));
        }
    }
}

#[test]
fn the_kernel_is_told_a_licence_it_knows() {
    for (name, _) in OBJECTS {
        assert_eq!(object(name).license.as_bytes(), b"Dual MIT/GPL", "{name}");
    }
}
