//! The command line, beside a daemon and without one.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;
use pve_imds_transport::bpf::Pins;

use crate::pins::Old;
use crate::world::{Guest, Node, Plug, run, sh, until};

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
fn a_second_daemon_with_pins_and_devices_of_its_own_ends_too() {
    let (node, guest) = Node::serving_one();
    let other = other_pins();
    let settings = node.settings().replace("/run/imdstk/bpf", other).replace("imdstk-", "imdstk2-");
    std::fs::write(node.config(), settings).unwrap();
    let (status, _, err) = said(&node.product(&["serve"]));
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains(&format!("process {} serves", node.pid())) && err.contains("/run/imdstk/bpf"), "{err}");
    assert!(!node.namespace.ip("-o link show").contains("imdstk2-"), "it has made nothing");
    let pinned = std::fs::read_dir(other).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // The kernel puts two files of its own there.
    assert_eq!(pinned.filter(|name| !name.ends_with(".debug")).collect::<Vec<_>>(), [""; 0], "it has pinned nothing");
    guest.has_its_own_files();
}

/// A second place for pins. Goes with the node.
fn other_pins() -> &'static str {
    let other = "/run/imdstk/other";
    std::fs::create_dir_all(other).unwrap();
    run(&format!("mount -t bpf imdstk {other}"));
    other
}

#[test]
fn a_command_learns_from_the_daemon_where_its_pins_are() {
    let (mut node, _guest) = Node::serving_one();
    let bare = |arguments: &[&str]| {
        let mut command = node.namespace.command(env!("CARGO_BIN_EXE_pve-imds"));
        said(&command.args(arguments).output().unwrap())
    };
    let (status, out, err) = bare(&["guard", "status"]);
    assert!(status == Some(0) && err.is_empty(), "{err}");
    assert!(out.starts_with(&format!("pve-imds serves (pid {})", node.pid())) && out.contains("tap101i0"), "{out}");
    assert_eq!(bare(&["guard", "attach", "tap101i0"]).1, "tap101i0: already guarded\n");
    let (status, out, err) = bare(&["guard", "attach", "--all", "--accept-kinds", "veth"]);
    assert_eq!((status, &*out), (Some(0), "tap101i0: already guarded\n"), "{err}");

    let other = other_pins();
    for arguments in [&["guard", "remove"][..], &["guard", "remove", "--pin-dir", other]] {
        let (status, out, err) = bare(arguments);
        assert!(status == Some(1) && err.contains("stop it first"), "{out}{err}");
        assert!(node.is_guarded("tap101i0"));
    }
    let (status, out, err) = bare(&["guard", "status", "--pin-dir", other]);
    assert!(status == Some(0) && err.contains("has its pins in /run/imdstk/bpf; looking at"), "{err}");
    assert!(out.starts_with("pve-imds serves"), "{out}");

    // Once nobody can be asked, what runs here is found and taken off nevertheless.
    node.stop("TERM");
    let mut command = node.namespace.command(env!("CARGO_BIN_EXE_pve-imds"));
    let (status, out, err) = said(&command.args(["guard", "remove"]).output().unwrap());
    assert!(status == Some(0) && err.contains("nothing is pinned in /run/pve-imds/bpf"), "{err}");
    assert!(out.contains("tap101i0 (index") && out.contains("ip link del imdstk-a"), "{out}");
    let strays = node.namespace.inside(|| Pins::open(&Node::pin_dir()).unwrap().list().unwrap());
    assert!(strays.iter().all(|pin| pin.defunct || pin.ifindex == 0), "nothing runs: {strays:?}");
}

