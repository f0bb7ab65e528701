//! The daemon is killed at every step of its life, and nothing leaks: no frame reaches the bridge, no rogue is heard,
//! and the next start serves everyone.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use crate::pins::Old;
use crate::world::chatter::Chatter;
use crate::world::rogue::Rogue;
use crate::world::watch::{Watch, uplink};
use crate::world::{Guest, Namespace, Node, Plug, sh, until};

/// What makes a daemon pass a step.
#[derive(Clone, Copy, Debug)]
enum By {
    /// It starts where another was killed; a guest has come meanwhile, and one has gone.
    Start,
    /// The same, and its devices are gone.
    FirstStart,
    /// The same, and an old program stands behind its own.
    Doubled,
    /// Its device is deleted while it serves.
    Rebuild,
    /// A guest goes.
    Release,
    /// It is asked to stop.
    Stop,
}

/// Every step, and those of a rebuild that are a start's too. Two guests are swapped at a start and three at a rebuild,
/// so the third swap of a guest is a rebuild's first.
const KILLS: &[(&str, By)] = &[
    ("lock_taken", By::Start),
    ("inventory_open", By::Start),
    ("links_listed", By::Start),
    ("epoch_recorded", By::Start),
    ("devices_made", By::Start),
    ("devices_made", By::FirstStart),
    ("loaded", By::Start),
    ("programs_loaded", By::Start),
    ("socket_bound", By::Start),
    ("socket_in_map", By::Start),
    ("cleared", By::Start),
    ("assigned", By::Start),
    ("assigned#2", By::Start),
    ("swapped", By::Start),
    ("swapped#2", By::Start),
    ("swapped#3", By::Start),
    ("swapped#4", By::Start),
    ("detached", By::Doubled),
    ("guest_swapped", By::Start),
    ("guest_swapped#2", By::Start),
    ("guests_seated", By::Start),
    ("return_attached", By::Start),
    ("return_attached", By::FirstStart),
    ("funnel_attached", By::Start),
    ("funnel_attached", By::FirstStart),
    ("linked", By::FirstStart),
    ("pinned", By::FirstStart),
    ("devices_raised", By::FirstStart),
    ("devices_raised", By::Start),
    ("guard_started", By::Start),
    ("linked", By::Start),
    ("pinned", By::Start),
    ("guest_guarded", By::Start),
    ("management_open", By::Start),
    ("ready", By::Start),
    ("released", By::Release),
    ("rebuild_begun", By::Rebuild),
    ("ring_aborted", By::Rebuild),
    ("devices_discarded", By::Rebuild),
    ("epoch_recorded#2", By::Rebuild),
    ("devices_made#2", By::Rebuild),
    ("loaded#2", By::Rebuild),
    ("programs_loaded#2", By::Rebuild),
    ("socket_bound#2", By::Rebuild),
    ("socket_in_map#2", By::Rebuild),
    ("guest_swapped#3", By::Rebuild),
    ("guest_swapped#5", By::Rebuild),
    ("guests_seated#2", By::Rebuild),
    ("return_attached#2", By::Rebuild),
    ("funnel_attached#2", By::Rebuild),
    ("devices_raised#2", By::Rebuild),
    ("guard_started#2", By::Rebuild),
    ("rebuild_done", By::Rebuild),
    ("stopping", By::Stop),
    ("drained", By::Stop),
    ("ring_ended", By::Stop),
    ("guard_ended", By::Stop),
];

/// The node, two guests that talk all the time, and everybody who must hear nothing of it.
struct Street {
    node: Node,
    guests: [Guest; 2],
    rogue: Rogue,
    _uplink: Namespace,
    watch: Watch,
}

impl Street {
    fn served() -> Self {
        let mut node = Node::new();
        (101..=103).for_each(|vmid| node.vm(vmid));
        let (uplink, rogue) = (uplink(&node), Rogue::new(&node));
        let guests = [(101, Plug::Tap(1)), (102, Plug::Veth)]
            .map(|(vmid, plug)| Guest::plug(&node, vmid, plug, "169.254.1.2/16"));
        node.start();
        guests.iter().for_each(|guest| node.await_guard(&guest.tap()));
        guests.iter().for_each(Guest::has_its_own_files);
        let watch = Watch::start(&[(&node.namespace, "vmbr0"), (&uplink, "eth0")], &guests.iter().collect::<Vec<_>>());
        Self { node, guests, rogue, _uplink: uplink, watch }
    }

    fn talk(&self) -> (Chatter, Chatter, Chatter) {
        let [one, two] = &self.guests;
        (Chatter::start(one), Chatter::start(two), self.rogue.chatter())
    }

