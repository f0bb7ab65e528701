use pve_imds_model::conf;
use pve_imds_model::tap::TapName;

use super::super::unread::Stance;
use super::*;

fn entry(vmid: u32, config: &str) -> (VmId, Entry) {
    let vmid = VmId::new(vmid).unwrap();
    let parsed = conf::parse(vmid, config.as_bytes());
    let record = Record {
        ready: parsed.is_ready(),
        vm: Arc::new(parsed.vm),
        owner: "pve1".into(),
        path: Path::new("106.conf").into(),
        digest: Digest::of(config.as_bytes()),
        pool: None,
        stale: false,
        warnings: parsed.warnings.into(),
    };
    (vmid, Entry::new(record))
}

fn inventory() -> Inventory {
    let inventory = Inventory::empty();
    inventory.set_stale(None);
    let trouble = Trouble { since: Instant::now(), why: "it is odd".into() };
    let unread = Unread::from_iter([(File::Config(VmId::new(111).unwrap()), Stance::Kept, trouble)]);
    let vms = [
        entry(106, "#canary\nname: web\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\nnet31: e1000\n"),
        entry(107, "name: no-nic\n"),
        entry(108, "# qmclone temporary file\nlock: clone\n"),
        entry(109, ""),
    ];
    inventory.publish(Snapshot { vms: vms.into(), unread, ..Snapshot::default() });
    inventory
}

#[test]
fn an_interface_is_a_vms_or_there_is_a_reason() {
    use UnknownCaller as U;
    let inventory = inventory();
    for (tap, expected) in [
        ("tap106i0", Ok(106)),
        ("tap106i31", Ok(106)),
        ("tap106i1", Err(U::NoSuchNic)),
        ("tap107i0", Err(U::NoSuchNic)),
        ("tap108i0", Err(U::NotReady)),
        ("tap109i0", Err(U::NotReady)),
        ("tap110i0", Err(U::NoConfig)),
        ("tap111i0", Err(U::Unreadable("it is odd".into()))),
    ] {
        let link = Link { tap: TapName::parse(tap).unwrap(), index: 7, since: 0 };
        assert_eq!(inventory.find(link).map(|vm| vm.vmid.get()), expected, "{tap}");
    }
    assert_eq!(Inventory::empty().why_unknown(VmId::new(106).unwrap()), U::NoList, "nothing has been listed yet");
}

#[test]
fn what_is_stale_is_told_to_whom_was_there_before() {
    for (since, kept, lost, expected) in [
        (0, None, None, true),
        (9, None, None, true),
        // Met before the look that found it last.
        (3, Some(4), None, true),
        (3, None, Some(4), true),
        (3, Some(4), Some(5), true),
        (3, Some(5), Some(4), true),
        // Met while that look was under way, or after it.
        (4, Some(4), None, false),
        (4, None, Some(4), false),
        (5, Some(4), None, false),
        (5, None, Some(4), false),
        // The file is lost for longer than the tree.
        (4, Some(4), Some(5), false),
        (4, Some(5), Some(4), false),
        // Before anything was found at all.
        (0, None, Some(0), false),
    ] {
        assert_eq!(answers(since, kept, lost), expected, "{since} {kept:?} {lost:?}");
    }
}

#[test]
fn trouble_is_told_with_its_reason_and_from_when_it_began() {
    let inventory = Inventory::empty();
    let begun = inventory.trouble().unwrap().since;
    inventory.set_stale(Some("no list".into()));
    let trouble = inventory.trouble().unwrap();
    assert_eq!((&*trouble.why, trouble.since), ("no list", begun));
    inventory.set_stale(None);
    assert!(inventory.trouble().is_none());
}

#[test]
fn records_come_by_vmid_and_are_stale_with_the_tree() {
    let inventory = inventory();
    let all =
        |stale| inventory.records().iter().map(|it| (it.vm.vmid.get(), it.stale)).eq((106..110).map(|id| (id, stale)));
    assert!(all(false));
    inventory.set_stale(Some("gone".into()));
    assert!(all(true));
    assert!(inventory.vm(VmId::new(106).unwrap()).is_some_and(|record| record.stale));
}

#[test]
fn every_change_is_told_and_nothing_else() {
    let inventory = inventory();
    let mut changes = inventory.changes();
    inventory.set_stale(None);
    assert!(!changes.has_changed().unwrap());
    inventory.set_stale(Some("gone".into()));
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    inventory.publish(Snapshot::default());
    assert!(changes.has_changed().unwrap());
}

#[test]
fn a_digest_reads_as_proxmox_writes_it() {
    assert_eq!(Digest::of(b"").to_string(), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/qemu-conf");
    for vmid in 1001..=1009 {
        let config = std::fs::read(format!("{cases}/{vmid}.conf")).unwrap();
        let expected = std::fs::read(format!("{cases}/{vmid}.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
        assert_eq!(Digest::of(&config).to_string(), expected["digest"], "{vmid}");
    }
}

#[test]
fn nothing_of_the_notes_is_printed() {
    let inventory = inventory();
    let printed = format!("{inventory:?} {:?} {:?}", inventory.records(), inventory.snapshot.load());
    assert!(!printed.contains("canary"), "{printed}");
}
