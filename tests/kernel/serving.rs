//! Guests get their own files, however they are plugged in, and nobody else's.

use std::sync::atomic::Ordering;

use crate::world::sink::Sink;
use crate::world::{Guest, MANAGEMENT, Node, Plug, sh, until};

const ADDRESS: &str = "169.254.1.2/16";

fn node_with(vmids: &[u32]) -> Node {
    let mut node = Node::new();
    for vmid in vmids {
        node.vm(*vmid);
    }
    node
}

#[test]
fn taps_and_veths_get_their_own_files_and_never_each_others() {
    let mut node = node_with(&[101, 102, 103, 104]);
    let guests: Vec<Guest> = [(101, Plug::Tap(1)), (102, Plug::Tap(1)), (103, Plug::Veth), (104, Plug::Veth)]
        .into_iter()
        .map(|(vmid, plug)| Guest::plug(&node, vmid, plug, ADDRESS))
        .collect();
    node.start();
    guests.iter().for_each(|guest| node.await_guard(&format!("tap{}i0", guest.vmid)));
    // All at once, all from the same address.
    std::thread::scope(|scope| {
        for guest in &guests {
            scope.spawn(|| (0..10).for_each(|_| guest.has_its_own_files()));
        }
    });
    assert_eq!(guests[0].get("/nocloud/"), "meta-data\nuser-data\nvendor-data\nnetwork-config\n");
    assert!(node.metric("pve_imds_guests") == 4.0);
}

#[test]
fn every_queue_of_a_tap_is_served() {
    let mut node = node_with(&[101]);
    let guest = Guest::plug(&node, 101, Plug::Tap(2), ADDRESS);
    node.start();
    node.await_guard("tap101i0");
    let relay = guest.relay();
    // The guest's kernel picks a queue by flow and processor: enough of them use both.
    for _ in 0..40 {
        guest.namespace.run("taskset -c 0 curl -sf -m 5 http://169.254.169.254/nocloud/meta-data");
        guest.namespace.run("taskset -c 1 curl -sf -m 5 http://169.254.169.254/nocloud/meta-data");
    }
    let sent: Vec<u64> = relay.sent.iter().map(|queue| queue.load(Ordering::Relaxed)).collect();
    assert!(sent.iter().all(|frames| *frames >= 10), "both queues carried requests: {sent:?}");
    guest.has_its_own_files();
}

#[test]
fn a_guest_that_tags_its_frames_is_answered_on_its_vlan() {
    let mut node = node_with(&[101]);
    let guest = Guest::plug(&node, 101, Plug::Tagged(42), ADDRESS);
    node.start();
    node.await_guard("tap101i0");
    guest.has_its_own_files();
}

#[test]
fn a_guest_that_asks_through_its_gateway_is_answered() {
    let mut node = node_with(&[101, 102]);
    let guests =
        [Guest::plug(&node, 101, Plug::Tap(1), "10.9.9.5/24"), Guest::plug(&node, 102, Plug::Veth, "10.9.9.5/24")];
    node.start();
    for guest in &guests {
        node.await_guard(&format!("tap{}i0", guest.vmid));
        guest.namespace.ip("neigh add 10.9.9.1 lladdr 02:11:22:33:44:55 dev eth0 nud permanent");
        guest.namespace.ip("route add default via 10.9.9.1");
        guest.has_its_own_files();
    }
}

#[test]
fn interfaces_that_come_are_served_and_those_that_go_leave_nothing() {
    let mut node = node_with(&[101]);
    node.start();
    for round in 0..3 {
        let guest = Guest::plug(&node, 101, if round == 1 { Plug::Veth } else { Plug::Tap(1) }, ADDRESS);
        node.await_guard("tap101i0");
        guest.has_its_own_files();
        drop(guest);
        until("the guest's seat is free", || (node.metric("pve_imds_guests") == 0.0).then_some(()));
        until("the guest's pins are gone", || {
            let names = std::fs::read_dir(Node::pin_dir()).unwrap().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = names.filter(|name| name.to_string_lossy().contains('-')).collect();
            left.is_empty().then_some(())
        });
    }
}

