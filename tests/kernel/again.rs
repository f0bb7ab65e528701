//! What decides about secrets, read anew from a real FUSE mount: what other nodes change is seen without an event, modes
//! tell of the quorum, and a mount that hangs, dies or goes takes nobody along.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pve_imds_datasources::backends::pve::{Inventory, Seen, Settings, Watcher};
use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::world::pmxcfs::Pmxcfs;
use crate::world::{Guest, Node, Plug, until};

/// As long as a request may wait here.
const LIMIT: Duration = Duration::from_millis(100);

fn config(vmid: u32, tags: &str) -> String {
    format!("{}tags: {tags}\n", sample_config(VmId::new(vmid).unwrap(), ""))
}

/// An inventory of a pretend cluster, and a runtime to ask it in.
struct World {
    // Dropped in this order: a runtime waits for the reads that it has begun.
    pve: Pmxcfs,
    runtime: Runtime,
    inventory: Arc<Inventory>,
    _watcher: Watcher,
    _node: Node,
}

impl World {
    /// VMs 101 to 104. The inventory has looked once, and looks no more.
    fn new() -> Self {
        let node = Node::new();
        let pve = Pmxcfs::new(&node);
        {
            let mut cluster = pve.cluster();
            (101..=104).for_each(|vmid| cluster.put("pve1", vmid, &config(vmid, "a")));
            cluster.put_file("user.cfg", "pool:lab::101:\n");
            cluster.put_file("datacenter.cfg", "registered-tags: a\n");
        }
        let (dir, poll) = (Pmxcfs::dir(), Duration::from_secs(3600));
        let settings = Settings { dir, poll, events: false, ..node.tree.settings() };
        let (inventory, watcher) = Inventory::open(settings).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { pve, runtime, inventory, _watcher: watcher, _node: node }
    }

    /// What is seen of a VM, in a line; or why not.
    fn seen(&self, vmid: u32) -> String {
        let again = self.inventory.again(VmId::new(vmid).unwrap());
        match self.runtime.block_on(async { timeout(LIMIT, again).await }) {
            Err(_) => "nothing in time".to_owned(),
            Ok(Err(unseen)) => unseen.to_string(),
            Ok(Ok(Seen { vm, pool, datacenter, quorum })) => format!(
                "{} in {} of {} {quorum:?}",
                vm.tags.join(";"),
                pool.map_or_else(|| "none".to_owned(), |pool| pool.to_string()),
                datacenter.registered_tags.join(";"),
            ),
        }
    }
}

#[test]
fn what_other_nodes_change_is_seen_with_the_next_request() {
    let world = World::new();
    let seen = || world.seen(101);
    let cluster = || world.pve.cluster();
    assert_eq!(seen(), "a in lab of a Has");
    cluster().put("pve1", 101, &config(101, "b"));
    assert_eq!(seen(), "b in lab of a Has");
    cluster().put_file("user.cfg", "pool:prod::101:\n");
    assert_eq!(seen(), "b in prod of a Has");
    cluster().put_file("datacenter.cfg", "registered-tags: b\n");
    assert_eq!(seen(), "b in prod of b Has");
    cluster().migrate(101, "pve2");
    assert_eq!(seen(), "b in prod of b Has");
    cluster().put("pve2", 101, "");
    assert!(seen().ends_with("/nodes/pve2/qemu-server/101.conf: it is empty"), "{}", seen());
    cluster().remove(101);
    assert!(seen().ends_with("101.conf is not there any more"), "{}", seen());
}

#[test]
fn the_quorum_is_told_by_modes_and_by_members() {
    let world = World::new();
    let mode = || fs::symlink_metadata(Pmxcfs::dir().join("local")).unwrap().mode() & 0o777;
    assert_eq!((world.seen(101).as_str(), mode()), ("a in lab of a Has", 0o755));
    world.pve.cluster().lose_quorum();
    assert_eq!((world.seen(101).as_str(), mode()), ("a in lab of a Lacks", 0o555));
    world.pve.cluster().regain_quorum();
    assert_eq!((world.seen(101).as_str(), mode()), ("a in lab of a Has", 0o755));
    world.pve.cluster().lose_quorum_unsaid();
    let members = fs::read_to_string(Pmxcfs::dir().join(".members")).unwrap();
    assert!(members.contains("\"quorate\":1"), "{members}");
    assert_eq!((world.seen(101).as_str(), mode()), ("a in lab of a Lacks", 0o555));
}

