//! Real clients on guarded interfaces fetch their own metadata and make of it what they should. Needs root.
//!
//! Here QEMU boots Debian's kernel with an init of ours (`tests/guest`) and Debian's iPXE, on emulated processors; a boot
//! takes seconds. [`cloud_init`] is Debian's own, old and new, in a [`chroot`]; [`gating`] is what becomes of it when its user
//! data cannot be had, [`vendor`] what it makes of the node's vendor data. [`system`] is a whole Debian in QEMU; [`talos`] a
//! client that behaves as Talos; [`writers`] what becomes of a network, [`network_data`] of OpenStack's; of the [`table`] of
//! all clients the quick ones. Run one at a time (`--test-threads=1`).
#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "clients live in real time")]

#[path = "../clients/cells.rs"]
mod cells;
mod chroot;
mod cloud_init;
#[path = "../clients/dialect.rs"]
mod dialect;
mod gating;
#[path = "../clients/login.rs"]
mod login;
mod network_data;
#[path = "../clients/places.rs"]
mod places;
#[path = "../clients/programs.rs"]
mod programs;
mod system;
#[path = "../clients/table.rs"]
mod table;
mod talos;
mod vendor;
#[path = "../world/mod.rs"]
mod world;
mod writers;

use std::sync::atomic::Ordering;

use world::Node;
use world::machine::{boot, boot_queues, file, tap};
use world::sink::Sink;

#[test]
fn linux_fetches_its_four_files() {
    let mut node = Node::new();
    node.vm(101);
    node.vm(102);
    node.start();
    for vmid in [101, 102] {
        tap(&node, &format!("tap{vmid}i0"), 1);
    }
    let consoles = std::thread::scope(|scope| {
        let boots = [101, 102].map(|vmid| {
            let node = &node;
            scope.spawn(move || boot(&node.namespace, "boot.sh", &format!("tap{vmid}i0"), vmid, &["imds.job=fetch"]))
        });
        boots.map(|boot| boot.join().unwrap())
    });
    for (vmid, console) in [101, 102].into_iter().zip(&consoles) {
        assert!(console.ends_with("IMDS-GUEST done status=0\n"), "{console}");
        let meta = format!("instance-id: \"00000000-0000-4000-8000-{vmid:012}\"\nlocal-hostname: \"vm{vmid}\"\n");
        assert_eq!(file(console, "meta-data"), Some(meta.as_str()), "{console}");
        let user = format!("#cloud-config\nhostname: only-for-{vmid}\n");
        assert_eq!(file(console, "user-data"), Some(user.as_str()), "{console}");
        assert_eq!(file(console, "vendor-data"), Some(""), "{console}");
        assert!(file(console, "network-config").unwrap().contains("dhcp4: true"), "{console}");
    }
}

#[test]
fn linux_with_two_queues_a_vlan_or_a_gateway_fetches_too() {
    let mut node = Node::new();
    node.vm(101);
    node.start();
    for (queues, orders) in [
        (2, "imds.job=fetch"),
        (1, "imds.job=fetch imds.vlan=42"),
        (1, "imds.job=fetch imds.ip=10.9.9.5/24 imds.via=10.9.9.1,02:11:22:33:44:55"),
    ] {
        tap(&node, "tap101i0", queues);
        let console = boot_queues(&node.namespace, "boot.sh", "tap101i0", 101, &[orders], queues);
        assert!(console.ends_with("IMDS-GUEST done status=0\n"), "{orders}: {console}");
        assert!(file(&console, "meta-data").unwrap().contains("local-hostname: \"vm101\""), "{orders}: {console}");
        node.namespace.ip("link del tap101i0");
    }
}

#[test]
fn linux_posts_megabytes_without_a_retransmission_storm() {
    let mut node = Node::new();
    node.vm(101);
    let sink = Sink::start(&node);
    tap(&node, "tap101i0", 1);
    let orders = "imds.job=post imds.mb=3 imds.times=3 imds.url=http://169.254.169.254/sink";
    let console = boot(&node.namespace, "boot.sh", "tap101i0", 101, &[orders]);
    assert!(console.ends_with("IMDS-GUEST done status=0\n"), "{console}");
    let posts: Vec<&str> = console.lines().filter(|line| line.starts_with("IMDS-GUEST post=")).collect();
    assert_eq!(posts.len(), 3, "{console}");
    for post in posts {
        println!("{post}");
        let word = |name: &str| {
            post.split_whitespace().find_map(|word| word.strip_prefix(name)).unwrap().parse::<u64>().unwrap()
        };
        assert_eq!(word("ok="), 1, "{post}");
        assert!(word("RetransSegs=") <= 2 && word("TCPTimeouts=") == 0, "{post}");
    }
    assert_eq!(sink.taken.load(Ordering::Relaxed), 9_000_000);
}

/// `make clients` has the others, and those of today's Debian.
#[test]
fn quick_clients_have_what_the_table_says() {
    let cells = cells::cells(|client| client.quick);
    let outcomes = cells::run(&cells, cells.len(), |outcome| {
        println!("{} x {}: {:?}", outcome.cell.client.name, outcome.cell.dialect.word(), outcome.took);
    });
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.result.is_err()).collect();
    assert!(outcomes.len() >= 10 && failed.is_empty(), "{failed:#?}");
}

#[test]
fn ipxe_fetches_its_metadata() {
    let mut node = Node::new();
    node.vm(101);
    node.start();
    tap(&node, "tap101i0", 1);
    let console = boot(&node.namespace, "ipxe.sh", "tap101i0", 101, &[]);
    assert!(console.contains("IMDS-IPXE done status=0"), "{console}");
    let log = std::fs::read_to_string(node.log()).unwrap();
    assert!(log.contains("GET /nocloud/meta-data 200 ok"), "{log}");
}