#[test]
fn a_changed_configuration_is_served() {
    let mut node = node_with(&[101]);
    let guest = Guest::plug(&node, 101, Plug::Veth, ADDRESS);
    node.start();
    node.await_guard("tap101i0");
    guest.has_its_own_files();
    let config = std::fs::read_to_string(node.tree.config(101)).unwrap().replace("name: vm101", "name: renamed");
    node.tree.put(101, &config).unwrap();
    until("the new name is served", || {
        guest.get("/nocloud/meta-data").contains("local-hostname: \"renamed\"").then_some(())
    });
}

#[test]
fn a_guest_without_a_vm_is_asked_to_wait_and_served_once_there_is_one() {
    let mut node = node_with(&[101]);
    let guest = Guest::plug(&node, 999, Plug::Veth, ADDRESS);
    node.start();
    node.await_guard("tap999i0");
    for file in ["meta-data", "user-data", "vendor-data", "network-config"] {
        let (status, answer) = guest.curl(&["-D", "-"], &format!("/nocloud/{file}")).unwrap();
        assert_eq!(status, 503, "{file}");
        assert!(answer.to_lowercase().contains("retry-after: 1\r\n") && answer.ends_with("vm_unknown\n"), "{answer}");
    }
    node.vm(999);
    until("the new VM is served", || guest.curl(&[], "/nocloud/meta-data").filter(|(status, _)| *status == 200));
    guest.has_its_own_files();
}

#[test]
fn requests_that_are_not_a_guests_own_are_refused() {
    let mut node = node_with(&[101]);
    let guest = Guest::plug(&node, 101, Plug::Veth, ADDRESS);
    node.start();
    node.await_guard("tap101i0");
    let meta_data = "/nocloud/meta-data";
    for (arguments, path, status, outcome) in [
        (&["-H", "X-Forwarded-For: 10.0.0.1"][..], meta_data, 403, "forwarded\n"),
        (&["-H", "Host: evil.example.com"], meta_data, 403, "host_refused\n"),
        (&["-X", "DELETE"], meta_data, 405, "method_not_allowed\n"),
        (&[], "/latest/nothing", 404, ""),
        (&[], "/nocloud/nothing", 404, ""),
    ] {
        assert_eq!(guest.curl(arguments, path), Some((status, outcome.to_owned())), "{arguments:?} {path}");
    }
    guest.has_its_own_files();
}

#[test]
fn large_bodies_arrive_without_a_retransmission_storm() {
    let node = node_with(&[101, 102]);
    let guests = [Guest::plug(&node, 101, Plug::Tap(1), ADDRESS), Guest::plug(&node, 102, Plug::Veth, ADDRESS)];
    let sink = Sink::start(&node);
    for guest in &guests {
        node.await_guard(&format!("tap{}i0", guest.vmid));
        guest.namespace.run("head -c 3000000 /dev/zero > /run/imdstk/body");
        let before = retransmitted(guest);
        for _ in 0..3 {
            let answer = guest.curl(&["--data-binary", "@/run/imdstk/body"], "/sink");
            assert_eq!(answer, Some((200, "took 3000000\n".to_owned())));
        }
        let again = retransmitted(guest) - before;
        // Of 6,000. A busy machine loses a handful; a storm is hundreds.
        assert!(again <= 60, "guest {} sent {again} segments again", guest.vmid);
    }
    assert_eq!(sink.taken.load(Ordering::Relaxed), 18_000_000);
}

/// Segments a guest's kernel sent more than once.
fn retransmitted(guest: &Guest) -> u64 {
    let text = guest.namespace.run("cat /proc/net/snmp");
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split_whitespace());
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    names.zip(values).find(|(name, _)| *name == "RetransSegs").unwrap().1.parse().unwrap()
}

