//! What the operator and the owner of a VM decide, at a real interface: who is left out, how far answers travel, from which
//! address they are given.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};

use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;
use pve_imds_transport::METADATA_IP;

use crate::world::{Guest, Namespace, Node, Plug, until, user_data};

/// A VM with user data and this policy.
fn with_policy(node: &mut Node, vmid: u32, policy: &str) {
    let notes = format!("<!--#user-data\n{}\n-->\n<!--#imds\n{policy}\n-->", user_data(vmid));
    node.tree.put(vmid, &sample_config(VmId::new(vmid).unwrap(), &notes)).unwrap();
}

fn tagged(node: &mut Node, vmid: u32, tags: &str) {
    let config = sample_config(VmId::new(vmid).unwrap(), &format!("<!--#user-data\n{}\n-->", user_data(vmid)));
    node.tree.put(vmid, &format!("{config}tags: {tags}\n")).unwrap();
}

fn exclude(node: &Node, what: &str) {
    fs::write(node.config(), format!("{}guests: {{exclude: {{{what}}}}}\n", node.settings())).unwrap();
}

fn is_open(node: &Node, interface: &str) -> bool {
    let index = node.namespace.index(interface);
    ["steer", "shield"].iter().all(|program| !Node::pin_dir().join(format!("{index}-{program}")).exists())
}

fn await_open(node: &Node, interface: &str) {
    until(&format!("{interface} is open"), || is_open(node, interface).then_some(()));
    // The pin is gone first and the program soon after: the kernel takes it off when nobody holds it any more.
    let status = || String::from_utf8(node.product(&["guard", "status"]).stdout).unwrap();
    until("nothing of ours runs there", || (!status().contains(&format!("{interface} "))).then_some(()));
}

fn taps(node: &Node, interface: &str) -> String {
    let taps = String::from_utf8(node.product(&["taps"]).stdout).unwrap();
    let row = taps.lines().find(|line| line.starts_with(&format!("{interface} "))).unwrap();
    row.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn an_excluded_guest_has_neither_guard_nor_service_from_when_that_is_known() {
    let mut node = Node::new();
    tagged(&mut node, 101, "lab");
    tagged(&mut node, 102, "prod");
    exclude(&node, "tags: [lab], pools: [left/out]");
    let excluded = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    let served = Guest::plug(&node, 102, Plug::Veth, "169.254.1.3/16");
    // As the udev rule does, which reads no configuration.
    let attached =
        node.product(&["guard", "attach", "--all", "--accept-kinds", "tun,veth", "--pin-dir", "/run/imdstk/bpf"]);
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    assert!(node.is_guarded("tap101i0"), "as long as nobody serves it is guarded");
    assert!(taps(&node, "tap101i0").contains("guarded, excluded (tag lab)"), "{}", taps(&node, "tap101i0"));
    node.start();
    await_open(&node, "tap101i0");
    node.await_guard("tap102i0");
    served.await_answer();
    served.has_its_own_files();
    assert_eq!(excluded.curl(&["--connect-timeout", "1"], "/nocloud/"), None, "nobody answers");
    assert!(taps(&node, "tap101i0").contains(" excluded (tag lab) "), "{}", taps(&node, "tap101i0"));
    assert_eq!(node.management("/healthz").as_deref(), Some("ok\n"), "that it is open is no fault");
    assert_eq!(node.metric("pve_imds_guests_excluded"), 1.0);
    assert_eq!(node.metric("pve_imds_guests"), 1.0);

    // Whoever guards it beside the daemon knows no better, and is put right.
    let attached = node.product(&["guard", "attach", "tap101i0", "--pin-dir", "/run/imdstk/bpf"]);
    assert!(attached.status.success());
    await_open(&node, "tap101i0");

    // One tag goes, one comes.
    tagged(&mut node, 101, "");
    tagged(&mut node, 102, "lab");
    node.await_guard("tap101i0");
    excluded.await_answer();
    excluded.has_its_own_files();
    await_open(&node, "tap102i0");
    assert_eq!(served.curl(&["--connect-timeout", "1"], "/nocloud/"), None);
    let log = fs::read_to_string(node.log()).unwrap();
    let line = log.lines().find(|line| line.contains("tap102i0") && line.contains("excluded:")).unwrap();
    assert!(line.contains("vmid=102") && line.contains("rule=tag lab"), "{line}");

    // The same by pool, which stands in no VM's configuration.
    node.tree.put_file("user.cfg", "pool:left/out::101::\n").unwrap();
    await_open(&node, "tap101i0");
    node.tree.put_file("user.cfg", "pool:left::101::\n").unwrap();
    node.await_guard("tap101i0");
    excluded.await_answer();
    assert_eq!(node.management("/healthz").as_deref(), Some("ok\n"));
    node.stop("TERM");
    assert!(is_open(&node, "tap102i0") && node.is_guarded("tap101i0"), "and so it stays");
}

#[test]
fn a_guest_whose_configuration_comes_late_is_guarded_until_it_says_that_it_is_left_out() {
    let mut node = Node::new();
    exclude(&node, "bridges: [vmbr0]");
    node.start();
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    node.await_guard("tap101i0");
    let answer = until("the guest is answered", || guest.curl(&["--connect-timeout", "1"], "/nocloud/meta-data"));
    assert_eq!(answer, (503, "vm_unknown\n".to_owned()));
    node.vm(101);
    await_open(&node, "tap101i0");
    // One that is known at its birth is never guarded at all.
    node.vm(102);
    until("it is known", || taps_know(&node, 102).then_some(()));
    let guarded = node.guarded();
    let _second = Guest::plug(&node, 102, Plug::Veth, "169.254.1.3/16");
    until("it is left out", || (node.metric("pve_imds_guests_excluded") == 2.0).then_some(()));
    assert!(is_open(&node, "tap102i0"));
    assert_eq!(node.guarded(), guarded);
}

fn taps_know(node: &Node, vmid: u32) -> bool {
    node.metric("pve_imds_inventory_vms") >= 2.0 && node.product(&["inspect", &vmid.to_string()]).status.success()
}

/// The time to live of everything that comes from us.
struct Hops(Child, BufReader<ChildStdout>);

impl Hops {
    fn listen(guest: &Guest) -> Self {
        let mut command = guest.namespace.command("tcpdump");
        command.args(["-i", "eth0", "-Q", "in", "-n", "-v", "-l", "--immediate-mode", "-c", "3"]);
        command.arg(format!("tcp and src host {METADATA_IP}"));
        let (out, err) = (Stdio::piped(), Stdio::piped());
        let mut child = command.stdout(out).stderr(err).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert!(errors.read_line(&mut line).unwrap() > 0, "tcpdump did not start");
        }
        let out = BufReader::new(child.stdout.take().unwrap());
        Self(child, out)
    }

    /// Of the next three packets.
    fn seen(mut self) -> Vec<u8> {
        let mut text = String::new();
        self.1.read_to_string(&mut text).unwrap();
        self.0.wait().unwrap();
        let hops = text.split("ttl ").skip(1).map(|rest| rest.split(',').next().unwrap().parse().unwrap());
        hops.collect()
    }
}

