use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;

use super::super::reload::Loader;
use super::super::verdict::WRITING;
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
    tree.set_quorum(true).unwrap();
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
        (
            |tree| {
                tree.migrate(VMID, "pve2").unwrap();
                tree.put_in_place(VMID, "").unwrap();
            },
            "/nodes/pve2/qemu-server/106.conf: it is empty",
        ),
        // Half of something.
        (|tree| tree.put_file(USERS, "").unwrap(), "user.cfg: it is empty"),
        (|tree| tree.put_in_place(VMID, "").unwrap(), "106.conf: it is empty"),
        (|tree| tree.put_in_place(VMID, config("b;c").trim_end()).unwrap(), "106.conf: its last line has no end"),
        (
            |tree| tree.put_in_place(VMID, "# qmclone temporary file\nlock: clone\n").unwrap(),
            "106.conf: nothing of a VM is in it",
        ),
        (|tree| tree.put_file(USERS, "pool:prod::106").unwrap(), "user.cfg: its last line has no end"),
        (|tree| tree.put_file(USERS, "pool:prod::106:\n\0\n").unwrap(), "user.cfg: it is damaged: line 2"),
        (|tree| tree.put_file(DATACENTER, "registered-tags: a;b").unwrap(), "datacenter.cfg: its last line has no end"),
        // Even where it says nothing new.
        (|tree| tree.put_file(DATACENTER, "registered-tags: a").unwrap(), "datacenter.cfg: its last line has no end"),
        // Nothing of something.
        (|tree| tree.remove(VMID).unwrap(), "106.conf is not there any more"),
        (|tree| _ = tree.stop().unwrap(), ".version: No such file"),
        // Somebody's file lies below the mount point.
        (
            |tree| {
                let stopped = tree.stop().unwrap();
                fs::create_dir_all(tree.config(VMID).parent().unwrap()).unwrap();
                fs::write(tree.config(VMID), config("a")).unwrap();
                drop(stopped);
            },
            ".version: No such file",
        ),
        (|tree| fs::write(tree.path().join(".version"), "{").unwrap(), ".version is not what Proxmox writes there"),
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
        (|tree| tree.set_quorum(false).unwrap(), "a in lab of a Lacks"),
        (|tree| members(tree, MEMBERS), "a in lab of a Has"),
        (|tree| members(tree, &MEMBERS.replace("\"quorate\":1", "\"quorate\":true")), ".members is not what Proxmox"),
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
async fn half_a_file_counts_once_nobody_can_be_writing_it_any_more() {
    const USERS_HALF: &str = "pool:lab::106";
    const SETTINGS_HALF: &str = "user-tag-access: user-allow=none";
    let whole = (config("a"), USERS_TEXT, "registered-tags: a\n");
    for (vm, users, settings, why) in [
        (&*whole.0, whole.1, whole.2, None),
        (whole.0.trim_end(), whole.1, whole.2, Some("106.conf: its last line has no end")),
        (&(config("a") + "\0\n"), whole.1, whole.2, Some("106.conf: it is damaged")),
        (&*whole.0, USERS_HALF, whole.2, Some("user.cfg: its last line has no end")),
        (&*whole.0, whole.1, SETTINGS_HALF, Some("datacenter.cfg: its last line has no end")),
    ] {
        let mut tree = PveTree::cluster("pve1").unwrap();
        tree.put(VMID, vm).unwrap();
        tree.put_file(USERS, users).unwrap();
        tree.put_file(DATACENTER, settings).unwrap();
        let mut loader = Loader::new(Tree::new(tree.path().to_owned(), "pve1"), Arc::default());
        let inventory = Inventory::empty().reading(Again::new(tree.path().to_owned(), "pve1"));
        let mut look = |now| _ = loader.look(1, &[].into(), now).snapshot.map(|snapshot| inventory.publish(snapshot));
        let begun = Instant::now();
        look(begun);
        let got = seen(&inventory).await;
        assert!(got.contains(why.unwrap_or("a in lab")), "{got}: {why:?}");

        look(begun + WRITING);
        let seen = inventory.again(vmid()).await.unwrap();
        assert_eq!(seen.pool.as_ref().map(ToString::to_string).as_deref(), Some("lab"));
        assert!(Arc::ptr_eq(&seen.vm, &inventory.vm(vmid()).unwrap().vm), "nothing is parsed that is known");
        let again = inventory.again(vmid()).await.unwrap();
        assert!(Arc::ptr_eq(&seen.datacenter, &again.datacenter), "nor that was read before");
    }
}

