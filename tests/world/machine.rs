//! Real machines: QEMU on a tap, emulated.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Namespace, Node, script};

/// What README has put into a VM's SMBIOS serial number.
pub const SERIAL: &str = "ds=nocloud-net;s=http://169.254.169.254/nocloud/";

/// Makes a tap without a holder, as qemu-server finds it, on the bridge. QEMU opens it.
pub fn tap(node: &Node, name: &str, queues: usize) {
    let kind = if queues > 1 { "multi_queue" } else { "" };
    node.namespace.ip(&format!("tuntap add {name} mode tap {kind}"));
    node.namespace.ip(&format!("link set {name} up master vmbr0"));
}

/// How long a machine may run that only fetches something.
const SMALL: Duration = Duration::from_secs(90);

/// How long one may that has a whole system to start: five times what it takes where nothing else runs.
const WHOLE: Duration = Duration::from_secs(240);

/// Boots a machine by one of the scripts of `tests/guest` and waits until it has switched itself off; its console.
pub fn boot(namespace: &Namespace, program: &str, tap: &str, vmid: u32, rest: &[&str]) -> String {
    boot_queues(namespace, program, tap, vmid, rest, 1)
}

/// The same with so many queue pairs; the tap must have as many.
pub fn boot_queues(namespace: &Namespace, program: &str, tap: &str, vmid: u32, rest: &[&str], queues: usize) -> String {
    run_to_the_end(namespace, program, (tap, vmid, queues), rest, SMALL)
}

/// Boots Debian with systemd and cloud-init, told by its SMBIOS serial number where to look; its user data ends it.
pub fn boot_system(namespace: &Namespace, tap: &str, vmid: u32, smbios: &str) -> String {
    run_to_the_end(namespace, "system.sh", (tap, vmid, 1), &[smbios], WHOLE)
}

fn run_to_the_end(
    namespace: &Namespace,
    program: &str,
    (tap, vmid, queues): (&str, u32, usize),
    rest: &[&str],
    patience: Duration,
) -> String {
    let log = Node::dir().join(format!("console-{tap}"));
    let mac = super::Guest::mac(vmid);
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name()]).arg(script("guest").join(program));
    command.arg(tap).arg(mac).arg(&log).args(rest).stdin(Stdio::null());
    command.env("GUEST_TIMEOUT", patience.as_secs().to_string()).env("GUEST_QUEUES", queues.to_string());
    let output = command.output().unwrap();
    let console = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    // What timeout(1) ends with.
    assert_ne!(output.status.code(), Some(124), "the machine on {tap} still ran after {patience:?}:\n{console}");
    assert!(output.status.success(), "{program} on {tap} ended with {}: {errors}\n{console}", output.status);
    console.replace('\r', "")
}

/// What the machine printed between the marks of one file.
pub fn file<'a>(console: &'a str, name: &str) -> Option<&'a str> {
    let begin = format!("=== {name}\n");
    let start = console.find(&begin)? + begin.len();
    let length = console[start..].find(&format!("=== end {name} "))?;
    Some(&console[start..start + length])
}
