//! Our two devices, programs and pins in other people's hands: whatever is done to them is mended within a second, and
//! guests get their own answers again.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::world::{Guest, Namespace, Node, Plug, run, sh, until};

/// What is promised of every mend.
const PROMISE: Duration = Duration::from_secs(1);

fn served() -> (Node, Vec<Guest>) {
    let mut node = Node::new();
    node.vm(101);
    node.vm(102);
    let guests = vec![
        Guest::plug(&node, 101, Plug::Tap(1), "169.254.1.2/16"),
        Guest::plug(&node, 102, Plug::Veth, "169.254.1.2/16"),
    ];
    node.start();
    guests.iter().for_each(|guest| node.await_guard(&format!("tap{}i0", guest.vmid)));
    guests.iter().for_each(Guest::has_its_own_files);
    (node, guests)
}

/// Does it, and measures until `mended` says so and the first guest is answered; then everyone has its own files.
#[track_caller]
fn mended_after(
    what: &str,
    (node, guests): (&Node, &[Guest]),
    harm: impl FnOnce(),
    mut mended: impl FnMut() -> bool,
) -> Duration {
    let begun = Instant::now();
    harm();
    until(&format!("mended after: {what}"), || mended().then_some(()));
    let took = begun.elapsed();
    until("the guest is answered", || guests[0].curl(&["--connect-timeout", "0.2"], "/nocloud/"));
    println!("{what}: mended after {took:?}, answered after {:?}", begun.elapsed());
    assert!(took < PROMISE, "{what}: {took:?}");
    guests.iter().for_each(Guest::has_its_own_files);
    until("/healthz says ok", || node.management("/healthz"));
    took
}

fn rebuilds(node: &Node, reason: &str) -> f64 {
    node.metric(&format!("pve_imds_datapath_rebuilds_total{{reason=\"{reason}\"}}"))
}

fn mends(node: &Node, what: &str) -> f64 {
    node.metric(&format!("pve_imds_datapath_mends_total{{what=\"{what}\"}}"))
}

/// What the kernel says of one of our devices.
fn device(node: &Node, end: char) -> serde_json::Value {
    let output = sh(&format!("ip -n {} -d -j link show dev imdstk-{end}", node.namespace.name()));
    let mut all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    all[0].take()
}

/// Does several things that the daemon then hears of at once.
fn while_it_sleeps<T>(node: &Node, work: impl FnOnce() -> T) -> T {
    run(&format!("kill -STOP {}", node.pid()));
    let result = work();
    run(&format!("kill -CONT {}", node.pid()));
    result
}

/// Somebody's interface of another kind takes our device's name: it is nothing of ours to delete.
fn usurp(node: &Node) {
    while_it_sleeps(node, || {
        node.namespace.ip("link del imdstk-a");
        node.namespace.ip("link add imdstk-a type bridge");
    });
}

/// The status and the text of `/healthz`, whatever they are.
fn health(node: &Node) -> (String, String) {
    let mut command = node.namespace.command("curl");
    let output = command.args(["-s", "-m", "5", "-w", "%{http_code}", "http://127.0.0.1:9100/healthz"]).output();
    let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    let (text, status) = text.split_at(text.len().saturating_sub(3));
    (status.to_owned(), text.to_owned())
}

#[test]
fn a_pair_that_is_lost_is_made_anew() {
    let (node, guests) = served();
    let away = Namespace::new("away");
    let ip = |arguments: &str| node.namespace.ip(arguments);
    let moved = |end: char| ip(&format!("link set imdstk-{end} netns {}", away.name()));
    let harms: [(&str, &str, &dyn Fn() -> String); 7] = [
        ("a is deleted", "gone", &|| ip("link del imdstk-a")),
        ("b is deleted", "gone", &|| ip("link del imdstk-b")),
        ("a is renamed", "renamed", &|| ip("link set imdstk-a name imdstk-x")),
        ("b is renamed", "renamed", &|| ip("link set imdstk-b name imdstk-x")),
        ("a is moved away", "gone", &|| moved('a')),
        ("b is moved away", "gone", &|| moved('b')),
        ("the pair is replaced", "gone", &|| {
            while_it_sleeps(&node, || {
                ip("link del imdstk-a");
                ip("link add imdstk-a type veth peer name imdstk-b")
            })
        }),
    ];
    for (what, reason, harm) in harms {
        let before = rebuilds(&node, reason);
        mended_after(what, (&node, &guests), || drop(harm()), || rebuilds(&node, reason) > before);
    }
    let left = ip("-o link show");
    assert!(!left.contains("imdstk-x"), "nothing is left of the old pairs: {left}");
    assert!(!away.ip("-o link show").contains("imdstk-"), "there neither");
    assert_eq!(node.metric("pve_imds_datapath_rebuild_failures_total"), 0.0);
    let status = String::from_utf8_lossy(&node.product(&["guard", "status"]).stdout).into_owned();
    assert!(!status.contains("defunct"), "{status}");
}

