//! Everything at once for as long as one likes: `make soak MINUTES=30`. Needs root; not part of `make test`.
//!
//! Guests ask all the time and each answer must be their own; two of them and a rogue say all that can be said of the
//! metadata addresses, and nobody may hear it; interfaces, configurations, our devices and the daemon itself come and go
//! meanwhile. Nobody goes unanswered for anything that is none of his business, and for a second at most when our devices
//! are harmed ([`ledger`]). The daemon lives several lives of equal length, between which it is restarted in quick
//! succession; at the end of each it must hold no more than at the end of the first. Out come tables, and a failure if any
//! of that is not so.
#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the kernel's time is not tokio's, it cannot be paused"
)]

#[path = "../world/mod.rs"]
mod world;

mod deeds;
mod ledger;

use std::time::{Duration, Instant};

use deeds::{DEEDS, Deed};
use ledger::{Askers, Ledger};
use world::chatter::Chatter;
use world::figures::Figures;
use world::memory::Usage;
use world::rogue::Rogue;
use world::watch::{Watch, uplink};
use world::{Guest, Node, Plug, until};

/// Of which the first shows what a life needs, and the last whether it needs more now.
const LIVES: u32 = 6;

/// What the allocator may keep more in the second half of a life, KiB: the least of halves of 20 s has been seen 8 MiB apart,
/// in both directions.
const TOLERANCE: u64 = 16 << 10;

/// Between two deeds, so that there is also time in which nothing happens.
const REST: Duration = Duration::from_millis(200);

struct Town {
    node: Node,
    /// Those who stay: a tap, a veth, a veth, and one that floods.
    guests: Vec<Guest>,
    ledger: Ledger,
    restarts: u32,
}

impl Town {
    fn do_next(&mut self) {
        let (deed, _) = DEEDS[self.ledger.begin()];
        match deed {
            Deed::Visit(plug) => {
                let visitor = Guest::born(&self.node, 120, plug, "169.254.1.2/16");
                // On the bridge only once it is guarded: what passes before is measured elsewhere.
                self.node.await_guard(&visitor.tap());
                until("its guard is on record", || status_says(&self.node, &visitor.tap(), "guarded").then_some(()));
                visitor.join(&self.node);
                visitor.await_answer();
                visitor.has_its_own_files();
            }
            Deed::Rewrite => {
                let name = format!("name{}", self.ledger.deeds());
                let config = std::fs::read_to_string(self.node.tree.config(103)).unwrap();
                let lines = config.lines().map(|line| match line.starts_with("name: ") {
                    true => format!("name: {name}\n"),
                    false => format!("{line}\n"),
                });
                self.node.tree.put(103, &lines.collect::<String>()).unwrap();
                until("the new name is served", || {
                    let answer = self.guests[2].curl(&["--connect-timeout", "1"], "/nocloud/meta-data");
                    answer.filter(|(_, body)| body.contains(&name))
                });
            }
            Deed::Change(command) => {
                self.node.namespace.ip(command);
            }
            Deed::Flood(flood) => {
                let flooding = flood.start(&self.guests[3], 80);
                std::thread::sleep(Duration::from_secs(1));
                flooding.stop();
            }
        }
        self.ledger.end();
        std::thread::sleep(REST);
    }

    fn restart(&mut self) {
        self.node.stop(if self.restarts.is_multiple_of(2) { "TERM" } else { "KILL" });
        self.restarts += 1;
        self.node.start();
    }

    fn all_are_served(&self) {
        for guest in &self.guests {
            self.node.await_guard(&guest.tap());
            guest.await_answer();
            assert_eq!(guest.get("/nocloud/user-data"), guest.user_data());
        }
    }
}

fn status_says(node: &Node, interface: &str, word: &str) -> bool {
    let output = node.product(&["guard", "status"]);
    String::from_utf8_lossy(&output.stdout).lines().any(|line| line.starts_with(interface) && line.contains(word))
}

/// The machine's kernel memory, KiB.
fn slab() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn town() -> Town {
    let mut node = Node::new();
    std::fs::write(node.config(), node.settings().replace("log_level: debug", "log_level: warn")).unwrap();
    (101..=104).chain([120]).for_each(|vmid| node.vm(vmid));
    let guests = [(101, Plug::Tap(1)), (102, Plug::Veth), (103, Plug::Veth), (104, Plug::Tap(1))]
        .map(|(vmid, plug)| Guest::plug(&node, vmid, plug, "169.254.1.2/16"));
    // An ARP request that is lost is repeated after a second; how long we are gone is asked for by TCP.
    guests[..ledger::ASKING].iter().for_each(Guest::knows_us);
    Town { node, guests: guests.into(), ledger: Ledger::default(), restarts: 0 }
}