#[test]
fn answers_travel_as_far_as_the_notes_say_on_connections_that_are_open_too() {
    let mut node = Node::new();
    with_policy(&mut node, 101, "enabled: true");
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    node.start();
    guest.await_answer();
    let stream = guest.namespace.inside(|| TcpStream::connect((METADATA_IP, 80)).unwrap());
    let ask = || {
        let mut stream = &stream;
        stream.write_all(b"GET /nocloud/meta-data HTTP/1.1\r\nhost: 169.254.169.254\r\n\r\n").unwrap();
        let mut answer = [0; 2048];
        let length = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    for (policy, hops) in [("enabled: true", 64), ("hop_limit: 1", 1), ("hop_limit: 40", 40), ("hop_limit: 0", 1)] {
        with_policy(&mut node, 101, policy);
        let refused = policy.ends_with(" 0");
        until("the change is seen", || (ask().starts_with("HTTP/1.1 503") == refused).then_some(()));
        until(policy, || {
            let capture = Hops::listen(&guest);
            (0..3).for_each(|_| drop(ask()));
            let seen = capture.seen();
            assert_eq!(seen.len(), 3);
            seen.iter().all(|it| *it == hops).then_some(())
        });
        // And a new one, from its first packet to its last.
        let capture = Hops::listen(&guest);
        let status = guest.curl(&[], "/nocloud/user-data").map(|(status, _)| status);
        assert_eq!((status, capture.seen()), (Some(if refused { 503 } else { 200 }), vec![hops; 3]), "{policy}");
    }
}

#[test]
fn a_policy_keeps_other_addresses_or_everybody_from_the_answers() {
    let mut node = Node::new();
    with_policy(&mut node, 101, "mac: own");
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    // A container of the guest: another address on the same interface.
    let inner = Namespace::new("inner");
    guest.namespace.ip(&format!("link add link eth0 name mv0 netns {} type macvlan mode private", inner.name()));
    inner.ip("link set mv0 address 02:00:00:00:00:01 up");
    inner.ip("addr add 169.254.1.9/16 dev mv0");
    let asks = |namespace: &Namespace, path: &str| {
        let url = format!("http://{METADATA_IP}{path}");
        let mut command = namespace.command("curl");
        command.args(["-s", "-m", "5", "-w", "\n%{http_code}", &url]);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse::<u16>().unwrap(), body.to_owned())
    };
    node.start();
    guest.await_answer();
    guest.has_its_own_files();
    let answered = || Some(asks(&inner, "/nocloud/user-data")).filter(|(status, _)| *status != 0);
    assert_eq!(until("it is answered", answered), (403, "mac_refused\n".to_owned()));
    assert_eq!(asks(&inner, "/pxe"), (200, "#!ipxe\nexit\n".to_owned()));

    with_policy(&mut node, 101, "enabled: false");
    until("the change is seen", || guest.curl(&[], "/nocloud/").filter(|(status, _)| *status == 404));
    for namespace in [&guest.namespace, &inner] {
        assert_eq!(asks(namespace, "/nocloud/user-data"), (404, String::new()));
        assert_eq!(asks(namespace, "/pxe"), (200, "#!ipxe\nexit\n".to_owned()));
    }
    with_policy(&mut node, 101, "mac: any");
    until("the change is seen", || guest.curl(&[], "/nocloud/").filter(|(status, _)| *status == 200));
    assert_eq!(asks(&inner, "/nocloud/user-data"), (200, guest.user_data()));
}
