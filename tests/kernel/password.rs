//! A guest's administrator password: said by the guest, told to root, and to nobody else.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use crate::world::{Guest, Node, Plug, run, until};

const SAID: &str = "c2FpZCBieSBhIGd1ZXN0";
const PATH: &str = "/openstack/latest/password";

fn say(guest: &Guest, password: &str) -> Option<u16> {
    guest.curl(&["--data-binary", password], PATH).map(|(status, _)| status)
}

/// Exit status, standard output, standard error.
fn asked(node: &Node, vmid: &str) -> (Option<i32>, Vec<u8>, String) {
    let output = node.product(&["password", vmid]);
    (output.status.code(), output.stdout, String::from_utf8(output.stderr).unwrap())
}

fn refused(node: &Node, vmid: &str, why: &str) {
    let (status, out, err) = asked(node, vmid);
    assert!(status == Some(1) && out.is_empty() && err.contains(why), "{status:?} {err}");
}

#[test]
fn what_a_guest_says_of_its_password_is_told_to_root_until_daemon_or_vm_end() {
    let (mut node, guest) = Node::serving_one();
    node.vm(102);
    let other = Guest::plug(&node, 102, Plug::Veth, "169.254.1.3/16");
    node.await_guard("tap102i0");
    other.await_answer();
    refused(&node, "101", "VM 101 has said no password");
    refused(&node, "109", "VM 109: the daemon knows no configuration of it");
    assert_eq!(asked(&node, "99").0, Some(64));

    assert_eq!(say(&guest, SAID), Some(200));
    assert_eq!(asked(&node, "101"), (Some(0), SAID.into(), String::new()));
    assert_eq!(say(&guest, "another"), Some(409));
    assert_eq!(guest.curl(&[], PATH), Some((200, SAID.to_owned())));
    assert_eq!(other.curl(&[], PATH), Some((200, String::new())));
    assert_eq!(asked(&node, "101").1, SAID.as_bytes());
    refused(&node, "102", "VM 102 has said no password");

    let socket = node.socket();
    let about = fs::symlink_metadata(&socket).unwrap();
    assert!(about.file_type().is_socket() && about.permissions().mode() & 0o777 == 0o600);
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let program = env!("CARGO_BIN_EXE_pve-imds");
    // Where it can be run by anyone.
    let copy = Node::dir().join("pve-imds");
    run(&format!("cp {program} {0} && chmod 755 {0}", copy.display()));
    let line = format!("ip netns exec {} {nobody} {} password 101", node.namespace.name(), copy.display());
    let output = crate::world::sh(&line);
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && output.stdout.is_empty() && err.contains("only root"), "{err}");
    // The kernel says no before anybody is asked for a question.
    let knock = format!("curl -s -m 5 --unix-socket {} http://x/", socket.display());
    let status = |line: &str| crate::world::sh(line).status.code();
    assert_eq!(status(&format!("{nobody} {knock}")), Some(7), "it could not connect");
    assert_ne!(status(&knock), Some(7), "root can");

    let log = fs::read_to_string(node.log()).unwrap();
    assert!(!log.contains(SAID) && log.contains("was asked for and told"), "that it was read is said, and not what");
    // Also one that had no time to take its socket away.
    node.stop("KILL");
    assert!(socket.exists());
    refused(&node, "101", "nobody serves here");
    node.start();
    guest.await_answer();
    refused(&node, "101", "VM 101 has said no password");
    assert_eq!(say(&guest, "another"), Some(200));
    assert_eq!(asked(&node, "101").1, b"another");
    // Whoever has the number after it is another, with the same UUID or without one.
    node.tree.remove(101).unwrap();
    until("the VM is gone", || asked(&node, "101").2.contains("no configuration of it").then_some(()));
    node.vm(101);
    until("it is known", || asked(&node, "101").2.contains("has said no password").then_some(()));
    node.stop("TERM");
    assert!(!socket.exists());
    refused(&node, "101", "nobody serves here");
}
