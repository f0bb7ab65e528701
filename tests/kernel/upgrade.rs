//! Another daemon takes over, again and again and under load: no guest gets another's body, and nothing leaks.
//!
//! A slot means something within one load of the programs only. So slots are permuted on purpose: an interface with a
//! lower index than the guests' is there at every other start, and each guest's slot is the one its neighbour had.

use std::time::Duration;

use crate::world::chatter::Chatter;
use crate::world::figures::{Figures, ms, quantile};
use crate::world::probe::{Asker, Asking, Heard};
use crate::world::rogue::Rogue;
use crate::world::watch::{Watch, uplink};
use crate::world::{Guest, Node, Plug};

/// Each is answered by the first SYN or ARP it sends once somebody serves: its own patience is not what is measured.
const IMPATIENT: Asker = Asker { rate: 200, fresh: true, patience: Duration::from_millis(20) };

/// In turns.
const SIGNALS: [&str; 2] = ["KILL", "TERM"];

/// Three guests and, with the lowest index, the interface that comes and goes.
struct Street {
    node: Node,
    guests: [Guest; 3],
    low: u32,
}

impl Street {
    fn new() -> Self {
        let mut node = Node::new();
        (100..=103).for_each(|vmid| node.vm(vmid));
        node.namespace.ip("link add tap100i0 type veth peer name far100");
        let low = node.namespace.index("tap100i0");
        let guests = [(101, Plug::Tap(1)), (102, Plug::Veth), (103, Plug::Veth)]
            .map(|(vmid, plug)| Guest::plug(&node, vmid, plug, "169.254.1.2/16"));
        guests.iter().for_each(Guest::knows_us);
        assert!(guests.iter().all(|guest| node.namespace.index(&guest.tap()) > low));
        Self { node, guests, low }
    }

    /// Moves every guest's slot by one for the next start.
    fn permute(&self, round: usize) {
        self.node.namespace.ip(&match round % 2 {
            0 => "link del tap100i0".into(),
            _ => format!("link add tap100i0 index {} type veth peer name far100", self.low),
        });
    }

    fn all_are_served(&self) {
        for guest in &self.guests {
            self.node.await_guard(&guest.tap());
            guest.await_answer();
            guest.has_its_own_files();
        }
    }
}

#[test]
fn fifty_restarts_under_load_answer_nobody_with_somebody_elses_body() {
    let figures = Figures::begin("upgrade", "50 restarts under load, slots permuted");
    let mut street = Street::new();
    let (uplink, rogue) = (uplink(&street.node), Rogue::new(&street.node));
    street.node.start();
    street.all_are_served();
    let watch = Watch::start(
        &[(&street.node.namespace, "vmbr0"), (&uplink, "eth0")],
        &street.guests.iter().collect::<Vec<_>>(),
    );
    let talk = (street.guests.each_ref().map(Chatter::start), rogue.chatter());
    let mut all = Heard::default();
    let mut stalls: [Vec<Duration>; 2] = Default::default();
    for round in 0..50 {
        // Begun anew each time, so that each round has its own longest stall; it spans the whole change.
        let asking: Vec<Asking> = street.guests.iter().map(|guest| IMPATIENT.start(guest)).collect();
        let signal = round % 2;
        street.node.stop(SIGNALS[signal]);
        street.permute(round);
        street.node.start();
        street.guests.iter().for_each(Guest::await_answer);
        for heard in asking.into_iter().map(Asking::stop) {
            assert!(!heard.times.is_empty(), "round {round}: {:?}", heard.first_failure);
            stalls[signal].push(heard.stall);
            all = all.and(heard);
        }
    }
    drop(talk);
    for (signal, mut stalls) in SIGNALS.into_iter().zip(stalls) {
        stalls.sort_unstable();
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| ms(quantile(&stalls, share)));
        figures.say(&format!("a guest's stall by {signal}: p50 {p50:.0} ms, p99 {p99:.0} ms, longest {longest:.0} ms"));
    }
    figures.say(&format!("all requests: {all}"));
    assert_eq!(all.wrong, Vec::<String>::new());
    watch.heard_nothing();
    street.all_are_served();
}

/// What runs on each guest's interface: programs that know its slot, or such that only drop.
fn modes(street: &Street) -> Vec<String> {
    let output = street.node.product(&["guard", "status", "--json"]);
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = all["interfaces"].as_array().unwrap();
    let row = |guest: &Guest| rows.iter().find(|row| row["interface"] == guest.tap()).unwrap();
    street.guests.iter().map(|guest| row(guest)["mode"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_pins_of_another_version_are_taken_over() {
    let mut street = Street::new();
    let (uplink, rogue) = (uplink(&street.node), Rogue::new(&street.node));
    // Another version: other programs, with maps of another layout, pinned by another process. They serve nobody.
    for guest in &street.guests {
        let output = street.node.product(&["guard", "attach", &guest.tap(), "--pin-dir", "/run/imdstk/bpf"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let watch = Watch::start(
        &[(&street.node.namespace, "vmbr0"), (&uplink, "eth0")],
        &street.guests.iter().collect::<Vec<_>>(),
    );
    let talk = (street.guests.each_ref().map(Chatter::start), rogue.chatter());
    assert_eq!(modes(&street), ["drop"; 3]);
    for round in 0..4 {
        talk.0.iter().for_each(Chatter::once_around);
        talk.1.once_around();
        for guest in &street.guests {
            assert_eq!(guest.curl(&["--connect-timeout", "0.5"], "/nocloud/"), None, "silence");
        }
        street.permute(round);
        street.node.start();
        street.all_are_served();
        assert_eq!(modes(&street), ["serve"; 3]);
        street.node.stop("KILL");
        // What drops by the programs of a daemon that is dead is as good as what drops by others: it stays.
        for guest in &street.guests {
            let output = street.node.product(&["guard", "attach", &guest.tap(), "--pin-dir", "/run/imdstk/bpf"]);
            assert!(String::from_utf8_lossy(&output.stdout).contains("already guarded"));
        }
        assert_eq!(modes(&street), ["serve"; 3]);
    }
    drop(talk);
    watch.heard_nothing();
}