#[test]
fn a_mount_that_hangs_takes_two_places_and_gives_them_back() {
    for part in [".version", "user.cfg", "datacenter.cfg", ".members", "nodes/pve1/qemu-server/"] {
        let world = World::new();
        world.pve.hang(part);
        // Those who come later find both places taken, and nobody else does.
        for vmid in [101, 102, 103, 103, 104] {
            let begun = Instant::now();
            assert_eq!(world.seen(vmid), "nothing in time", "{part}");
            assert!(begun.elapsed() < 3 * LIMIT, "{part}");
        }
        let other = world.runtime.block_on(async { timeout(LIMIT, tokio::task::spawn_blocking(|| 1)).await });
        assert_eq!(other.unwrap().unwrap(), 1);
        assert!(world.inventory.vm(VmId::new(101).unwrap()).is_some_and(|record| record.vm.tags == ["a"]));
        world.pve.release();
        until("it is read again", || (world.seen(101) == "a in lab of a Has").then_some(()));
        assert_eq!(world.seen(104), "a in none of a Has");
    }
}

#[test]
fn a_mount_that_dies_or_goes_says_nothing() {
    let mut world = World::new();
    world.pve.hang("user.cfg");
    assert_eq!(world.seen(101), "nothing in time");
    world.pve.kill();
    assert!(world.seen(101).contains("/.version: "), "{}", world.seen(101));
    world.pve.unmount();
    assert!(world.seen(101).contains("/.version: No such file"), "{}", world.seen(101));
    world.pve.cluster().lose_quorum();
    world.pve.start();
    world.pve.release();
    assert_eq!(world.seen(101), "a in lab of a Lacks");
}

/// The thread that answers guests ends while a read of its own goes on, and another takes its place.
#[test]
fn a_rebuild_does_not_wait_for_a_read_that_hangs() {
    let mut node = Node::new();
    let pve = Pmxcfs::new(&node);
    let notes = "<!--#user-data secrets=web\n{{ password }}\n-->";
    pve.cluster().put("pve1", 101, &sample_config(VmId::new(101).unwrap(), notes));
    pve.cluster().put_file("user.cfg", "pool:lab::101:\n");
    let (tree, mount) = (node.tree.path().display().to_string(), Pmxcfs::dir().display().to_string());
    let token = Node::dir().join("token");
    fs::write(&token, "s.nobody\n").unwrap();
    let secrets =
        format!("secrets: {{enabled: true, address: 'https://127.0.0.1:1', token_file: {}}}\n", token.display());
    fs::write(node.config(), node.settings().replace(&tree, &mount) + &secrets).unwrap();
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    node.start();
    node.await_guard("tap101i0");
    let said = |path| guest.curl(&[], path).map(|(status, body)| (status, body.trim_end().to_owned()));
    assert_eq!(said("/nocloud/user-data"), Some((503, "secret_fetch_failed".to_owned())));

    pve.cluster().lose_quorum();
    assert_eq!(said("/nocloud/user-data"), Some((503, "no_quorum".to_owned())));
    pve.cluster().regain_quorum();

    // The inventory has read it, and does not read it again.
    pve.hang("user.cfg");
    assert_eq!(said("/nocloud/user-data"), Some((503, "scope_unreadable".to_owned())));
    assert_eq!(said("/nocloud/meta-data").map(|(status, _)| status), Some(200));
    node.namespace.ip("link del imdstk-a");
    until("others are answered", || said("/nocloud/meta-data").filter(|(status, _)| *status == 200));
    pve.release();
    until("it is read again", || said("/nocloud/user-data").filter(|(_, body)| body == "secret_fetch_failed"));
}
