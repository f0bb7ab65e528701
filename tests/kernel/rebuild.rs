//! What is lost without anybody's touching our devices' names: a socket that fails, a thread that dies, a pair that is
//! under our indexes and not ours. The datapath is rebuilt within a second, and nobody gets anybody else's answer.
//!
//! The kernel is made to fail one thread by strace(1): no part of the daemon is there for it.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::world::figures::ms;
use crate::world::probe::{Asker, Asking, Heard};
use crate::world::{Guest, Node, Plug, run, until};

/// What is promised of every mend.
const PROMISE: Duration = Duration::from_secs(1);

/// Its requests are answered by the first SYN it sends once somebody serves, and by nobody's patience but ours.
const IMPATIENT: Asker = Asker { rate: 100, fresh: true, patience: Duration::from_millis(20) };

/// Every reason there is.
const REASONS: [&str; 6] = ["gone", "renamed", "parted", "socket", "ring", "guard"];

struct Street {
    node: Node,
    guests: [Guest; 2],
}

impl Street {
    /// Two guests of one address.
    fn served() -> Self {
        let mut node = Node::new();
        (101..=102).for_each(|vmid| node.vm(vmid));
        let guests = [(101, Plug::Tap(1)), (102, Plug::Veth)]
            .map(|(vmid, plug)| Guest::plug(&node, vmid, plug, "169.254.1.2/16"));
        guests.iter().for_each(Guest::knows_us);
        node.start();
        guests.iter().for_each(|guest| node.await_guard(&guest.tap()));
        guests.iter().for_each(Guest::has_its_own_files);
        Self { node, guests }
    }

    fn rebuilds(&self) -> [f64; 6] {
        REASONS.map(|reason| self.node.metric(&format!("pve_imds_datapath_rebuilds_total{{reason=\"{reason}\"}}")))
    }

    /// Does the harm while both guests ask. It is mended once, for this reason and no other, in time.
    #[track_caller]
    fn mended<T>(&self, what: &str, reason: &str, harm: impl FnOnce() -> T) {
        let mut expected = self.rebuilds();
        expected[REASONS.iter().position(|word| *word == reason).unwrap()] += 1.0;
        let asking = self.guests.each_ref().map(|guest| IMPATIENT.start(guest));
        let begun = Instant::now();
        let harmful = harm();
        until(&format!("mended after: {what}"), || (self.rebuilds() == expected).then_some(()));
        let took = begun.elapsed();
        drop(harmful);
        self.guests.iter().for_each(Guest::await_answer);
        let heard = asking.into_iter().map(Asking::stop).reduce(Heard::and).unwrap();
        println!("{what}: mended after {:.0} ms; {heard}", ms(took));
        assert_eq!(heard.wrong, Vec::<String>::new(), "{what}");
        assert!(took < PROMISE && heard.stall < PROMISE, "{what}: mended after {took:?}; {heard}");
        self.guests.iter().for_each(Guest::has_its_own_files);
        until("/healthz says ok", || self.node.management("/healthz"));
        assert_eq!(self.rebuilds(), expected, "{what}: once");
        assert_eq!(self.node.metric("pve_imds_datapath_rebuild_failures_total"), 0.0, "{what}");
    }
}

/// Makes the kernel refuse the daemon's thread of this name its system calls, until it is dropped or the thread dies.
struct Refusal(Child);

impl Refusal {
    fn begin(node: &Node, thread: &str, calls: &str, error: &str) -> Self {
        let mut tasks = fs::read_dir(format!("/proc/{}/task", node.pid())).unwrap().flatten().map(|entry| entry.path());
        let is_it = |name: String| name.trim() == thread;
        let task = tasks.find(|path| fs::read_to_string(path.join("comm")).is_ok_and(is_it)).unwrap();
        let mut command = std::process::Command::new("strace");
        command.args(["-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:error={error}"), "-p"]).arg(task.file_name().unwrap());
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_socket_that_fails_is_made_anew() {
    let street = Street::served();
    for _ in 0..3 {
        street.mended("no frame can be sent", "socket", || Refusal::begin(&street.node, "ring", "sendto", "EIO"));
    }
}

#[test]
fn a_thread_that_dies_is_begun_anew() {
    let street = Street::served();
    // tokio panics when it cannot ask for events, and the standard library when a directory cannot be closed.
    for (thread, calls, error) in [("ring", "?epoll_wait,epoll_pwait", "EBADF"), ("guard", "close", "EIO")] {
        for _ in 0..3 {
            let what = format!("the {thread}'s thread panics");
            street.mended(&what, thread, || Refusal::begin(&street.node, thread, calls, error));
            let log = fs::read_to_string(street.node.log()).unwrap();
            assert!(log.contains(&format!("the {thread}'s thread panicked")), "{what}");
        }
    }
    // Whoever comes later is guarded by the thread that was begun anew.
    let Street { mut node, guests } = street;
    node.vm(103);
    let third = Guest::plug(&node, 103, Plug::Veth, "169.254.1.2/16");
    node.await_guard(&third.tap());
    third.await_answer();
    guests.iter().chain([&third]).for_each(Guest::has_its_own_files);
}

#[test]
fn a_pair_that_is_parted_under_our_indexes_is_made_anew() {
    let street = Street::served();
    let ip = |arguments: &str| street.node.namespace.ip(arguments);
    // The other end of ours is somebody else's now, here or in another namespace. Asleep, the daemon hears of all at once.
    for other in ["name stranger", "name eth7 netns imdstk-g102"] {
        street.mended("an end has another peer", "parted", || {
            let [a, b] = ["imdstk-a", "imdstk-b"].map(|name| street.node.namespace.index(name));
            run(&format!("kill -STOP {}", street.node.pid()));
            ip("link del imdstk-a");
            ip(&format!("link add imdstk-a index {a} type veth peer {other}"));
            // With our mark: one without it is somebody's own, and refused with the command that removes it.
            ip("link set imdstk-a alias pve-imds");
            ip(&format!("link add squatter index {b} type bridge"));
            run(&format!("kill -CONT {}", street.node.pid()));
        });
        let left = ip("-o link show");
        assert!(!left.contains("stranger") && left.contains("squatter"), "ours are gone, others' stay: {left}");
        ip("link del squatter");
    }
}
