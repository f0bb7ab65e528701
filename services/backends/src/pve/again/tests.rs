use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use pve_imds_model::datacenter::UserAllow;

use super::*;
use crate::pve::{Settings, Watcher};
use crate::testing::{PveTree, sample_config};

const VMID: u32 = 106;
const USERS_TEXT: &str = "user:root@pam:1:::::\n\npool:lab::106:\npool:prod::107:\n";
const MEMBERS: &str =
    r#"{"nodename":"pve1","version":7,"cluster":{"name":"prod","version":3,"nodes":3,"quorate":1},"nodelist":{}}"#;

fn vmid() -> VmId {
    VmId::new(VMID).unwrap()
}

fn config(tags: &str) -> String {
    format!("{}tags: {tags}\n", sample_config(vmid(), ""))
}

/// A cluster with the VM, and an inventory that has looked once and does not look again.
fn tree() -> (PveTree, Arc<Inventory>, Watcher) {
    let mut tree = PveTree::cluster("pve1").unwrap();
    tree.put(VMID, &config("a")).unwrap();
    tree.put_file(USERS, USERS_TEXT).unwrap();
    tree.put_file(DATACENTER, "registered-tags: a\n").unwrap();
    fs::write(tree.path().join(".members"), MEMBERS).unwrap();
    symlink("nodes/pve1", tree.path().join(LOCAL)).unwrap();
    let settings = Settings { poll: Duration::from_secs(3600), events: false, ..tree.settings() };
    let (inventory, watcher) = Inventory::open(settings).unwrap();
    (tree, inventory, watcher)
}

/// What is seen, in a line; or why not.
async fn seen(inventory: &Inventory) -> String {
    match inventory.again(vmid()).await {
        Ok(Seen { vm, pool, datacenter, quorum }) => format!(
            "{} in {} of {} {quorum:?}",
            vm.tags.join(";"),
            pool.map_or_else(|| "none".to_owned(), |pool| pool.to_string()),
            datacenter.registered_tags.join(";"),
        ),
        Err(unseen) => unseen.to_string(),
    }
}

