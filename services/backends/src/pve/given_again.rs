//! Who is answered while a file cannot be read: the table of VMIDs that may have been given to another VM.
//!
//! One interface was there at the last look, one came after it. Whatever becomes of the file between that look and the
//! next, nobody is told what another VM's configuration says.

use std::fs;
use std::sync::Arc;

use pve_imds_model::chain;
use pve_imds_model::request::{Directory, Link};
use pve_imds_model::tap::TapName;
use tokio::time::Instant;

use super::files::Tree;
use super::inventory::Inventory;
use super::reload::Loader;
use crate::testing::{PveTree, Stopped};

/// A tree, and an inventory that is made to look.
struct Node {
    pve: PveTree,
    stopped: Option<Stopped>,
    loader: Loader,
    inventory: Inventory,
}

const VMID: u32 = 106;

fn config(name: &str) -> String {
    format!("name: {name}\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n")
}

impl Node {
    /// That serves a VM `a`.
    fn new(mut pve: PveTree) -> Self {
        pve.put(VMID, &config("a")).unwrap();
        let loader = Loader::new(Tree::new(pve.path().to_owned(), "pve1"), Arc::default());
        let mut node = Self { pve, stopped: None, loader, inventory: Inventory::empty() };
        node.look();
        node
    }

    fn look(&mut self) {
        let number = self.inventory.begin();
        let look = self.loader.look(number, &[].into(), Instant::now());
        if let Some(snapshot) = look.snapshot {
            self.inventory.publish(snapshot);
        }
        if look.failed.is_none() {
            self.inventory.confirm(number);
        }
        self.inventory.set_stale(look.failed.as_ref().map(|error| chain(error)));
    }

    fn meet(&self, index: u32) -> Link {
        Link { tap: TapName::parse("tap106i0").unwrap(), index, since: self.inventory.meet() }
    }

    /// The name of the VM that `link` is taken for.
    fn tells(&self, link: Link) -> String {
        let told = self.inventory.find(link);
        let known = self.inventory.known(link).filter(|record| record.ready).map(|record| record.vm.name.clone());
        assert_eq!(known, told.as_ref().ok().map(|vm| vm.name.clone()), "nothing is decided by what is not told");
        told.map_or_else(|unknown| format!("{unknown:?}"), |vm| vm.name.clone().unwrap_or_default())
    }

    /// The file is there and cannot be read.
    fn make_unreadable(&mut self) {
        let path = self.pve.config(VMID);
        self.pve.put(VMID, "").unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
    }

    fn mend(&mut self, text: &str) {
        if let Some(stopped) = self.stopped.take() {
            self.pve.start(&stopped).unwrap();
        }
        _ = fs::remove_dir(self.pve.config(VMID));
        self.pve.put(VMID, text).unwrap();
    }
}

const MISSED: &str = "no walk comes by it";

/// What happens between two looks.
type Happens = fn(&mut Node);

#[test]
fn nobody_is_told_what_another_vm_was() {
    let counted: &[fn(&str) -> std::io::Result<PveTree>] = &[PveTree::cluster];
    let all: &[fn(&str) -> std::io::Result<PveTree>] = &[PveTree::cluster, PveTree::uncounted, PveTree::plain];
    let rows: [(&str, _, Happens, &str, &str); 12] = [
        ("nothing", all, |_| {}, "a", "a"),
        ("the VM is edited", all, |it| it.pve.put(VMID, &config("a2")).unwrap(), "a2", "a2"),
        ("its file is empty", all, |it| it.pve.put_in_place(VMID, "").unwrap(), "a", "Unconfirmed"),
        ("an empty one is renamed over it", all, |it| it.pve.put(VMID, "\n").unwrap(), "a", "Unconfirmed"),
        ("it cannot be read", all, Node::make_unreadable, "a", "Unconfirmed"),
        ("the tree is gone", all, |it| it.stopped = it.pve.stop().ok(), "a", "Unconfirmed"),
        ("the VM is gone", counted, |it| it.pve.remove(VMID).unwrap(), "NoConfig", "NoConfig"),
        (MISSED, &all[1..], |it| it.pve.remove(VMID).unwrap(), "a", "Unconfirmed"),
        (
            "the number is given again",
            all,
            |it| {
                it.pve.remove(VMID).unwrap();
                it.pve.put(VMID, &config("b")).unwrap();
            },
            "b",
            "b",
        ),
        (
            "again, and nothing is said yet",
            all,
            |it| {
                it.pve.remove(VMID).unwrap();
                it.pve.put(VMID, "lock: create\n").unwrap();
            },
            "NotReady",
            "NotReady",
        ),
        (
            "again, with an empty file",
            all,
            |it| {
                it.pve.remove(VMID).unwrap();
                it.pve.put(VMID, "").unwrap();
            },
            "a",
            "Unconfirmed",
        ),
        (
            "again, with a file that cannot be read",
            all,
            |it| {
                it.pve.remove(VMID).unwrap();
                it.make_unreadable();
            },
            "a",
            "Unconfirmed",
        ),
    ];
    for (what, trees, happens, before, after) in rows {
        for tree in trees {
            let mut node = Node::new(tree("pve1").unwrap());
            // Their guest runs: as long as its interface lives it is the VM that it was, whoever has the number by now.
            let there = node.meet(7);
            node.look();
            let came = node.meet(8);
            happens(&mut node);
            // Of two walks that miss a file the second one says that it is gone.
            for _ in 0..if what == MISSED { 1 } else { 2 } {
                node.look();
                assert_eq!(
                    (node.tells(there), node.tells(came)),
                    (before.into(), after.into()),
                    "{what}: {:?}",
                    node.pve
                );
            }
            node.mend(&config("b"));
            node.look();
            assert_eq!((node.tells(there), node.tells(came)), ("b".into(), "b".into()), "{what}, and mended");
        }
    }
}
