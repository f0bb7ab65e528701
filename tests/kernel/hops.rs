//! A container inside a guest asks for a session token, and `hop_limit` decides whether it gets one.
//!
//! In come the ways by which guests pass their containers' questions on: as a router, behind the guest's own address, and
//! under another address that the guest takes for ours, as Docker and Kubernetes do. An answer for the guest itself needs no
//! hop, one for a container a second; the guest's kernel is who refuses to pass it on, and its own counter says so.

use pve_imds_datasources::backends::testing::sample_config;
use pve_imds_model::vm::VmId;

use crate::world::{Guest, Namespace, Node, Plug, until};

/// How a question of the container gets to us.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Whom the container asks.
    asks: &'static str,
    /// What the guest does to addresses.
    rules: &'static str,
}

const WAYS: &[Way] = &[
    Way { asks: "169.254.169.254", rules: "" },
    Way {
        asks: "169.254.169.254",
        rules: "chain out { type nat hook postrouting priority srcnat; oifname eth0 masquerade; };",
    },
    Way {
        asks: "192.0.2.7:8080",
        rules: "chain in { type nat hook prerouting priority dstnat; \
                ip daddr 192.0.2.7 tcp dport 8080 dnat to 169.254.169.254:80; }; \
                chain out { type nat hook postrouting priority srcnat; oifname eth0 masquerade; };",
    },
];

impl Way {
    /// Has the guest pass questions on in this way and no other.
    fn take(self, guest: &Guest) {
        guest.namespace.run(&format!("nft flush ruleset && nft \"table ip way {{ {} }}\"", self.rules));
    }
}

fn with_limit(node: &mut Node, vmid: u32, hops: u8) {
    let notes = format!("<!--#imds\nhop_limit: {hops}\n-->");
    node.tree.put(vmid, &sample_config(VmId::new(vmid).unwrap(), &notes)).unwrap();
}

/// A namespace behind the guest's, which the guest routes for.
fn container(guest: &Guest) -> Namespace {
    let inner = Namespace::new("inner");
    guest.namespace.ip(&format!("link add c0 type veth peer name eth0 netns {}", inner.name()));
    guest.namespace.ip("addr add 10.88.0.1/24 dev c0");
    guest.namespace.ip("link set c0 up");
    guest.namespace.run("echo 1 > /proc/sys/net/ipv4/ip_forward");
    inner.ip("addr add 10.88.0.2/24 dev eth0");
    inner.ip("link set eth0 up");
    inner.ip("route add default via 10.88.0.1");
    inner
}

/// What is answered to these arguments of `curl`, as status and body; `None` within two seconds: nothing.
fn ask(from: &Namespace, arguments: &[&str]) -> Option<(u16, String)> {
    let mut command = from.command("curl");
    command.args(["-s", "-m", "2", "-w", "\n%{http_code}"]).args(arguments);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    // Half an answer is none.
    output.status.success().then(|| (status.parse().unwrap(), body.to_owned()))
}

/// A session token.
fn token(from: &Namespace, whom: &str) -> Option<String> {
    let url = format!("http://{whom}/latest/api/token");
    let (status, token) = ask(from, &["-X", "PUT", "-H", "X-aws-ec2-metadata-token-ttl-seconds: 60", &url])?;
    assert_eq!(status, 200, "{token}");
    Some(token)
}

/// How many packets the guest's kernel has not passed on because they had come far enough.
fn ended_here(guest: &Guest) -> u64 {
    let text = guest.namespace.run("cat /proc/net/snmp");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: ")).map(|line| line.split(' '));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let (_, count) = names.zip(values).find(|(name, _)| *name == "InHdrErrors").unwrap();
    count.parse().unwrap()
}

#[test]
fn a_container_gets_a_token_with_two_hops_and_none_with_one() {
    let mut node = Node::new();
    with_limit(&mut node, 101, 1);
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    let inner = container(&guest);
    node.start();
    guest.await_answer();
    for way in WAYS {
        way.take(&guest);
        with_limit(&mut node, 101, 2);
        let given = until(&format!("{way:?}: with two hops"), || token(&inner, way.asks));
        // The guest and its container are one VM.
        let url = format!("http://{}/latest/meta-data/instance-id", way.asks);
        let answer = ask(&inner, &["-H", &format!("X-aws-ec2-metadata-token: {given}"), &url]);
        assert_eq!(answer, Some((200, "i-08000000000000101".to_owned())), "{way:?}");

        with_limit(&mut node, 101, 1);
        until(&format!("{way:?}: with one hop"), || token(&inner, way.asks).is_none().then_some(()));
        let before = ended_here(&guest);
        assert_eq!(token(&inner, way.asks), None, "{way:?}: and so it stays");
        assert!(ended_here(&guest) > before, "{way:?}: it came as far as the guest");
        assert!(token(&guest.namespace, "169.254.169.254").is_some(), "{way:?}: the guest itself has one");
    }
}
