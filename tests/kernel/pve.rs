//! What guests get while the cluster file system does what it does: files that other nodes write, move and bring late,
//! numbers given again, a file system that is killed, unmounted, started anew, that never answers, that has no quorum.
//!
//! All on a real FUSE mount ([`Pmxcfs`]). What the cluster does itself raises no inotify event here.

use std::fs;
use std::time::{Duration, Instant};

use pve_imds_datasources::backends::pve::{Inventory, Settings};
use pve_imds_datasources::backends::testing::{node_key, sample_config};
use pve_imds_model::vm::VmId;

use crate::world::pmxcfs::{Pmxcfs, rename_over};
use crate::world::{Guest, Node, Plug, run, until, until_within};

const ADDRESS: &str = "169.254.1.2/16";

/// How soon a change is served that something tells of, and one that nothing does.
const HEARD: Duration = Duration::from_millis(250);
const UNHEARD: Duration = Duration::from_secs(1);

/// A configuration whose user data is this.
fn config(vmid: u32, says: &str) -> String {
    sample_config(VmId::new(vmid).unwrap(), &format!("<!--#user-data\n{says}\n-->"))
}

/// A node on a pretend cluster, with one guest.
struct World {
    // Dropped in this order: the daemon may wait for an answer of the mount, and the mount for nobody.
    pve: Pmxcfs,
    guest: Guest,
    node: Node,
}

impl World {
    /// The daemon serves a guest 101, which `prepare` may have given a configuration.
    fn new(prepare: impl FnOnce(&Pmxcfs)) -> Self {
        let mut node = Node::new();
        let pve = Pmxcfs::new(&node);
        prepare(&pve);
        let (tree, mount) = (node.tree.path().display().to_string(), Pmxcfs::dir().display().to_string());
        fs::write(node.config(), node.settings().replace(&tree, &mount)).unwrap();
        let guest = Guest::plug(&node, 101, Plug::Veth, ADDRESS);
        node.start();
        node.await_guard("tap101i0");
        Self { pve, guest, node }
    }

    /// The same with a configuration that says `first` on this node.
    fn serving() -> Self {
        let world = Self::new(|pve| pve.cluster().put("pve1", 101, &config(101, "first")));
        assert_eq!(world.said(), (200, "first".to_owned()));
        world
    }

    /// Status and body of the user data, as the guest gets them.
    #[track_caller]
    fn said(&self) -> (u16, String) {
        self.guest.curl(&[], "/nocloud/user-data").expect("an answer")
    }

    /// How long it takes until the guest is told this. Meanwhile it is told nothing but what is in `meanwhile`.
    #[track_caller]
    fn until_said(&self, wanted: &str, meanwhile: &[&str]) -> Duration {
        let begun = Instant::now();
        until(&format!("the guest is told {wanted}"), || {
            let (status, body) = self.said();
            let said = if status == 200 { body } else { status.to_string() };
            assert!(said == wanted || meanwhile.contains(&said.as_str()), "{said} before {wanted}");
            (said == wanted).then_some(())
        });
        begun.elapsed()
    }

    fn is_stale(&self) -> bool {
        self.node.metric("pve_imds_inventory_stale") == 1.0
    }

    #[track_caller]
    fn until_stale(&self, stale: bool) {
        until("staleness is told", || (self.is_stale() == stale).then_some(()));
    }

