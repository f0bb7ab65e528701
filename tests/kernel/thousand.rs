//! A thousand interfaces appear, are served, vanish and return: each has its own answers, and nothing is left behind.

use std::time::{Duration, Instant};

use crate::world::crowd::{Answers, Crowd};
use crate::world::figures::{Figures, ms, quantile};
use crate::world::memory::Usage;
use crate::world::{Node, until_within};

const FIRST: u32 = 1000;
const COUNT: u32 = 1000;

/// Two links for each interface, for each of which the kernel waits for a grace period: half a minute on an idle machine.
const LONG: Duration = Duration::from_secs(150);

/// What the allocator may keep between one crowd and the next, KiB.
const TOLERANCE: u64 = 4 << 10;

fn all_guarded(node: &Node, before: f64) {
    until_within(LONG, "all are guarded", || (node.guarded() - before >= f64::from(COUNT)).then_some(()));
    assert!(node.metric("pve_imds_guests") == f64::from(COUNT));
    assert_eq!(Node::pins(), 2 * COUNT as usize);
}

#[track_caller]
fn all_their_own(answers: &Answers) {
    assert_eq!((&answers.wrong[..], &answers.silent[..]), (&[][..], &[][..]));
    assert_eq!(answers.times.len(), COUNT as usize);
}

/// How long what a thousand at once have taken may be held: each had a connection, and on a busy machine those end late.
const SETTLES: Duration = Duration::from_secs(30);

/// Kills the daemon and starts it again: how long until each of them is answered.
fn restart(node: &mut Node, crowd: &Crowd, figures: &Figures) {
    for _ in 0..3 {
        let answers = std::thread::scope(|scope| {
            node.stop("KILL");
            let asking = scope.spawn(|| crowd.ask(LONG));
            node.start();
            asking.join().unwrap()
        });
        all_their_own(&answers);
        let [first, half, last] = [0.0, 0.5, 1.0].map(|share| ms(quantile(&answers.times, share)));
        figures.say(&format!(
            "killed and started again: answered {first:.0} ms (first), {half:.0} ms (half), {last:.0} ms (last) later"
        ));
    }
    figures.say(&format!("started among them: {}", Usage::of(node.pid())));
}

#[test]
fn a_thousand_interfaces_are_served_vanish_and_return_and_leave_nothing() {
    let figures = Figures::begin("thousand", "1,000 interfaces");
    let mut node = Node::new();
    // A line for each of a thousand births is not what is looked at.
    std::fs::write(node.config(), node.settings().replace("log_level: debug", "log_level: warn")).unwrap();
    (FIRST..FIRST + COUNT).for_each(|vmid| node.vm(vmid));
    node.start();
    let idle = Usage::of(node.pid());

    let mut full = Vec::new();
    for round in ["appear", "return"] {
        let before = node.guarded();
        let begun = Instant::now();
        let crowd = Crowd::plug(&node, FIRST, COUNT);
        let plugged = begun.elapsed();
        all_guarded(&node, before);
        let guarded = begun.elapsed();
        all_their_own(&crowd.ask(LONG));
        let usage = Usage::of(node.pid());
        figures.say(&format!(
            "they {round}: plugged in {:.1} s, guarded after {:.1} s; {usage}",
            plugged.as_secs_f64(),
            guarded.as_secs_f64()
        ));
        if let Some(first) = full.first() {
            Usage::all_given_back(node.pid(), first);
        }
        full.push(usage);
        // What is left is compared with what the same process held.
        if round == "return" {
            restart(&mut node, &crowd, &figures);
        }
        let most = until_within(SETTLES, "all at once take no more than one by one", || {
            Some(Usage::of(node.pid())).filter(|now| now.resident <= usage.resident + TOLERANCE)
        });

        drop(crowd);
        until_within(LONG, "all seats are free", || (node.metric("pve_imds_guests") == 0.0).then_some(()));
        until_within(LONG, "all pins are gone", || (Node::pins() == 0).then_some(()));
        let left = Usage::of(node.pid());
        figures.say(&format!("they vanish: {left}"));
        Usage::all_given_back(node.pid(), &idle);
        assert!(left.resident <= most.resident + TOLERANCE, "{most}, then {left}");
    }
    let [first, second] = [full[0], full[1]];
    assert!(second.resident <= first.resident + TOLERANCE, "{first}, then {second}");
}
