//! The command line, beside a daemon and without one.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use crate::world::{Guest, Node, Plug, sh, until};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_second_daemon_ends_and_names_the_first() {
    let mut node = Node::new();
    node.start();
    let second = node.product(&["serve"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains(&format!("{}", node.pid())), "{}", text(&second.stderr));
}

#[test]
fn a_directory_that_is_no_bpf_file_system_ends_the_start_with_the_mend() {
    let mut node = Node::new();
    let settings = node.settings().replace("/run/imdstk/bpf", "/run/imdstk/nothing");
    std::fs::write(node.config(), settings).unwrap();
    let output = node.product(&["serve"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("mount -t bpf"), "{}", text(&output.stderr));
    std::fs::write(node.config(), node.settings()).unwrap();
    node.start();
}

#[test]
fn the_guard_is_shown_and_removed_only_when_nobody_serves() {
    let mut node = Node::new();
    node.vm(101);
    let _guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    node.start();
    node.await_guard("tap101i0");
    let status = text(&node.product(&["guard", "status"]).stdout);
    assert!(status.contains(&format!("pid {}", node.pid())), "{status}");
    let row = status.lines().find(|line| line.starts_with("tap101i0")).unwrap();
    assert!(row.contains("steer,shield") && row.ends_with("guarded"), "{row}");
    let taps = text(&node.product(&["taps"]).stdout);
    let row = taps.lines().find(|line| line.starts_with("tap101i0")).unwrap();
    assert!(row.contains("101") && row.contains("guarded") && row.ends_with("vm101"), "{row}");

    let refused = node.product(&["guard", "remove"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert!(node.is_guarded("tap101i0"));
    node.stop("TERM");
    assert!(node.is_guarded("tap101i0"));
    assert!(text(&node.product(&["guard", "status"]).stdout).contains("nobody serves"));
    let removed = node.product(&["guard", "remove"]);
    assert_eq!(removed.status.code(), Some(0), "{}", text(&removed.stderr));
    assert!(!node.is_guarded("tap101i0"));
}

#[test]
fn view_gives_the_bytes_a_guest_gets() {
    let mut node = Node::new();
    node.vm(101);
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    node.start();
    node.await_guard("tap101i0");
    for file in ["", "meta-data", "user-data", "vendor-data", "network-config"] {
        let path = format!("/nocloud/{file}");
        let output = node.product(&["view", "101", &path]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), guest.get(&path), "{path}");
    }
}

#[test]
fn every_step_is_passed_and_can_be_died_at() {
    let mut node = Node::new();
    node.vm(101);
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    node.start();
    node.await_guard("tap101i0");
    node.stop("TERM");
    for word in pve_imds::steps::words() {
        let mut command = node.namespace.command(env!("CARGO_BIN_EXE_pve-imds"));
        command.env("PVE_IMDS_TEST_KILL_AT", word).arg("--config").arg(node.config()).arg("serve");
        let mut daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut ended = || daemon.try_wait().unwrap();
        let serves = until(word, || ended().map(|_| false).or_else(|| node.management("/healthz").map(|_| true)));
        if serves {
            // The rest of a life: a guest comes, our device goes, the end.
            node.namespace.ip("link add tap102i0 type veth peer name stray");
            let rebuilt = || node.management("/metrics").filter(|text| text.contains("{reason=\"gone\"} 1"));
            until(word, || ended().map(drop).or_else(|| node.is_guarded("tap102i0").then_some(())));
            sh(&format!("ip -n {} link del imdstk-a", node.namespace.name()));
            until(word, || ended().map(drop).or_else(|| rebuilt().map(drop)));
            sh(&format!("kill -TERM {}", daemon.id()));
        }
        let status = daemon.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{word}: {status}");
        sh(&format!("ip -n {} link del tap102i0", node.namespace.name()));
        assert!(node.is_guarded("tap101i0"), "{word}: the guard stays");
    }
    node.start();
    guest.await_answer();
    guest.has_its_own_files();
}