#[test]
fn what_is_changed_on_a_device_is_put_right() {
    let (node, guests) = served();
    let namespace = &node.namespace;
    let harms: [(&str, &str, &str); 10] = [
        ("down", "a", "ip link set imdstk-a down"),
        ("down", "b", "ip link set imdstk-b down"),
        ("mtu", "a", "ip link set imdstk-a mtu 1500"),
        ("mtu", "b", "ip link set imdstk-b mtu 1000"),
        ("arp", "a", "ip link set imdstk-a arp on"),
        ("addresses", "b", "ip link set imdstk-b addrgenmode eui64"),
        ("ipv6", "a", "echo 0 > /proc/sys/net/ipv6/conf/imdstk-a/disable_ipv6"),
        ("offload", "a", "ethtool -K imdstk-a tx on"),
        ("master", "a", "ip link set imdstk-a master vmbr0"),
        ("master", "b", "ip link set imdstk-b master vmbr0"),
    ];
    for (what, end, command) in harms {
        let before = mends(&node, what);
        let title = format!("{what} of {end}");
        mended_after(&title, (&node, &guests), || drop(namespace.run(command)), || mends(&node, what) > before);
        for end in ['a', 'b'] {
            let found = device(&node, end);
            let flags: Vec<_> = found["flags"].as_array().unwrap().iter().filter_map(|flag| flag.as_str()).collect();
            assert!(flags.contains(&"UP") && flags.contains(&"NOARP"), "{title}: {found}");
            assert_eq!((&found["mtu"], &found["inet6_addr_gen_mode"]), (&65521.into(), &"none".into()), "{title}");
            assert!(found["master"].is_null(), "{title}: {found}");
            let addresses = node.namespace.ip(&format!("-o addr show dev imdstk-{end}"));
            assert!(addresses.trim().is_empty(), "{title}: {addresses}");
        }
    }
    assert!(Broken::none(&node), "nothing was rebuilt for that");
}

/// The words of everything that can be rebuilt for.
struct Broken;

impl Broken {
    fn none(node: &Node) -> bool {
        ["gone", "renamed", "parted", "socket", "ring", "guard"].iter().all(|reason| rebuilds(node, reason) == 0.0)
    }
}

#[test]
fn programs_that_are_taken_off_are_put_back() {
    let (node, guests) = served();
    let pin = |name: &str| Node::pin_dir().join(name);
    let index = node.namespace.index("tap101i0");
    for (what, name) in [
        ("program", "funnel".to_owned()),
        ("program", "return".to_owned()),
        ("guard", format!("{index}-steer")),
        ("guard", format!("{index}-shield")),
    ] {
        for (how, harm) in [("unpinned", unpin as fn(&Path)), ("detached by force", detach)] {
            let before = mends(&node, what);
            let title = format!("{name} is {how}");
            mended_after(&title, (&node, &guests), || harm(&pin(&name)), || mends(&node, what) > before);
        }
    }
    let status = String::from_utf8_lossy(&node.product(&["guard", "status"]).stdout).into_owned();
    assert!(!status.contains("half") && !status.contains("defunct"), "{status}");
    assert!(Broken::none(&node), "nothing was rebuilt for that");
}

fn unpin(pin: &Path) {
    fs::remove_file(pin).unwrap();
}