    /// What `/healthz` says, well or not.
    fn health(&self) -> String {
        let mut command = self.node.namespace.command("curl");
        let output = command.args(["-s", "-m", "5", "http://127.0.0.1:9100/healthz"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Health is bad, and says of which file and for whom.
    #[track_caller]
    fn ails(&self, why: &str) {
        let health = self.health();
        for part in ["configurations cannot be read for ", why, "others wait"] {
            assert!(health.contains(part), "{part}: {health}");
        }
    }

    /// The daemon's threads that look at the files.
    fn readers(&self) -> usize {
        let names = run(&format!("cat /proc/{}/task/*/comm", self.node.pid()));
        names.lines().filter(|name| name.starts_with("pve-")).count()
    }
}

#[test]
fn what_other_nodes_write_is_seen_without_an_event() {
    let world = World::serving();
    for says in ["second", "third"] {
        world.pve.cluster().put("pve1", 101, &config(101, says));
        let took = world.until_said(says, &["first", "second"]);
        assert!(took < UNHEARD, "{took:?}");
    }
}

#[test]
fn what_is_renamed_over_here_is_seen_at_once() {
    let world = World::serving();
    let mut took: Vec<_> = (0..5)
        .map(|round| {
            let says = format!("edit {round}");
            rename_over(&Pmxcfs::config(101), &config(101, &says)).unwrap();
            world.until_said(&says, &["first", &format!("edit {}", round - 1)])
        })
        .collect();
    took.sort_unstable();
    assert!(took[2] < HEARD, "{took:?}");
}

#[test]
fn a_file_that_is_written_over_in_place_wipes_nothing() {
    let world = World::serving();
    let path = Pmxcfs::config(101);
    let writes = world.pve.cluster().writes();
    // As a shell does it: emptied, and written later.
    let file = fs::File::create(&path).unwrap();
    assert!(world.pve.cluster().writes() > writes, "it is empty for everybody");
    until("the empty file is seen", || {
        let text = world.node.management("/metrics")?;
        let line = text.lines().find(|line| line.contains("reloads_total{result=\"incomplete\"}"))?;
        (!line.ends_with(" 0")).then_some(())
    });
    assert_eq!(world.said(), (200, "first".to_owned()));
    drop(file);
    fs::write(&path, config(101, "second")).unwrap();
    world.until_said("second", &["first"]);
}

#[test]
fn during_a_migration_the_file_is_read_where_it_is() {
    let world = World::new(|pve| pve.cluster().put("pve2", 101, &config(101, "there")));
    assert_eq!(world.said(), (200, "there".to_owned()));
    world.pve.cluster().put("pve2", 101, &config(101, "still there"));
    world.until_said("still there", &["there"]);
    world.pve.cluster().migrate(101, "pve1");
    let moved = || fs::read_to_string(world.node.log()).unwrap().contains("configuration moved");
    until("the move is seen", || {
        assert_eq!(world.said(), (200, "still there".to_owned()));
        moved().then_some(())
    });
    rename_over(&Pmxcfs::config(101), &config(101, "here")).unwrap();
    world.until_said("here", &["still there"]);
}

#[test]
fn a_configuration_that_comes_late_is_waited_for_and_never_denied() {
    let world = World::new(|_| {});
    let refused = |world: &World| {
        let head = world.guest.curl(&["-i"], "/nocloud/user-data").expect("an answer").1;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(head.to_lowercase().contains("\r\nretry-after: "), "{head}");
    };
    refused(&world);
    world.pve.cluster().announce("pve1", 101);
    until("the missing file is seen", || {
        fs::read_to_string(world.node.log()).unwrap().contains("configuration cannot be read").then_some(())
    });
    refused(&world);
    world.pve.cluster().put("pve1", 101, &config(101, "late"));
    world.until_said("late", &["503"]);
}

#[test]
fn a_number_that_is_given_again_is_somebody_elses() {
    let world = World::serving();
    world.pve.cluster().remove(101);
    world.until_said("503", &["first"]);
    world.pve.cluster().put("pve1", 101, &config(101, "second"));
    world.until_said("second", &["503"]);
    // And so fast that no look comes between.
    {
        let mut cluster = world.pve.cluster();
        cluster.remove(101);
        cluster.put("pve1", 101, &config(101, "third"));
    }
    world.until_said("third", &["second"]);
    for _ in 0..20 {
        assert_eq!(world.said(), (200, "third".to_owned()));
    }
}

#[test]
fn a_configuration_without_content_is_one_that_is_not_ready() {
    let world = World::serving();
    for placeholder in ["# qmclone temporary file\nlock: clone\n", "lock: destroyed\n", "lock: create\n"] {
        world.pve.cluster().put("pve1", 101, placeholder);
        world.until_said("503", &["first"]);
        world.pve.cluster().put("pve1", 101, &config(101, "first"));
        world.until_said("first", &["503"]);
    }
    // As a clone is while its disks are copied.
    for lock in ["migrate", "clone"] {
        world.pve.cluster().put("pve1", 101, &format!("{}lock: {lock}\n", config(101, lock)));
        world.until_said(lock, &["first", "migrate"]);
    }
}

#[test]
fn a_file_system_that_is_killed_and_started_anew_is_never_missed() {
    let mut world = World::serving();
    world.pve.kill();
    let error = fs::metadata(Pmxcfs::dir()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    world.until_stale(true);
    assert_eq!(world.said(), (200, "first".to_owned()));
    world.ails("os error 107");

    world.pve.unmount();
    assert_eq!(fs::read_dir(Pmxcfs::dir()).unwrap().count(), 0, "an empty directory");
    world.until_stale(true);
    let looks = || world.node.metric("pve_imds_inventory_reloads_total{result=\"failed\"}");
    let before = looks();
    until("the empty directory is looked at", || (looks() >= before + 2.0).then_some(()));
    assert_eq!(world.said(), (200, "first".to_owned()));
    world.ails(".vmlist: ");

    // Changed while nobody looked; the counters begin anew.
    world.pve.cluster().put("pve1", 101, &config(101, "second"));
    world.pve.start();
    world.until_said("second", &["first"]);
    world.until_stale(false);
    assert_eq!(world.health(), "ok\n");

    // inotify is heard again.
    let mut took: Vec<_> = (0..5)
        .map(|round| {
            let says = format!("edit {round}");
            rename_over(&Pmxcfs::config(101), &config(101, &says)).unwrap();
            world.until_said(&says, &["second", &format!("edit {}", round - 1)])
        })
        .collect();
    took.sort_unstable();
    assert!(took[2] < HEARD, "{took:?}");
}

#[test]
fn a_read_that_never_returns_holds_nobody_but_its_thread() {
    for part in [".version", ".vmlist", "user.cfg", "101.conf"] {
        let world = World::serving();
        let readers = world.readers();
        assert!(readers >= 2);
        world.pve.hang(part);
        let begun = Instant::now();
        {
            let mut cluster = world.pve.cluster();
            cluster.put("pve1", 101, &config(101, "second"));
            cluster.put_file("user.cfg", "pool:lab::101:\n");
        }
        until("the hang is told", || {
            let asked = Instant::now();
            assert_eq!(world.said(), (200, "first".to_owned()));
            assert!(asked.elapsed() < UNHEARD, "the guest waits");
            world.is_stale().then_some(())
        });
        // The poll, and the patience with the read.
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        world.ails(&format!("reading {part} does not end"));
        // Whatever is written meanwhile, there is one read that hangs.
        for round in 0..10 {
            rename_over(&Pmxcfs::config(102), &config(102, &round.to_string())).unwrap();
            assert_eq!(world.said(), (200, "first".to_owned()));
        }
        assert_eq!(world.readers(), readers, "{part}");
        world.pve.release();
        world.until_said("second", &["first"]);
        world.until_stale(false);
        assert_eq!(world.readers(), readers);
    }
}

/// The node's own file is no part of the tree, and read on the same thread.
#[test]
fn a_resolver_that_never_answers_hangs_under_its_own_name() {
    let node = Node::new();
    let pve = Pmxcfs::new(&node);
    pve.cluster().put_file("resolv.conf", "nameserver 192.0.2.1\n");
    let settings = Settings { resolv_conf: Pmxcfs::dir().join("resolv.conf"), ..node.tree.settings() };
    let (inventory, _watcher) = Inventory::open(settings).unwrap();
    assert_eq!(inventory.resolver().dns().servers, ["192.0.2.1"]);
    let trouble = || inventory.trouble().map(|trouble| trouble.why.to_string());
    assert_eq!(trouble(), None);
    pve.hang("resolv.conf");
    let told = until("the hang is told", trouble);
    assert_eq!(told, "reading resolv.conf does not end");
    pve.cluster().put_file("resolv.conf", "nameserver 192.0.2.2\n");
    pve.release();
    until("it goes on", || trouble().is_none().then_some(()));
    until("the new one is known", || (inventory.resolver().dns().servers == ["192.0.2.2"]).then_some(()));
}

#[test]
fn a_cluster_without_quorum_is_served_as_it_was() {
    let world = World::serving();
    world.pve.cluster().lose_quorum();
    let error = fs::write(Pmxcfs::config(101), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    let members = fs::read_to_string(Pmxcfs::dir().join(".members")).unwrap();
    assert!(members.contains("\"quorate\":0"), "{members}");
    for _ in 0..5 {
        assert_eq!(world.said(), (200, "first".to_owned()));
    }
    assert!(!world.is_stale(), "what can be read is not stale to us");
    {
        let mut cluster = world.pve.cluster();
        cluster.regain_quorum();
        cluster.put("pve1", 101, &config(101, "second"));
    }
    world.until_said("second", &["first"]);
}

#[test]
fn a_single_file_that_cannot_be_read_is_told_of_until_it_can() {
    let world = World::serving();
    let unreadable = || world.node.metric("pve_imds_inventory_unreadable");
    assert_eq!((world.health(), unreadable()), ("ok\n".to_owned(), 0.0));
    {
        let mut cluster = world.pve.cluster();
        cluster.fail("101.conf");
        cluster.put("pve1", 101, &config(101, "second"));
        cluster.put("pve1", 102, &config(102, "another"));
    }
    until("the file is missed", || (unreadable() == 1.0).then_some(()));
    let told = until_within(Duration::from_secs(15), "/healthz tells", || {
        assert_eq!(world.said(), (200, "first".to_owned()));
        Some(world.health()).filter(|health| health != "ok\n")
    });
    assert!(told.starts_with("101.conf cannot be read for 5 s ("), "{told}");
    for part in ["qemu-server/101.conf: Input/output error (os error 5))", "a guest that came since waits"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("102.conf") && !world.is_stale(), "{told}");

    world.pve.cluster().mend();
    world.until_said("second", &["first"]);
    until("/healthz says ok", || (world.health() == "ok\n").then_some(()));
    assert_eq!(unreadable(), 0.0);
}

/// By hand, as an editor that saves in two steps. Proxmox puts whole files into place.
#[test]
fn half_a_file_is_nobodys_configuration() {
    let world = World::serving();
    let identity = || world.guest.curl(&[], "/nocloud/meta-data").expect("an answer");
    let known = identity();
    assert!(!known.1.contains("\"101\""), "the VM has an UUID: {known:?}");
    let whole = config(101, "second");
    let (half, _) = whole.split_once("smbios1").unwrap();
    let incomplete = || world.node.metric("pve_imds_inventory_reloads_total{result=\"incomplete\"}");
    for half in [half, &whole[..half.len() + 10]] {
        let before = incomplete();
        fs::write(Pmxcfs::config(101), half).unwrap();
        until("the half is looked at", || (incomplete() >= before + 3.0).then_some(()));
        assert_eq!((identity(), world.said().1.as_str()), (known.clone(), "first"));
    }
    fs::write(Pmxcfs::config(101), &whole).unwrap();
    world.until_said("second", &["first"]);
    assert_eq!(identity(), known);
}

/// What nobody mends counts in the end, and is not forgotten.
#[test]
fn a_file_that_stays_damaged_counts_and_is_told_of() {
    let world = World::serving();
    let unreadable = || world.node.metric("pve_imds_inventory_unreadable");
    let log = || fs::read_to_string(world.node.log()).unwrap();
    world.pve.cluster().put_file("user.cfg", "pool:lab::101:\n");
    until("the pool is known", || log().contains("pools changed").then_some(()));

    let lines = config(101, "second").lines().count();
    fs::write(Pmxcfs::config(101), config(101, "second") + "\u{0}nonsense\n").unwrap();
    world.pve.cluster().put_file("user.cfg", "");
    until("both are missed", || (unreadable() == 2.0).then_some(()));
    assert_eq!((world.said(), world.health()), ((200, "first".to_owned()), "ok\n".to_owned()));
    let told = until_within(Duration::from_secs(15), "/healthz tells of both", || {
        Some(world.health()).filter(|health| health.matches("is not whole for").count() == 2)
    });
    assert!(told.starts_with("user.cfg is not whole for "), "{told}");
    for part in [
        "(it is empty), 101.conf is not whole for ",
        &format!("(it is damaged: line {} is none that Proxmox writes)", lines + 1),
        "what is not whole counts as it stands; mend the file",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!((world.said(), unreadable()), ((200, "second".to_owned()), 2.0));
    let log = log();
    for part in ["configuration is not whole and counts as it stands", "it is not whole and counts as it stands"] {
        assert_eq!(log.matches(&format!(" {part}")).count(), 1, "{part}: {log}");
    }
    assert!(!log.contains("nonsense"), "{log}");

    world.pve.cluster().put("pve1", 101, &config(101, "third"));
    world.pve.cluster().put_file("user.cfg", "pool:lab::101:\n");
    world.until_said("third", &["second"]);
    until("/healthz says ok", || (world.health() == "ok\n").then_some(()));
    assert_eq!(unreadable(), 0.0);
}

/// As after a power cut: this node is up before its majority, and what it has is what it had.
#[test]
fn a_daemon_that_starts_without_quorum_serves_what_can_be_read() {
    let world = World::new(|pve| {
        let mut cluster = pve.cluster();
        cluster.put("pve1", 101, &config(101, "first"));
        cluster.put_file("user.cfg", "pool:lab::101:\n");
        cluster.put_file("nodes/pve1/pve-ssl.key", str::from_utf8(node_key()).unwrap());
        cluster.lose_quorum();
    });
    assert_eq!(world.said(), (200, "first".to_owned()));
    assert_eq!(world.health(), "ok\n");
    assert!(!world.is_stale());
    let log = fs::read_to_string(world.node.log()).unwrap();
    assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");
}

#[test]
fn a_number_that_is_given_again_without_a_word_is_nobodys() {
    let World { pve, guest, node } = World::serving();
    // Once they have been looked at, the one that runs is told what it was.
    let looked = |node: &Node| fs::read_to_string(node.log()).unwrap().contains("configuration cannot be read");
    pve.cluster().put("pve1", 102, &config(102, "another"));
    until("the next look has ended", || (node.metric("pve_imds_inventory_vms") == 2.0).then_some(()));
    {
        let mut cluster = pve.cluster();
        cluster.remove(101);
        cluster.put("pve1", 101, "");
    }
    until("the empty file is seen", || looked(&node).then_some(()));
    assert_eq!(guest.curl(&[], "/nocloud/user-data"), Some((200, "first".to_owned())));

    drop(guest);
    let guest = Guest::plug(&node, 101, Plug::Veth, ADDRESS);
    node.await_guard("tap101i0");
    let unknown = (503, "vm_unknown\n".to_owned());
    for _ in 0..20 {
        assert_eq!(guest.curl(&[], "/nocloud/user-data"), Some(unknown.clone()));
    }
    pve.cluster().put("pve1", 101, &config(101, "second"));
    until("it is told its own", || {
        let said = guest.curl(&[], "/nocloud/user-data").expect("an answer");
        assert!([&unknown, &(200, "second".to_owned())].contains(&&said), "{said:?}");
        (said.0 == 200).then_some(())
    });
}
