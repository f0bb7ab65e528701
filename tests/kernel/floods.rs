//! A flood is the flooder's own problem: its neighbour is served, the daemon's memory stays, and it is served again.
//!
//! The neighbour asks 500 times a second. A guest may do that for as long as its burst lasts, so three neighbours take
//! turns, the last with a connection for each request. How long answers take is written down and not asserted: a
//! flooder and its neighbour share the processors whatever the daemon does. The control is the same flood at a port
//! where the guard drops every frame.

use std::time::Duration;

use crate::world::figures::Figures;
use crate::world::flood::Flood;
use crate::world::memory::Usage;
use crate::world::probe::{Asker, Heard};
use crate::world::{Guest, Node, Plug, until};

/// Within a burst of 500 and 200 more a second.
const TURN: u32 = 700;

/// A neighbour that is not answered in this time has been harmed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What one guest's connections may cost at most, KiB: 256 open and 64 half-open ones with 80 KiB of buffers each, and
/// as much again for what hyper and the allocator put around them.
const BOUND: u64 = 2 * (256 + 64) * 80;

/// What the allocator may still learn from one flood to the next, KiB.
const TOLERANCE: u64 = 2 << 10;

/// Three neighbours, one after the other.
fn turns(neighbours: &[Guest]) -> Heard {
    let heard = neighbours.iter().enumerate().map(|(at, guest)| {
        let asker = Asker { rate: 500, fresh: at + 1 == neighbours.len(), patience: PATIENCE };
        asker.ask(guest, TURN)
    });
    heard.reduce(Heard::and).unwrap()
}

#[test]
fn a_neighbour_is_served_through_every_flood_and_so_is_the_flooder_afterwards() {
    let figures = Figures::begin("floods", "A guest floods while another makes 500 requests a second");
    let mut node = Node::new();
    // The access lines of a flood are the flooder's problem too, but their place is not this test's.
    std::fs::write(node.config(), node.settings().replace("log_level: debug", "log_level: info")).unwrap();
    (101..=104).for_each(|vmid| node.vm(vmid));
    let flooder = Guest::plug(&node, 101, Plug::Tap(1), "169.254.1.2/16");
    let neighbours = [(102, Plug::Tap(1)), (103, Plug::Veth), (104, Plug::Veth)]
        .map(|(vmid, plug)| Guest::plug(&node, vmid, plug, "169.254.1.2/16"));
    node.start();
    for guest in neighbours.iter().chain([&flooder]) {
        node.await_guard(&guest.tap());
        guest.has_its_own_files();
    }
    let quiet = turns(&neighbours);
    let before = Usage::of(node.pid());
    figures.say(&format!("no flood:               {quiet}; memory {} KiB", before.resident));
    for flood in Flood::ALL {
        let word = flood.word();
        let control = flood.start(&flooder, 81);
        let heard = turns(&neighbours);
        figures.say(&format!("{word:<11} at port 81: {heard}; sent {}", control.stop()));
        assert_eq!((heard.failed, heard.wrong.len()), (0, 0), "{word}, control: {:?}", heard.first_failure);

        let flooding = flood.start(&flooder, 80);
        let heard = turns(&neighbours);
        let during = Usage::of(node.pid());
        figures.say(&format!("{word:<11} at port 80: {heard}; sent {}; {during}", flooding.stop()));
        assert_eq!((heard.failed, heard.wrong.len()), (0, 0), "{word}: {:?}", heard.first_failure);
        assert!(during.peak < before.resident + BOUND, "{word}: {before}, then {during}");
        assert_eq!(during.threads, before.threads, "{word}");

        until("the flooder is served again", || {
            flooder.curl(&["--connect-timeout", "1"], "/nocloud/user-data").filter(|(status, _)| *status == 200)
        });
        flooder.has_its_own_files();
    }
    // What held the floods back, each in its way.
    for reason in ["steer_credit", "steer_bucket"] {
        let frames = node.metric(&format!("pve_imds_guard_frames_total{{reason=\"{reason}\"}}"));
        assert!(frames > 0.0, "{reason}");
    }
    // What the floods' connections took is given back, or is there for the next ones: no flood finds less than the last.
    let mut rounds = vec![Usage::of(node.pid())];
    for neighbour in &neighbours {
        let flooding = Flood::Slow.start(&flooder, 80);
        let heard = Asker { rate: 500, fresh: false, patience: PATIENCE }.ask(neighbour, TURN);
        assert_eq!((heard.failed, heard.wrong.len()), (0, 0), "{:?}", heard.first_failure);
        flooding.stop();
        rounds.push(Usage::of(node.pid()));
        figures.say(&format!("slow, again:            {heard}; {}", rounds.last().unwrap()));
    }
    let grown = |of: fn(&Usage) -> u64| of(&rounds[3]).saturating_sub(of(&rounds[2]));
    assert!(grown(|usage| usage.resident) < TOLERANCE, "{rounds:?}");
    Usage::all_given_back(node.pid(), &before);
}
