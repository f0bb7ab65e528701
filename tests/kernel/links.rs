//! Interfaces by the hundred, and a daemon that was asleep while they came and went.

use std::fs;

use crate::world::{Guest, Node, Plug, run, until};

const ADDRESS: &str = "169.254.1.2/16";

/// Messages that the kernel could not keep for the daemon, over all its netlink sockets.
fn lost(node: &Node) -> u64 {
    let pid = node.pid().to_string();
    let table = fs::read_to_string(format!("/proc/{pid}/net/netlink")).unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode; a socket's first port is its process's id.
    rows.filter(|row| row[2] == pid || row[2].starts_with('4')).map(|row| row[8].parse::<u64>().unwrap()).sum()
}

/// Interfaces that are nobody's, made and removed until the daemon's buffer is full.
fn storm(node: &Node) {
    let batch = Node::dir().join("storm");
    let lines: String =
        (0..200).map(|n| format!("link add storm{n} group 77 type veth peer name mrots{n}\n")).collect();
    fs::write(&batch, lines + "link del group 77\n").unwrap();
    until("the kernel drops messages", || {
        run(&format!("ip -n {} -batch {}", node.namespace.name(), batch.display()));
        (lost(node) > 0).then_some(())
    });
}

#[test]
fn a_netlink_overrun_is_noticed_and_healed() {
    let mut node = Node::new();
    (101..=104).for_each(|vmid| node.vm(vmid));
    let stays = Guest::plug(&node, 101, Plug::Veth, ADDRESS);
    let dies = Guest::plug(&node, 102, Plug::Veth, ADDRESS);
    let reborn = Guest::plug(&node, 103, Plug::Veth, ADDRESS);
    node.start();
    for guest in [&stays, &dies, &reborn] {
        node.await_guard(&format!("tap{}i0", guest.vmid));
        guest.has_its_own_files();
    }
    let (gone, again) = (node.namespace.index("tap102i0"), node.namespace.index("tap103i0"));

    run(&format!("kill -STOP {}", node.pid()));
    storm(&node);
    // None of what follows is heard of.
    node.namespace.ip("link del tap102i0");
    node.namespace.ip("link del tap103i0");
    drop((dies, reborn));
    let born = Guest::plug(&node, 104, Plug::Veth, ADDRESS);
    let reborn = Guest::plug_at(&node, 103, again, ADDRESS);
    assert_eq!(node.namespace.index("tap103i0"), again, "the same name and index, another interface");
    run(&format!("kill -CONT {}", node.pid()));

    until("the overrun is noticed", || {
        fs::read_to_string(node.log()).unwrap().contains("events of network interfaces were lost").then_some(())
    });
    for guest in [&born, &reborn] {
        node.await_guard(&format!("tap{}i0", guest.vmid));
        guest.await_answer();
    }
    [&stays, &born, &reborn].into_iter().for_each(Guest::has_its_own_files);
    until("the dead one's seat is free", || (node.metric("pve_imds_guests") == 3.0).then_some(()));
    until("its pins are gone", || (!Node::pin_dir().join(format!("{gone}-steer")).exists()).then_some(()));
    until("/healthz says ok", || node.management("/healthz"));
    until("nothing is half guarded or defunct", || {
        let status = String::from_utf8_lossy(&node.product(&["guard", "status"]).stdout).into_owned();
        (!status.contains("defunct") && !status.contains("half")).then_some(())
    });
}