#[tokio::test]
async fn what_is_seen_is_what_there_is_now() {
    type Change = fn(&mut PveTree);
    for (change, expected) in [
        ((|_| {}) as Change, "a in lab of a Has"),
        (|tree| tree.put(VMID, &config("b;c")).unwrap(), "b;c in lab of a Has"),
        (|tree| tree.put_file(USERS, "pool:prod::106:\n").unwrap(), "a in prod of a Has"),
        (|tree| tree.put_file(USERS, "pool:prod::107:\n").unwrap(), "a in none of a Has"),
        (|tree| tree.put_file(USERS, "").unwrap(), "a in none of a Has"),
        (|tree| tree.remove_file(USERS).unwrap(), "a in none of a Has"),
        (|tree| tree.put_file(DATACENTER, "registered-tags: b\n").unwrap(), "a in lab of b Has"),
        (|tree| tree.put_file(DATACENTER, "").unwrap(), "a in lab of  Has"),
        (|tree| tree.remove_file(DATACENTER).unwrap(), "a in lab of  Has"),
        (|tree| tree.migrate(VMID, "pve2").unwrap(), "a in lab of a Has"),
        (
            |tree| {
                tree.migrate(VMID, "pve2").unwrap();
                tree.put(VMID, &config("d")).unwrap();
            },
            "d in lab of a Has",
        ),
        // Half of something.
        (|tree| tree.put_in_place(VMID, "").unwrap(), "106.conf: it is empty"),
        (|tree| tree.put_in_place(VMID, config("b;c").trim_end()).unwrap(), "106.conf: its last line has no end"),
        (
            |tree| tree.put_in_place(VMID, "# qmclone temporary file\nlock: clone\n").unwrap(),
            "106.conf: nothing of a VM is in it",
        ),
        (|tree| tree.put_file(USERS, "pool:prod::106").unwrap(), "user.cfg: its last line has no end"),
        (|tree| tree.put_file(USERS, "pool:prod::106:\n\0\n").unwrap(), "user.cfg: it is damaged: line 2"),
        (|tree| tree.put_file(DATACENTER, "registered-tags: a;b").unwrap(), "datacenter.cfg: its last line has no end"),
        // What it says is nothing new.
        (|tree| tree.put_file(DATACENTER, "registered-tags: a").unwrap(), "a in lab of a Has"),
        // Nothing of something.
        (|tree| tree.remove(VMID).unwrap(), "106.conf is not there any more"),
        (|tree| _ = tree.stop().unwrap(), "holds neither .vmlist nor nodes nor qemu-server"),
        (
            |tree| {
                fs::remove_file(tree.path().join(USERS)).unwrap();
                fs::create_dir(tree.path().join(USERS)).unwrap();
            },
            "user.cfg is not a regular file",
        ),
        (
            |tree| {
                fs::remove_file(tree.config(VMID)).unwrap();
                assert!(Command::new("mkfifo").arg(tree.config(VMID)).status().unwrap().success());
            },
            "106.conf is not a regular file",
        ),
        // Quorum.
        (|tree| members(tree, &MEMBERS.replace("\"quorate\":1", "\"quorate\":0")), "a in lab of a Lacks"),
        (|tree| members(tree, &MEMBERS.replace(",\"quorate\":1", "")), "a in lab of a Lacks"),
        (|tree| members(tree, r#"{"nodename":"pve1","version":0}"#), "a in lab of a Has"),
        (|tree| members(tree, &MEMBERS[..MEMBERS.len() / 2]), ".members is not what Proxmox writes there"),
        (|tree| members(tree, ""), ".members is not what Proxmox writes there"),
        (
            |tree| {
                fs::remove_file(tree.path().join(".members")).unwrap();
                fs::remove_file(tree.path().join(LOCAL)).unwrap();
            },
            "a in lab of a Has",
        ),
        // A directory's rights can be changed here; a link's only by pmxcfs.
        (|tree| local(tree, 0o555), "a in lab of a Lacks"),
        (|tree| local(tree, 0o755), "a in lab of a Has"),
    ] {
        let (mut tree, inventory, _watcher) = tree();
        assert_eq!(seen(&inventory).await, "a in lab of a Has");
        change(&mut tree);
        let got = seen(&inventory).await;
        assert!(got.contains(expected), "{got}: {expected}");
        assert_eq!(seen(&inventory).await, got, "and again");
    }
}

fn members(tree: &PveTree, text: &str) {
    fs::write(tree.path().join(".members"), text).unwrap();
}

fn local(tree: &PveTree, mode: u32) {
    let local = tree.path().join(LOCAL);
    fs::remove_file(&local).unwrap();
    fs::create_dir(&local).unwrap();
    fs::set_permissions(&local, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn what_the_inventory_has_come_to_believe_counts() {
    let mut tree = PveTree::cluster("pve1").unwrap();
    tree.put(VMID, config("a").trim_end()).unwrap();
    tree.put_file(DATACENTER, "user-tag-access: user-allow=none").unwrap();
    let settings = Settings { poll: Duration::from_secs(3600), events: false, ..tree.settings() };
    let (inventory, _watcher) = Inventory::open(settings).unwrap();
    let seen = inventory.again(vmid()).await.unwrap();
    assert!(Arc::ptr_eq(&seen.vm, &inventory.vm(vmid()).unwrap().vm), "nothing is parsed that is known");
    assert_eq!(seen.datacenter.user_allow, UserAllow::None);
    let again = inventory.again(vmid()).await.unwrap();
    assert!(Arc::ptr_eq(&seen.datacenter, &again.datacenter), "nor that was read before");
    assert_eq!(inventory.again(VmId::new(107).unwrap()).await.unwrap_err(), Unseen::Unknown);
    assert_eq!(Inventory::empty().again(vmid()).await.unwrap_err(), Unseen::Unknown);
}

#[tokio::test]
async fn whoever_hangs_takes_two_places_and_nobody_elses() {
    let (_tree, inventory, _watcher) = tree();
    let turns = inventory.reader().unwrap().turns.clone();
    let (end, hangs) = std::sync::mpsc::channel::<()>();
    let hangs = Arc::new(Mutex::new(hangs));
    // As if a mount held whoever reads.
    let hang = |vmid| {
        let (turns, hangs) = (turns.clone(), Arc::clone(&hangs));
        tokio::spawn(async move { turns.run(vmid, move || _ = hangs.lock().unwrap().recv()).await })
    };
    let held: Vec<_> = [101, 102].map(|vmid| hang(VmId::new(vmid).unwrap())).into();
    tokio::task::yield_now().await;
    let given_up = tokio::time::timeout(Duration::from_millis(50), inventory.again(vmid())).await;
    assert!(given_up.is_err());
    drop(end);
    for held in held {
        held.await.unwrap().unwrap();
    }
    assert_eq!(seen(&inventory).await, "a in lab of a Has");
}