#[test]
fn what_the_daemon_leaves_out_is_not_said_to_be_served() {
    let mut node = Node::new();
    node.vm(101);
    node.vm(102);
    let _first = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    let second = Guest::plug(&node, 102, Plug::Tap(1), "169.254.1.3/16");
    node.start();
    node.await_guard("tap101i0");
    node.await_guard("tap102i0");
    assert_eq!(row(&node, &[], "tap101i0")["mode"], "serve");
    node.stop("TERM");
    std::fs::write(node.config(), node.settings().replace("[tun, veth]", "[tun]")).unwrap();
    node.start();
    second.await_answer();
    let left = row(&node, &[], "tap101i0");
    assert_eq!((&left["mode"], &left["state"]), (&"drop".into(), &"guarded".into()), "{left}");
    assert_eq!(row(&node, &[], "tap102i0")["mode"], "serve");
    assert!(
        std::fs::read_to_string(node.log()).unwrap().contains("left alone"),
        "{}",
        std::fs::read_to_string(node.log()).unwrap()
    );
    let (status, out, err) = said(&node.product(&["taps"]));
    assert!(status == Some(0) && out.contains("tap102i0"), "{out}");
    let left = out.lines().find(|line| line.starts_with("tap101i0 ")).unwrap();
    assert!(left.contains(" guarded  ") && left.ends_with("vm101 (its kind is not accepted: not served)"), "{out}");
    assert_eq!(err, "tap101i0: not served, and guarded: a veth, and datapath.accept_kinds is tun\n");
    let (_, json, _) = said(&node.product(&["taps", "--json"]));
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    let row = rows.as_array().unwrap().iter().find(|row| row["interface"] == "tap101i0").unwrap();
    assert_eq!((&row["guard"], &row["imds"]), (&"guarded".into(), &serde_json::Value::Null), "{row}");
    node.stop("TERM");
    node.product(&["guard", "remove"]);
    let (_, out, err) = said(&node.product(&["taps"]));
    assert!(!out.contains("tap101i0"), "{out}");
    assert_eq!(err, "tap101i0: left alone: a veth, and datapath.accept_kinds is tun\n");
}

#[test]
fn a_directory_that_is_no_bpf_file_system_ends_the_start_with_the_mend() {
    let mut node = Node::new();
    let settings = node.settings().replace("/run/imdstk/bpf", "/run/imdstk/nothing");
    std::fs::write(node.config(), settings).unwrap();
    let output = node.product(&["serve"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("mount -t bpf -o mode=0700 bpf"), "{}", text(&output.stderr));
    std::fs::write(node.config(), node.settings()).unwrap();
    node.start();
}

#[test]
fn the_guard_is_shown_and_removed_only_when_nobody_serves() {
    let (mut node, _guest) = Node::serving_one();
    let status = text(&node.product(&["guard", "status"]).stdout);
    assert!(status.contains(&format!("pid {}", node.pid())), "{status}");
    let row = status.lines().find(|line| line.starts_with("tap101i0")).unwrap();
    assert!(row.contains("steer,shield") && row.ends_with("guarded"), "{row}");
    assert!(!status.contains("nobody serves"), "{status}");
    let taps = |node: &Node| text(&node.product(&["taps"]).stdout);
    let row = |taps: &str| taps.lines().find(|line| line.starts_with("tap101i0")).unwrap().to_owned();
    let whole = row(&taps(&node));
    assert!(whole.contains("101") && whole.contains(" guarded ") && whole.ends_with("vm101"), "{whole}");

    let refused = node.product(&["guard", "remove"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert!(node.is_guarded("tap101i0"));
    node.stop("TERM");
    assert!(node.is_guarded("tap101i0"));
    let status = text(&node.product(&["guard", "status"]).stdout);
    assert!(status.starts_with("nobody serves"), "{status}");
    assert!(status.lines().last().unwrap().starts_with("nobody serves now: mode serve is"), "{status}");
    let index = node.namespace.index("tap101i0");
    for program in ["shield", "steer"] {
        std::fs::remove_file(Node::pin_dir().join(format!("{index}-{program}"))).unwrap();
        let half = row(&taps(&node));
        assert!(half.contains(&format!("half guarded (no {program})")), "{half}");
        let json = text(&node.product(&["taps", "--json"]).stdout);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json[0]["guard"], &json[0]["missing"]), (&"half guarded".into(), &program.into()), "{json}");
        let attached = node.product(&["guard", "attach", "tap101i0", PINS[0], PINS[1]]);
        assert_eq!(text(&attached.stdout), "tap101i0: attached\n", "{}", text(&attached.stderr));
        assert!(row(&taps(&node)).contains(" guarded "), "both again");
    }
    let removed = node.product(&["guard", "remove"]);
    assert_eq!(removed.status.code(), Some(0), "{}", text(&removed.stderr));
    assert!(!node.is_guarded("tap101i0"));
    let out = text(&removed.stdout);
    assert!(out.contains("tap101i0 (index ") && out.contains("ip link del imdstk-a"), "{out}");
}

#[test]
fn view_gives_the_bytes_a_guest_gets() {
    let (node, guest) = Node::serving_one();
    for file in ["", "meta-data", "user-data", "vendor-data", "network-config"] {
        let path = format!("/nocloud/{file}");
        let output = node.product(&["view", "101", &path]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), guest.get(&path), "{path}");
    }
}