/// `BPF_LINK_DETACH` of bpf(2): the pin stays, the link does nothing any more.
fn detach(pin: &Path) {
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::ffi::OsStrExt;
    const BPF_OBJ_GET: libc::c_int = 7;
    const BPF_LINK_DETACH: libc::c_int = 34;
    let path = std::ffi::CString::new(pin.as_os_str().as_bytes()).unwrap();
    let mut get: [u64; 2] = [path.as_ptr().expose_provenance() as u64, 0];
    // SAFETY: `bpf_attr` of BPF_OBJ_GET: a pointer to a path that lives, a descriptor of 0 and no flags.
    let link = unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET, &raw mut get, size_of_val(&get)) };
    assert!(link >= 0, "{}: {}", pin.display(), std::io::Error::last_os_error());
    // SAFETY: the kernel has just made this descriptor for us.
    let _closed_at_the_end = unsafe { OwnedFd::from_raw_fd(libc::c_int::try_from(link).unwrap()) };
    let mut which: [u32; 2] = [u32::try_from(link).unwrap(), 0];
    // SAFETY: `bpf_attr` of BPF_LINK_DETACH begins with the descriptor of the link.
    let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_DETACH, &raw mut which, size_of::<u32>()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_file_system_that_is_unmounted_is_told_and_all_is_pinned_anew_when_it_is_back() {
    let (node, guests) = served();
    // `ip netns exec` gave the daemon mounts of its own.
    let (dir, inside) = (Node::pin_dir(), format!("nsenter -m -t {}", node.pid()));
    run(&format!("umount {0} && {inside} umount {0}", dir.display()));
    let (_, text) = until("/healthz tells", || Some(health(&node)).filter(|(status, _)| status == "503"));
    assert!(
        text.contains("mount -t bpf -o mode=0700 bpf") && text.lines().count() == 1,
        "one line with the mend: {text}"
    );
    let mount = || run(&format!("{inside} mount -t bpf imdstk {}", dir.display()));
    let expected = node.expected_pins(&guests);
    let pinned = || expected.iter().all(|pin| pin.exists());
    mended_after("the file system is back", (&node, &guests), || drop(mount()), pinned);
}

#[test]
fn a_rebuild_that_fails_is_tried_again_and_told() {
    let (node, guests) = served();
    usurp(&node);
    let (_, text) = until("/healthz tells why", || {
        Some(health(&node)).filter(|(status, text)| status == "503" && text.contains("ip link del imdstk-a"))
    });
    assert!(text.contains("gone") && text.lines().count() == 1, "{text}");
    assert!(node.metric("pve_imds_datapath_rebuild_failures_total") >= 1.0);
    assert_eq!(guests[1].curl(&["--connect-timeout", "0.3"], "/nocloud/"), None, "silence meanwhile");
    let free = || node.namespace.ip("link del imdstk-a");
    // The last wait may be a whole second.
    let begun = Instant::now();
    free();
    until("rebuilt", || (rebuilds(&node, "gone") == 1.0).then_some(()));
    assert!(begun.elapsed() < PROMISE * 2, "{:?}", begun.elapsed());
    guests[0].await_answer();
    guests.iter().for_each(Guest::has_its_own_files);
    until("/healthz says ok", || node.management("/healthz"));
}

#[test]
fn a_single_device_is_taken_away_if_it_is_what_is_left_of_ours_and_not_otherwise() {
    let (mut node, guests) = served();
    node.stop("TERM");
    node.namespace.ip("link set imdstk-b name imdstk-x");
    node.start();
    guests.iter().for_each(Guest::await_answer);
    guests.iter().for_each(Guest::has_its_own_files);
    assert!(!node.namespace.ip("-o link show").contains("imdstk-x"), "the rest of ours went");
    node.stop("TERM");
    node.namespace.ip("link del imdstk-a");
    for end in ['a', 'b'] {
        node.namespace.ip(&format!("link add imdstk-{end} type veth peer name somebodys"));
        let refused = node.product(&["serve"]);
        let err = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{err}");
        assert!(err.contains(&format!("ip link del imdstk-{end}")), "{err}");
        node.namespace.ip("link del somebodys");
    }
    node.start();
    guests.iter().for_each(Guest::await_answer);
    guests.iter().for_each(Guest::has_its_own_files);
}

#[test]
fn a_daemon_is_stopped_in_the_middle_of_a_rebuild() {
    let (mut node, _guests) = served();
    usurp(&node);
    until("it is tried", || (node.metric("pve_imds_datapath_rebuild_failures_total") >= 1.0).then_some(()));
    let begun = Instant::now();
    node.stop("TERM");
    assert!(begun.elapsed() < PROMISE, "{:?}", begun.elapsed());
    assert!(node.is_guarded("tap101i0"), "and guards stay");
}
