//! A DHCP server on the node's bridge, as somebody has on every network.

use std::fs;
use std::process::{Child, Stdio};

use crate::world::Node;

/// The server. Gone when dropped.
pub struct Dhcp(Child);

impl Dhcp {
    /// The first address that it gives.
    pub const FIRST: &str = "10.9.9.50";

    /// One with this many addresses to give, fifty at most.
    pub fn start(node: &Node, count: u8) -> Self {
        let last = format!("10.9.9.{}", 49 + count);
        node.namespace.ip("addr replace 10.9.9.1/24 dev vmbr0");
        let (config, leases) = (Node::dir().join("udhcpd.conf"), Node::dir().join("leases"));
        fs::write(&leases, "").unwrap();
        let text = format!(
            "interface vmbr0\nstart {first}\nend {last}\nlease_file {leases}\npidfile {pid}\n\
             option subnet 255.255.255.0\noption router 10.9.9.1\n",
            first = Self::FIRST,
            leases = leases.display(),
            pid = Node::dir().join("udhcpd.pid").display(),
        );
        fs::write(&config, text).unwrap();
        let mut command = node.namespace.command("busybox");
        command.args(["udhcpd", "-f"]).arg(config).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Dhcp {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
