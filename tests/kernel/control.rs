//! The socket on which root asks the daemon, where something is in its way and where daemons that were killed have left theirs.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::world::{Guest, Node, Plug};

/// Exit status and standard error of a question.
fn ask(node: &Node) -> (Option<i32>, String) {
    let output = node.product(&["password", "101"]);
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_socket_that_cannot_be_had_is_named_and_guests_are_served_without_it() {
    let mut node = Node::new();
    node.vm(101);
    let guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    let socket = node.socket();
    fs::create_dir_all(socket.join("in the way")).unwrap();
    node.start();
    node.await_guard("tap101i0");
    guest.await_answer();
    guest.has_its_own_files();
    assert_eq!(node.management("/healthz").as_deref(), Some("ok\n"), "guests lack nothing");
    let log = fs::read_to_string(node.log()).unwrap();
    let said: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    let [line] = said[..] else { panic!("{said:?}") };
    for part in [&format!("path={}", socket.display()), "Is a directory", "guests are served", "restarted"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let (status, err) = ask(&node);
    assert!(status == Some(1) && err.contains("the daemon that serves here does not answer"), "{err}");

    // As the line says.
    fs::remove_dir_all(&socket).unwrap();
    node.stop("TERM");
    node.start();
    let (status, err) = ask(&node);
    assert!(status == Some(1) && err.contains("VM 101 has said no password"), "{err}");
    guest.await_answer();
}

#[test]
fn what_killed_daemons_have_left_is_gone_with_the_next_start() {
    let mut node = Node::new();
    node.start();
    node.stop("KILL");
    assert!(node.socket().exists());
    // Of a namespace that is no more: no other is numbered so.
    let (claim, socket) = (Path::new("/run/pve-imds/net-1"), Path::new("/run/pve-imds/net-1.sock"));
    fs::write(claim, "").unwrap();
    drop(UnixListener::bind(socket).unwrap());
    node.start();
    assert!(!claim.exists() && !socket.exists());
    let (_, err) = ask(&node);
    assert!(err.contains("knows no configuration"), "our own is anew: {err}");
    node.stop("TERM");
    assert!(!node.socket().exists());

    // Nor do these tests leave one.
    node.start();
    node.stop("KILL");
    let left = node.socket();
    assert!(left.exists());
    drop(node);
    assert!(!left.exists());
}