    fn all_are_served(&self) {
        self.guests.iter().for_each(Guest::await_answer);
        self.guests.iter().for_each(Guest::has_its_own_files);
    }
}

/// Everything is said at least once from now on.
fn all_is_said(talk: &(Chatter, Chatter, Chatter)) {
    [&talk.0, &talk.1, &talk.2].into_iter().for_each(Chatter::once_around);
}

/// A guest that says nothing itself comes in the place of the one that was there.
fn newcomer(node: &Node) {
    sh(&format!("ip -n {} link del tap103i0", node.namespace.name()));
    node.namespace.ip("link add tap103i0 type veth peer name far103");
}

/// A daemon that is to die; if it does not, with this.
struct Doomed(Child);

impl Doomed {
    fn is_dead(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon that dies right after this step, and does what makes it pass it.
fn killed_at(node: &Node, step: &str, by: By) {
    let mut command = node.namespace.command(env!("CARGO_BIN_EXE_pve-imds"));
    command.env("PVE_IMDS_TEST_KILL_AT", step).arg("--config").arg(node.config()).arg("serve");
    let mut daemon = Doomed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let action = match by {
        By::Start | By::FirstStart | By::Doubled => None,
        By::Rebuild => Some("ip link del imdstk-a".to_owned()),
        By::Release => Some("ip link del tap103i0".to_owned()),
        By::Stop => Some(format!("kill -TERM {}", daemon.0.id())),
    };
    if let Some(action) = action {
        until(&format!("{step}: it serves everyone"), || {
            assert!(!daemon.is_dead(), "{step} is passed before {by:?}");
            (node.management("/healthz").is_some() && node.is_guarded("tap103i0")).then_some(())
        });
        node.namespace.run(&action);
    }
    until(&format!("it dies at {step} by {by:?}"), || daemon.is_dead().then_some(()));
    let status = daemon.0.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "{step}: {status}");
}

#[test]
fn nothing_leaks_wherever_the_daemon_is_killed() {
    for word in pve_imds::steps::words() {
        assert!(KILLS.iter().any(|(step, _)| step.split('#').next() == Some(word)), "{word} is died at");
    }
    let mut street = Street::served();
    let old = Old::shield(&street.node, "tap101i0");
    let talk = street.talk();
    for (step, by) in KILLS {
        street.node.stop("KILL");
        newcomer(&street.node);
        if matches!(by, By::FirstStart) {
            street.node.namespace.ip("link del imdstk-a");
        }
        let _double = matches!(by, By::Doubled).then(|| old.attach(&street.node, "tap101i0"));
        killed_at(&street.node, step, *by);
        all_is_said(&talk);
        for guest in &street.guests {
            assert!(street.node.is_guarded(&guest.tap()), "{step}: the guard stays");
        }
        street.node.start();
        street.all_are_served();
    }
    drop(talk);
    street.watch.heard_nothing();
}

#[test]
fn nothing_leaks_while_our_devices_are_taken_down_or_away() {
    let mut street = Street::served();
    let talk = street.talk();
    // While the daemon serves, and mends it; and while nobody does.
    for serves in [true, false] {
        for harm in ["link set imdstk-a down", "link set imdstk-b down", "link del imdstk-b"] {
            if !serves {
                street.node.stop("KILL");
            }
            street.node.namespace.ip(harm);
            all_is_said(&talk);
            if !serves {
                street.node.start();
            }
            street.all_are_served();
        }
    }
    drop(talk);
    street.watch.heard_nothing();
}

#[test]
fn nothing_leaks_while_the_configuration_is_refused_and_a_guest_is_born() {
    let mut street = Street::served();
    let talk = street.talk();
    street.node.stop("TERM");
    std::fs::write(street.node.config(), "emulate: x\n").unwrap();
    assert_eq!(street.node.product(&["serve"]).status.code(), Some(64));
    all_is_said(&talk);
    // As udev's rule does when the tap is born, before it joins its bridge.
    let third = Guest::born(&street.node, 103, Plug::Tap(1), "169.254.1.4/16");
    let attached = street.node.product(&["guard", "attach", "tap103i0", "--pin-dir", "/run/imdstk/bpf"]);
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    third.join(&street.node);
    let ears = Watch::start(&[], &[&third]);
    let more = Chatter::start(&third);
    more.once_around();
    all_is_said(&talk);
    assert_eq!(third.curl(&["--connect-timeout", "1"], "/nocloud/"), None, "silence");
    // The mended daemon adopts all three.
    std::fs::write(street.node.config(), street.node.settings()).unwrap();
    street.node.start();
    street.all_are_served();
    third.await_answer();
    third.has_its_own_files();
    more.once_around();
    all_is_said(&talk);
    drop((more, talk));
    ears.heard_nothing();
    street.watch.heard_nothing();
}