/// The least memory of one process before and after the middle of its life, KiB: what a flood takes comes back, what is
/// lost does not. Another life is another process, and what its allocator happens to keep is no growth.
#[derive(Default)]
struct Growth {
    early: Option<u64>,
    late: Option<u64>,
}

impl Growth {
    fn see(&mut self, resident: u64, is_late: bool) {
        let half = if is_late { &mut self.late } else { &mut self.early };
        *half = Some(half.map_or(resident, |least| least.min(resident)));
    }

    /// A life so short that one half of it saw nothing has not grown, as far as can be told.
    fn is_within_tolerance(&self) -> bool {
        self.early.zip(self.late).is_none_or(|(early, late)| late <= early + TOLERANCE)
    }

    fn shown(&self) -> String {
        let shown = |least: Option<u64>| least.map_or_else(|| "-".to_owned(), |least| least.to_string());
        format!("{}, {}", shown(self.early), shown(self.late))
    }
}

#[test]
fn nothing_leaks_nothing_grows_and_nobody_gets_anothers_answer() {
    let minutes: u32 = std::env::var("MINUTES").map_or(30, |text| text.parse().expect("MINUTES is a number"));
    let life = Duration::from_secs(60) * minutes / LIVES;
    let figures = Figures::begin("soak", &format!("{minutes} minutes in {LIVES} lives"));
    let mut town = town();
    let (uplink, rogue) = (uplink(&town.node), Rogue::new(&town.node));
    town.node.start();
    town.all_are_served();
    let watch =
        Watch::start(&[(&town.node.namespace, "vmbr0"), (&uplink, "eth0")], &town.guests.iter().collect::<Vec<_>>());
    let talk = (Chatter::start(&town.guests[0]), Chatter::start(&town.guests[1]), rogue.chatter());
    let mut first_end: Option<Usage> = None;
    figures
        .say("life  deeds  restarts  resident KiB (most; least early, late)  descriptors  bpf  threads  pins  slab KiB  what guests had");
    let mut grown = Vec::new();
    for number in 1..=LIVES {
        let begun = Instant::now();
        let asking = Askers::start(&town.guests);
        let (mut most, mut growth, mut warm) = (0, Growth::default(), false);
        // Once around at least, however short a life is, and never less: a deed may undo another.
        loop {
            for _ in DEEDS {
                town.do_next();
                let resident = Usage::of(town.node.pid()).resident;
                most = most.max(resident);
                if warm {
                    growth.see(resident, begun.elapsed() > life / 2);
                }
            }
            // Each deed has been done once: what it needs for good, it has.
            warm = true;
            if begun.elapsed() >= life {
                break;
            }
        }
        town.all_are_served();
        if let Some(first) = &first_end {
            Usage::all_given_back(town.node.pid(), first);
        }
        let (end, pins) = (Usage::of(town.node.pid()), Node::pins());
        let heard = town.ledger.enter(asking.stop());
        figures.say(&format!(
            "{number:>4}  {:>5}  {:>8}  {:>12} {:>25}  {:>11}  {:>3}  {:>7}  {pins:>4}  {:>8}  {heard}",
            town.ledger.deeds(),
            town.restarts,
            end.resident,
            format!("({most}; {})", growth.shown()),
            end.descriptors,
            end.bpf,
            end.threads,
            slab()
        ));
        assert_eq!(heard.wrong, Vec::<String>::new());
        assert_eq!(pins, 2 * town.guests.len(), "pins of interfaces that are there");
        grown.extend((!growth.is_within_tolerance()).then(|| format!("life {number}: {}", growth.shown())));
        first_end = first_end.or(Some(end));
        if number < LIVES {
            (0..10).for_each(|_| town.restart());
            town.all_are_served();
        }
    }
    drop(talk);
    town.ledger.lines().iter().for_each(|line| figures.say(line));
    watch.heard_nothing();
    town.ledger.keeps_the_promise();
    assert_eq!(grown, Vec::<String>::new(), "KiB, the least early and late in a life");
}