#[test]
fn every_step_is_passed_and_can_be_died_at() {
    let (mut node, guest) = Node::serving_one();
    let old = Old::shield(&node, "tap101i0");
    node.stop("TERM");
    node.start();
    node.stop("TERM");
    for word in pve_imds::steps::words() {
        let _double = old.attach(&node, "tap101i0");
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
            sh(&format!("ip -n {} link del tap102i0", node.namespace.name()));
            sh(&format!("ip -n {} link del imdstk-a", node.namespace.name()));
            until(word, || ended().map(drop).or_else(|| rebuilt().map(drop)));
            sh(&format!("kill -TERM {}", daemon.id()));
        }
        let status = daemon.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{word}: {status}");
        assert!(node.is_guarded("tap101i0"), "{word}: the guard stays");
    }
    node.start();
    guest.await_answer();
    guest.has_its_own_files();
}

/// Exit status, standard output, standard error.
fn said(output: &std::process::Output) -> (Option<i32>, String, String) {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn taps_say_which_of_the_nodes_vendor_data_a_guest_gets() {
    let mut node = Node::new();
    let dir = Node::dir().join("vendor-data.d");
    std::fs::create_dir(&dir).unwrap();
    for (name, header) in [("20-lab", "pools: [lab]"), ("10-web", "tags: [web]")] {
        std::fs::write(dir.join(name), format!("---\n{header}\n---\n#!/bin/sh\n")).unwrap();
    }
    std::fs::write(node.config(), format!("{}vendor_data: {{dir: {}}}\n", node.settings(), dir.display())).unwrap();
    for (vmid, tags) in [(101, "web"), (102, "")] {
        node.tree.put(vmid, &format!("{}tags: {tags}\n", sample_config(VmId::new(vmid).unwrap(), ""))).unwrap();
    }
    node.tree.put_file("user.cfg", "pool:lab::101::\n").unwrap();
    let _guests = [101, 102].map(|vmid| Guest::plug(&node, vmid, Plug::Veth, "169.254.1.2/16"));
    let (status, out, err) = said(&node.product(&["taps", "--json"]));
    assert_eq!(status, Some(0), "{err}");
    let rows: Vec<serde_json::Value> = serde_json::from_str(&out).unwrap();
    for (vmid, files, source) in [(101, &["10-web", "20-lab"][..], "node"), (102, &[], "empty")] {
        let row = rows.iter().find(|row| row["vmid"] == vmid).unwrap();
        assert_eq!(row["imds"]["vendor_files"], serde_json::json!(files), "{row}");
        assert_eq!(row["imds"]["sources"]["vendor-data"], source, "{row}");
    }
}

/// A row of `guard status --json`.
fn row(node: &Node, arguments: &[&str], interface: &str) -> serde_json::Value {
    let (status, out, err) = said(&node.product(&[&["guard", "status", "--json"], arguments].concat()));
    assert_eq!(status, Some(0), "{err}");
    let all: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = all["interfaces"].as_array().unwrap();
    rows.iter().find(|row| row["interface"] == interface).unwrap_or_else(|| panic!("{interface} in {out}")).clone()
}

const PINS: [&str; 2] = ["--pin-dir", "/run/imdstk/bpf"];

#[test]
fn a_refused_configuration_touches_nothing_and_a_guest_born_meanwhile_is_guarded_by_hand() {
    let mut node = Node::new();
    node.vm(101);
    node.vm(102);
    let first = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    node.start();
    node.await_guard("tap101i0");
    first.has_its_own_files();
    node.stop("TERM");
    let before = row(&node, &[], "tap101i0");
    assert_eq!((&before["mode"], &before["state"]), (&"serve".into(), &"guarded".into()), "{before}");

    std::fs::write(node.config(), "emulate: x\n").unwrap();
    let (status, _, err) = said(&node.product(&["serve"]));
    assert_eq!(status, Some(64), "{err}");
    assert_eq!(row(&node, &PINS, "tap101i0"), before, "nothing was touched");

    let second = Guest::plug(&node, 102, Plug::Tap(1), "169.254.1.3/16");
    let attach = |name: &str| said(&node.product(&["guard", "attach", name, PINS[0], PINS[1]]));
    assert_eq!(attach("tap102i0"), (Some(0), "tap102i0: attached\n".to_owned(), String::new()));
    assert_eq!(attach("tap102i0"), (Some(0), "tap102i0: already guarded\n".to_owned(), String::new()));
    assert_eq!(attach("tap101i0").1, "tap101i0: already guarded\n");
    assert_eq!(second.curl(&["--connect-timeout", "0.3"], "/nocloud/"), None, "silence");
    let guarded = row(&node, &PINS, "tap102i0");
    assert_eq!((&guarded["mode"], &guarded["state"]), (&"drop".into(), &"guarded".into()), "{guarded}");
    assert!(guarded["drops"].as_u64().unwrap() > 0, "{guarded}");
    let (status, out, err) = said(&node.product(&["guard", "status"]));
    // Where pins are by default there is nothing on this node.
    assert!(status == Some(1) && err.contains("emulate"), "it says why it looks elsewhere: {out}{err}");

    std::fs::write(node.config(), node.settings()).unwrap();
    node.start();
    for guest in [&first, &second] {
        guest.await_answer();
        guest.has_its_own_files();
    }
    assert_eq!(row(&node, &[], "tap102i0")["mode"], "serve", "adopted");
}

#[test]
fn only_guests_interfaces_are_guarded_by_hand() {
    let node = Node::new();
    for name in ["vmbr0", "tap101", "eth0", "tap0101i0", "imdstk-a"] {
        let (status, _, err) = said(&node.product(&["guard", "attach", name, PINS[0], PINS[1]]));
        assert!(status == Some(64) && err.contains("no guest's interface"), "{name}: {err}");
    }
    for (arguments, code, what) in [
        (&["guard", "attach"][..], 64, "IFNAME"),
        (&["guard", "attach", "tap101i0", "--all"], 64, "--all"),
        (&["guard", "attach", "--all", "--pin-dir", "bpf"], 64, "absolute"),
        (&["guard", "attach", "--all", "--pin-dir", "/run/imdstk"], 1, "mount -t bpf -o mode=0700 bpf"),
        (&["guard", "attach", "tap101i0", PINS[0], PINS[1]], 1, "there is no interface tap101i0"),
    ] {
        let (status, out, err) = said(&node.product(arguments));
        assert!(status == Some(code) && err.contains(what), "{arguments:?}: {status:?} {out}{err}");
    }
}

#[test]
fn all_of_the_accepted_kinds_are_guarded_at_once_beside_a_daemon_that_does_not_mind() {
    let mut node = Node::new();
    let mut guests = Vec::new();
    for (vmid, plug) in [(101, Plug::Veth), (102, Plug::Tap(1)), (103, Plug::Veth)] {
        node.vm(vmid);
        guests.push(Guest::plug(&node, vmid, plug, "169.254.1.2/16"));
    }
    let all = |kinds: &[&str]| said(&node.product(&[&["guard", "attach", "--all"], &PINS[..], kinds].concat()));
    let (status, out, err) = all(&[]);
    assert_eq!((status, &*out), (Some(0), "tap102i0: attached\n"), "taps unless told otherwise");
    let left = ["tap101i0", "tap103i0"].map(|tap| format!("{tap}: left alone: a veth, and --accept-kinds is tun\n"));
    assert_eq!(err, left.concat());
    let (status, out, err) = all(&["--accept-kinds", "tunn"]);
    assert!(status == Some(64) && out.is_empty() && err.contains("did you mean tun?"), "{status:?} {out}{err}");
    let both = ["--accept-kinds", "tun,veth"];
    let (status, out, _) = all(&both);
    assert_eq!(status, Some(0));
    assert_eq!(out, "tap103i0: attached\ntap102i0: already guarded\ntap101i0: attached\n", "the newest first");

    node.start();
    guests.iter().for_each(Guest::has_its_own_files);
    let newcomer = Guest::plug(&node, 104, Plug::Veth, "169.254.1.2/16");
    let all = |kinds: &[&str]| said(&node.product(&[&["guard", "attach", "--all"], &PINS[..], kinds].concat()));
    let (status, out, err) = all(&both);
    assert!(status == Some(0) && out.lines().count() == 4, "{out}{err}");
    node.vm(104);
    node.await_guard("tap104i0");
    guests.push(newcomer);
    for guest in &guests {
        guest.await_answer();
        until("the VM is known", || guest.curl(&[], "/nocloud/meta-data").filter(|(status, _)| *status == 200));
        guest.has_its_own_files();
    }
    assert_eq!(node.metric("pve_imds_guard_attachments_total{result=\"failed\"}"), 0.0);
    assert_eq!(row(&node, &[], "tap104i0")["mode"], "serve");
}

#[test]
fn the_guard_of_another_namespace_is_not_taken_for_ours() {
    let (mut node, _guest) = Node::serving_one();
    let outside = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pve-imds"));
        text(&command.args(["guard", "status", PINS[0], PINS[1]]).output().unwrap().stdout)
    };
    for _ in 0..2 {
        let status = outside();
        assert!(status.contains("in another network namespace"), "{status}");
        assert!(!status.contains("defunct") && !status.contains("tap101i0"), "{status}");
        assert!(status.lines().any(|line| line.starts_with('-') && line.contains("steer,shield")), "{status}");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pve-imds"));
        let (removed, out, err) = said(&command.args(["guard", "remove", PINS[0], PINS[1]]).output().unwrap());
        assert_eq!((removed, &*out), (Some(1), ""), "{err}");
        assert!(err.contains(if node.is_running() { "stop it first" } else { "another network namespace" }), "{err}");
        assert!(node.is_guarded("tap101i0"));
        // Once more without the process that could be asked where it lives.
        if node.is_running() {
            node.stop("TERM");
        }
    }
}

#[test]
fn what_readme_says_for_those_without_proxmox_works_as_it_stands() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let (_, section) = readme.split_once("### Without Proxmox\n").unwrap();
    let script = section.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    // Names are those of a real node, so the namespaces are nobody's, and end with it.
    let around = "mount -t tmpfs none /run && mkdir /run/netns && ip link set lo up && set -e";
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_pve-imds")).parent().unwrap();
    let mut command = std::process::Command::new("unshare");
    command.args(["--net", "--mount", "bash", "-c", &format!("{around}\n{script}\nip -o link show")]);
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let (status, out, err) = said(&command.output().unwrap());
    assert_eq!(status, Some(0), "{out}{err}");
    assert_eq!(out.matches("#cloud-config\npackages: [nginx]").count(), 2, "once for view, once for the guest: {out}");
    assert!(out.contains("steer,shield     serve"), "{out}");
    assert!(!out.contains("imds-b@") && !out.contains("tap106i0@"), "nothing is left: {out}");
}
