//! Addresses on our two devices, whoever put them there: they go within a second, and guests are served meanwhile.

use std::time::{Duration, Instant};

use crate::world::{Guest, Node, Plug, until};

fn addresses(node: &Node) -> String {
    ["a", "b"].map(|end| node.namespace.ip(&format!("-o addr show dev imdstk-{end}"))).concat()
}

fn mends(node: &Node) -> f64 {
    node.metric("pve_imds_datapath_mends_total{what=\"addresses\"}")
}

#[test]
fn an_address_on_our_devices_is_taken_off() {
    let mut node = Node::new();
    node.vm(101);
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    // What an earlier run was left with goes at the start.
    node.namespace.ip("link add imdstk-a type veth peer name imdstk-b");
    node.namespace.ip("addr add 10.0.0.1/24 dev imdstk-b");
    node.start();
    node.await_guard("tap101i0");
    assert_eq!(addresses(&node), "");
    let on = "echo 0 > /proc/sys/net/ipv6/conf/imdstk-a/disable_ipv6";
    let keep = "echo 1 > /proc/sys/net/ipv6/conf/imdstk-a/keep_addr_on_down";
    for harm in [
        "ip addr add 10.0.0.1/24 dev imdstk-a".to_owned(),
        "ip addr add 169.254.169.254/32 dev imdstk-b".to_owned(),
        "ip addr add 10.0.0.1/24 dev imdstk-a && ip addr add 10.0.0.2/24 dev imdstk-a".to_owned(),
        format!("{keep} && {on} && ip addr add fd00:9::1/64 nodad dev imdstk-a"),
    ] {
        let (before, begun) = (mends(&node), Instant::now());
        node.namespace.run(&harm);
        until(&format!("gone after {harm}"), || (addresses(&node).is_empty() && mends(&node) > before).then_some(()));
        println!("{harm}: {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(1), "{harm}: {:?}", begun.elapsed());
        guest.has_its_own_files();
    }
    until("/healthz says ok", || node.management("/healthz"));
}
