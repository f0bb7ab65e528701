//! Pins in other people's hands: what is held elsewhere is taken over and never stands twice, and what only has a pin's
//! name is named and left alone.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use pve_imds_transport::bpf::{Pins, Program, Stray};

use crate::world::{Guest, Node, Plug, run, until};

/// A mount namespace that keeps everything as it was.
struct Holder(Child);

impl Holder {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 600"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn two_guests(node: &mut Node) -> [Guest; 2] {
    node.vm(101);
    node.vm(102);
    [(101, Plug::Tap(1)), (102, Plug::Veth)].map(|(vmid, plug)| Guest::plug(node, vmid, plug, "169.254.1.2/16"))
}

fn serve(node: &mut Node, guests: &[Guest]) {
    node.start();
    guests.iter().for_each(|guest| node.await_guard(&guest.tap()));
    guests.iter().for_each(Guest::await_answer);
    guests.iter().for_each(Guest::has_its_own_files);
}

fn strays(node: &Node) -> Vec<Stray> {
    node.namespace.inside(|| Pins::open(&Node::pin_dir()).unwrap().strays().unwrap())
}

fn status(node: &Node) -> (String, String) {
    let output = node.product(&["guard", "status"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Two guests whose daemon is dead and whose guards a mount elsewhere keeps, out of reach.
fn orphaned(node: &mut Node) -> ([Guest; 2], Holder) {
    let guests = two_guests(node);
    serve(node, &guests);
    let holder = Holder::new();
    node.stop("KILL");
    remount();
    (guests, holder)
}

fn remount() {
    run(&format!("umount {0} && mount -t bpf imdstk {0}", Node::pin_dir().display()));
}

#[test]
fn guards_that_a_mount_elsewhere_keeps_are_taken_over_by_the_next_start() {
    let mut node = Node::new();
    let (guests, _holder) = orphaned(&mut node);
    let (shown, _) = status(&node);
    assert_eq!(shown.matches("unpinned").count(), 4, "{shown}");
    serve(&mut node, &guests);
    assert_eq!(strays(&node), []);
    let (shown, _) = status(&node);
    assert_eq!(shown.matches("steer,shield").count(), 2, "{shown}");
    // Of a new device the old `shield` would know nothing.
    let rebuilt = || node.metric("pve_imds_datapath_rebuilds_total{reason=\"gone\"}");
    node.namespace.ip("link del imdstk-a");
    until("rebuilt", || (rebuilt() == 1.0).then_some(()));
    guests.iter().for_each(Guest::await_answer);
    guests.iter().for_each(Guest::has_its_own_files);
    until("/healthz says ok", || node.management("/healthz"));
    assert_eq!(node.metric("pve_imds_datapath_rebuild_failures_total"), 0.0);

    // Nobody here has pins any more, and still there is one way to open everything.
    node.stop("TERM");
    remount();
    let removed = node.product(&["guard", "remove"]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    let out = String::from_utf8_lossy(&removed.stdout).into_owned();
    assert!(guests.iter().all(|guest| out.contains(&guest.tap())) && out.contains("removed 4 links"), "{out}");
    assert_eq!(strays(&node), []);
}

#[test]
fn a_daemon_whose_pins_are_unmounted_pins_the_same_links_again() {
    let mut node = Node::new();
    let guests = two_guests(&mut node);
    serve(&mut node, &guests);
    let _holder = Holder::new();
    let inside = format!("nsenter -m -t {}", node.pid());
    let dir = Node::pin_dir();
    run(&format!("umount {0} && {inside} umount {0} && {inside} mount -t bpf imdstk {0}", dir.display()));
    let expected = node.expected_pins(&guests);
    until("all is pinned anew", || expected.iter().all(|pin| pin.exists()).then_some(()));
    until("/healthz says ok", || node.management("/healthz"));
    guests.iter().for_each(Guest::has_its_own_files);
    let pins = node.inner_pin_dir();
    assert_eq!(node.namespace.inside(|| Pins::open(&pins).unwrap().strays().unwrap()), []);
    assert_eq!(node.metric("pve_imds_datapath_rebuilds_total{reason=\"gone\"}"), 0.0);
}

/// A daemon with the bounds that its unit sets: it may not look into programs that it has no descriptor of.
fn bounded(node: &Node) -> Holder {
    let mut command = node.namespace.command("setpriv");
    command.args(["--bounding-set=-sys_admin", env!("CARGO_BIN_EXE_pve-imds"), "--config"]).arg(node.config());
    Holder(command.arg("serve").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

#[test]
fn a_daemon_within_its_bounds_makes_new_devices_and_says_which_guards_are_out_of_reach() {
    let mut node = Node::new();
    let (guests, _holder) = orphaned(&mut node);
    let index = node.namespace.index("imdstk-a");
    let mut first = bounded(&node);
    assert_eq!(first.0.wait().unwrap().code(), Some(1), "the devices are not to be had");
    let _second = bounded(&node);
    until("/healthz tells", || {
        let mut command = node.namespace.command("curl");
        let output = command.args(["-s", "-m", "5", "http://127.0.0.1:9100/healthz"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("tap102i0 (VM 102): programs that are not").then_some(())
    });
    assert_ne!(node.namespace.index("imdstk-a"), index);
    assert_eq!(guests[1].curl(&["--connect-timeout", "0.3"], "/nocloud/"), None, "silence, not somebody else");
    // What the unit does before each start.
    let all = ["guard", "attach", "--all", "--accept-kinds", "tun,veth", "--pin-dir", "/run/imdstk/bpf"];
    assert!(node.product(&all).status.success());
    until("/healthz says ok", || node.management("/healthz").filter(|text| text == "ok\n"));
    guests.iter().for_each(Guest::await_answer);
    guests.iter().for_each(Guest::has_its_own_files);
    assert_eq!(strays(&node), []);
}

/// A program of ours, held so that it outlives its link.
pub struct Old(std::os::fd::OwnedFd);

impl Old {
    /// What is the `shield` of this interface now.
    pub fn shield(node: &Node, interface: &str) -> Self {
        let index = node.namespace.index(interface);
        let pinned = node.namespace.inside(|| Pins::open(&Node::pin_dir()).unwrap().list().unwrap());
        let shield = pinned.iter().find(|pin| pin.program == Program::Shield && pin.ifindex == index);
        Self::hold(shield.unwrap().program_id)
    }

    /// `BPF_PROG_GET_FD_BY_ID` of bpf(2).
    fn hold(program: u32) -> Self {
        use std::os::fd::FromRawFd;
        let mut which = [program, 0, 0];
        // SAFETY: `bpf_attr` of BPF_PROG_GET_FD_BY_ID is these three numbers.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, 13, &raw mut which, size_of_val(&which)) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the kernel has just made this descriptor for us.
        Self(unsafe { std::os::fd::OwnedFd::from_raw_fd(libc::c_int::try_from(fd).unwrap()) })
    }

    /// `BPF_LINK_CREATE` of bpf(2): behind all others at the egress of this interface. It stays as long as its descriptor.
    pub fn attach(&self, node: &Node, interface: &str) -> std::os::fd::OwnedFd {
        let index = node.namespace.index(interface);
        node.namespace.inside(|| self.attach_here(index))
    }

    fn attach_here(&self, index: u32) -> std::os::fd::OwnedFd {
        use std::os::fd::{AsRawFd, FromRawFd};
        const EGRESS: u32 = 47;
        let mut what = [self.0.as_raw_fd().cast_unsigned(), index, EGRESS, 0, 0, 0, 0, 0];
        // SAFETY: `bpf_attr` of BPF_LINK_CREATE: program, interface, side, flags, and for tcx a neighbour and a revision.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, 28, &raw mut what, size_of_val(&what)) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the kernel has just made this descriptor for us.
        unsafe { std::os::fd::OwnedFd::from_raw_fd(libc::c_int::try_from(fd).unwrap()) }
    }
}

#[test]
fn an_old_shield_behind_the_new_one_is_taken_off_and_told() {
    let mut node = Node::new();
    let guests = two_guests(&mut node);
    serve(&mut node, &guests);
    let old = Old::shield(&node, "tap101i0");
    node.stop("TERM");
    serve(&mut node, &guests);
    // Nobody mends while it sleeps: the control.
    run(&format!("kill -STOP {}", node.pid()));
    let _link = old.attach(&node, "tap101i0");
    assert_eq!(strays(&node).len(), 1);
    assert!(status(&node).0.contains("doubled"));
    run(&format!("kill -CONT {}", node.pid()));
    until("it is taken off", || (node.metric("pve_imds_datapath_mends_total{what=\"double\"}") == 1.0).then_some(()));
    assert_eq!(strays(&node), []);
    guests.iter().for_each(Guest::has_its_own_files);
    assert!(fs::read_to_string(node.log()).unwrap().contains("second guards stood"));
    until("/healthz says ok", || node.management("/healthz"));

    // While nobody serves, the next start does it.
    node.stop("KILL");
    let _link = old.attach(&node, "tap101i0");
    serve(&mut node, &guests);
    assert_eq!(strays(&node), []);
}

#[test]
fn what_only_has_a_pins_name_is_named_once_and_stops_nothing() {
    let mut node = Node::new();
    node.vm(103);
    let guests = two_guests(&mut node);
    let stranger = Node::pin_dir().join("999999-steer");
    fs::create_dir(&stranger).unwrap();
    serve(&mut node, &guests);

    let third = Guest::born(&node, 103, Plug::Veth, "169.254.1.4/16");
    let taken = Node::pin_dir().join(format!("{}-steer", node.namespace.index("tap103i0")));
    // The guard may have been there first; somebody swaps it for something else.
    until("its name is free", || {
        let _ = fs::remove_file(&taken);
        fs::create_dir(&taken).ok()
    });
    third.join(&node);
    let unwell = until("/healthz tells", || {
        let mut command = node.namespace.command("curl");
        let output = command.args(["-s", "-m", "5", "http://127.0.0.1:9100/healthz"]).output().unwrap();
        Some(String::from_utf8_lossy(&output.stdout).into_owned()).filter(|text| text.contains("cannot be guarded"))
    });
    let why = format!("tap103i0 (VM 103): {} has the name of a pin", taken.display());
    assert!(unwell.contains(&why) && unwell.lines().count() == 1, "{unwell}");
    guests.iter().for_each(Guest::has_its_own_files);
    let mends = [&stranger, &taken].map(|path| format!("rmdir {}", path.display()));
    let log = fs::read_to_string(node.log()).unwrap();
    let refused = log.lines().find(|line| line.contains("cannot guard the interface")).unwrap();
    assert!(refused.contains("vmid=103") && refused.contains("tap103i0") && refused.contains(&mends[1]), "{refused}");
    assert_eq!(log.matches(stranger.to_str().unwrap()).count(), 1, "once, and with the mend");
    assert_eq!(log.matches(&mends[1]).count(), 1, "once, though it is tried every second");
    let (shown, named) = status(&node);
    assert!(mends.iter().all(|mend| named.contains(mend)) && shown.contains("tap101i0"), "{shown}{named}");

    fs::remove_dir(&taken).unwrap();
    node.await_guard("tap103i0");
    until("/healthz says ok", || node.management("/healthz"));
    third.await_answer();
    third.has_its_own_files();

    // Nor does it stop the next start, nor the removal.
    node.stop("TERM");
    serve(&mut node, &guests);
    node.stop("TERM");
    let removed = node.product(&["guard", "remove"]);
    let err = String::from_utf8_lossy(&removed.stderr).into_owned();
    assert!(removed.status.success() && err.contains(&mends[0]), "{err}");
    assert!(stranger.is_dir() && Node::pins() == 1, "nobody has touched it");
}
