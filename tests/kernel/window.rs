//! The window between an interface's birth and its guard: nobody can close it from user space, so it is measured.
//!
//! A guest shouts for the metadata address at full speed from the first instant that its tap exists, and the tap joins
//! the bridge at once. Firmware takes longer to send its first frame, and Proxmox takes longer to raise the interface:
//! this is the worst that can be.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::world::figures::{Figures, ms, quantile};
use crate::world::watch::uplink;
use crate::world::{Namespace, Node, frames, tap, until};

/// So that the 99th of a hundred is one that was seen.
const BIRTHS: usize = 100;

/// What is seen of one birth.
struct Birth {
    /// From the birth on until `steer` is pinned.
    steer: Duration,
    /// And both programs.
    both: Duration,
    /// Frames that reached the bridge.
    passed: u64,
}

/// A shell of `ip` that waits for its commands, so that starting it takes no part of the window.
fn shell(namespace: &Namespace) -> (std::process::Child, std::process::ChildStdin) {
    let mut command = Command::new("ip");
    let mut child = command.args(["-n", namespace.name(), "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take().unwrap();
    (child, input)
}

/// Frames that the bridge forwarded to the uplink, taken or not.
fn forwarded() -> u64 {
    // sysfs shows the namespace it was mounted in; this file shows the reader's own.
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = table.lines().find_map(|line| line.trim().strip_prefix("up0:")).unwrap();
    let fields: Vec<u64> = line.split_whitespace().map(|field| field.parse().unwrap()).collect();
    // Sent and dropped, behind eight columns of what was received.
    fields[9] + fields[11]
}

fn birth(ip: &mut impl Write, helper: Option<&mut Command>) -> Birth {
    until("the last one's pins are gone", || (Node::pins() == 0).then_some(()));
    let before = forwarded();
    let shouts: Vec<_> = frames::from_guest().into_iter().take(4).map(|(_, frame)| frame.0).collect();
    let stop = AtomicBool::new(false);
    let born = Instant::now();
    let wire = tap::born("tap101i0");
    let helper = helper.map(|command| command.spawn().unwrap());
    ip.write_all(b"link set tap101i0 up master vmbr0\n").unwrap();
    let [steer, both] = std::thread::scope(|scope| {
        let shouting = scope.spawn(|| {
            for frame in shouts.iter().cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                let _ = wire.send(frame);
            }
        });
        let times = ["-steer", "-shield"].map(|program| {
            let pinned = || {
                let names = std::fs::read_dir(Node::pin_dir()).unwrap().flatten().map(|entry| entry.file_name());
                names.into_iter().any(|name| name.to_string_lossy().ends_with(program)).then(|| born.elapsed())
            };
            look("it is guarded", pinned)
        });
        stop.store(true, Ordering::Relaxed);
        shouting.join().unwrap();
        times
    });
    let passed = forwarded() - before;
    if let Some(mut helper) = helper {
        assert!(helper.wait().unwrap().success(), "guard attach");
    }
    // The guard holds: the same frames, once more, now that it is up in any case.
    look("its interface is up", || wire.send(&shouts[0]).then_some(()));
    shouts.iter().for_each(|frame| assert!(wire.send(frame)));
    assert_eq!(forwarded() - before, passed, "a frame passed the guard");
    Birth { steer, both: both.max(steer), passed }
}

/// Looks more often than [`until`] does: what is waited for takes milliseconds.
fn look<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(begun.elapsed() < crate::world::PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn say(figures: &Figures, how: &str, births: &[Birth]) {
    let quantiles = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        [0.0, 0.5, 0.9, 0.99, 1.0].map(|share| quantile(&values, share))
    };
    let of = |what: &str, values: Vec<f64>, digits: usize| {
        let [min, p50, p90, p99, max] = quantiles(values).map(|value| format!("{value:.digits$}"));
        figures.say(&format!("{how}: {what}: min {min}, p50 {p50}, p90 {p90}, p99 {p99}, max {max}"));
    };
    of("ms until steer", births.iter().map(|birth| ms(birth.steer)).collect(), 1);
    of("ms until both", births.iter().map(|birth| ms(birth.both)).collect(), 1);
    #[allow(clippy::cast_precision_loss, reason = "a few thousand frames")]
    of("frames that passed", births.iter().map(|birth| birth.passed as f64).collect(), 0);
}

fn node() -> (Node, Namespace) {
    let mut node = Node::new();
    node.vm(101);
    node.namespace.without_ipv6();
    let uplink = uplink(&node);
    uplink.without_ipv6();
    (node, uplink)
}

/// So many births, one after the other.
fn births(node: &Node, mut helper: Option<Command>) -> Vec<Birth> {
    let (mut ip, mut input) = shell(&node.namespace);
    let births = node.namespace.inside(|| (0..BIRTHS).map(|_| birth(&mut input, helper.as_mut())).collect());
    drop(input);
    assert!(ip.wait().unwrap().success());
    births
}

#[test]
fn the_window_between_birth_and_guard_is_what_is_written() {
    let figures = Figures::begin("window", "100 births of a tap whose guest shouts at once");
    let (mut node, _uplink) = node();
    node.start();
    say(&figures, "the daemon", &births(&node, None));
    // As udev's rule does.
    let mut command = Command::new(env!("CARGO_BIN_EXE_pve-imds"));
    command.args(["guard", "attach", "tap101i0", "--pin-dir", "/run/imdstk/bpf"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    say(&figures, "the daemon and `guard attach` at birth", &births(&node, Some(command)));
}