#[test]
fn a_restart_serves_again_and_a_stop_lets_answers_finish() {
    let mut node = node_with(&[101, 102]);
    let guests = [Guest::plug(&node, 101, Plug::Tap(1), ADDRESS), Guest::plug(&node, 102, Plug::Veth, ADDRESS)];
    for signal in ["KILL", "TERM", "INT"] {
        node.start();
        for guest in &guests {
            guest.await_answer();
            guest.has_its_own_files();
        }
        node.stop(signal);
        for guest in &guests {
            assert_eq!(guest.curl(&["--connect-timeout", "1"], "/nocloud/meta-data"), None, "silence after {signal}");
            assert!(node.is_guarded(&format!("tap{}i0", guest.vmid)), "pins stay after {signal}");
        }
    }
    let left = sh("ip -n imdstk-node -o link show type veth");
    assert!(String::from_utf8_lossy(&left.stdout).contains("imdstk-a"), "our devices stay too");
}

#[test]
fn a_request_is_a_span_at_the_collector() {
    let mut node = node_with(&[101]);
    let listener = node.namespace.inside(|| std::net::TcpListener::bind("127.0.0.1:4318").unwrap());
    let collector = std::thread::spawn(move || collect(&listener));
    std::fs::write(node.config(), node.settings() + "otlp: {endpoint: 'http://127.0.0.1:4318'}\n").unwrap();
    let guest = Guest::plug(&node, 101, Plug::Veth, ADDRESS);
    node.start();
    node.await_guard("tap101i0");
    guest.has_its_own_files();
    node.stop("TERM");
    let received = collector.join().unwrap();
    for word in ["pve-imds", "/nocloud/meta-data", "tap101i0"] {
        let found = received.windows(word.len()).any(|window| window == word.as_bytes());
        assert!(found, "{word} in the export");
    }
    let leaked = received.windows(8).any(|window| window == b"only-for");
    assert!(!leaked, "user data in the export");
}

/// Answers OTLP exports with 200 until one named a request; its bytes.
fn collect(listener: &std::net::TcpListener) -> Vec<u8> {
    use std::io::{BufRead, BufReader, Read, Write};
    loop {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        if !body.is_empty() {
            return body;
        }
    }
}

/// Guests are served whoever has the port, and metrics are once it is free.
#[test]
fn a_management_address_that_cannot_be_had_is_waited_for_while_guests_are_served() {
    let elsewhere = "192.0.2.9:9100";
    let mut node = Node::new();
    node.vm(101);
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    let said = |node: &Node| {
        let log = std::fs::read_to_string(node.log()).unwrap();
        log.lines().filter(|line| line.contains("(management.listen)")).map(str::to_owned).collect::<Vec<_>>()
    };
    let served = |node: &Node| {
        node.await_guard("tap101i0");
        guest.await_answer();
        guest.has_its_own_files();
        let lines = until("it is said", || Some(said(node)).filter(|lines| !lines.is_empty()));
        assert!(lines.len() == 1 && lines[0].contains("ERROR"), "{lines:?}");
        lines[0].clone()
    };

    let holder = node.namespace.inside(|| std::net::TcpListener::bind(MANAGEMENT).unwrap());
    node.launch();
    let line = served(&node);
    assert!(line.contains(MANAGEMENT) && line.contains("ss -ltnp sport = :9100"), "{line}");
    drop(holder);
    until("the port is had", || node.management("/healthz").filter(|text| text == "ok\n"));
    assert_eq!(said(&node).len(), 1, "once");
    node.stop("TERM");

    std::fs::write(node.config(), node.settings().replace(MANAGEMENT, elsewhere)).unwrap();
    node.launch();
    let line = served(&node);
    assert!(line.contains(elsewhere) && line.contains("does not have the address yet"), "{line}");
    node.namespace.ip("addr add 192.0.2.9/32 dev lo");
    let url = format!("http://{elsewhere}/healthz");
    until("the address is had", || {
        let output = node.namespace.command("curl").args(["-sf", "-m", "5", &url]).output().unwrap();
        (output.stdout == b"ok\n").then_some(())
    });
}