#[tokio::test]
async fn who_is_not_known_is_not_looked_for() {
    let (_tree, inventory, _watcher) = tree();
    assert_eq!(inventory.again(VmId::new(107).unwrap()).await.unwrap_err(), Unseen::Unknown);
    assert_eq!(Inventory::empty().again(vmid()).await.unwrap_err(), Unseen::Unknown);
}

#[test]
fn all_of_it_is_of_one_life_of_the_file_system() {
    type Happens = fn(&mut PveTree);
    let counted: &[fn(&str) -> std::io::Result<PveTree>] = &[PveTree::cluster];
    let uncounted: &[fn(&str) -> std::io::Result<PveTree>] = &[PveTree::uncounted, PveTree::plain];
    for (trees, was_counted, happens, expected) in [
        (counted, true, (|_| {}) as Happens, Ok(())),
        (counted, false, |_| {}, Ok(())),
        (counted, true, |tree| tree.put(VMID, &config("b")).unwrap(), Ok(())),
        (counted, true, |tree| _ = tree.stop().unwrap(), Err(".version: No such file")),
        (counted, false, |tree| _ = tree.stop().unwrap(), Err("was started anew meanwhile")),
        (
            counted,
            true,
            |tree| {
                let stopped = tree.stop().unwrap();
                tree.start(&stopped).unwrap();
            },
            Err("was started anew meanwhile"),
        ),
        (uncounted, false, |_| {}, Ok(())),
        (uncounted, true, |_| {}, Err(".version: No such file")),
        (
            uncounted,
            false,
            |tree| fs::write(tree.path().join(".version"), r#"{"starttime":1}"#).unwrap(),
            Err("was started anew meanwhile"),
        ),
    ] {
        for tree in trees {
            let mut tree = tree("pve1").unwrap();
            let again = Again::new(tree.path().to_owned(), "pve1");
            let got = again.in_one_life(was_counted, || {
                happens(&mut tree);
                Ok(())
            });
            match (&got, expected) {
                (Err(unseen), Err(expected)) => assert!(unseen.to_string().contains(expected), "{unseen}: {expected}"),
                _ => assert_eq!(got.is_ok(), expected.is_ok(), "{got:?} {expected:?}"),
            }
        }
    }
}

#[test]
fn an_empty_file_counts_where_it_may_be_or_nothing_was_said() {
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join(USERS);
    fs::write(&path, "\n").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes.trim_ascii()).into_owned();
    let empty = Err(Unseen::Half(path.clone(), Sign::Blank.to_string()));
    for (known, rows) in [
        (Known::often_blank(), [("", Ok(Arc::default())), ("a", Ok(Arc::default()))]),
        (Known::new(), [("", Ok(Arc::default())), ("a", empty)]),
    ] {
        for (before, expected) in rows {
            assert_eq!(known.read(&path, text, &Arc::new(before.to_owned()), false), expected, "{known:?} {before}");
        }
    }
}

#[test]
fn a_parser_that_fails_says_nothing() {
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join(USERS);
    fs::write(&path, "bad:\n").unwrap();
    let known = Known::new();
    let parse = |bytes: &[u8]| {
        assert_ne!(bytes, b"bad:\n", "as a parser's fault");
        bytes.len()
    };
    let read = || known.read(&path, parse, &Arc::default(), false);
    for _ in 0..2 {
        assert_eq!(read(), Err(Unseen::Half(path.clone(), "the parser failed".into())));
    }
    fs::write(&path, "good:\n").unwrap();
    assert_eq!(read(), Ok(Arc::new(6)));
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
