//! A DHCP server on the node's bridge, as somebody has on every network: busybox's.
//!
//! In come how many addresses it may give; out go leases of [`Dhcp::FIRST`] and those behind it, with a router that is the
//! node. cloud-init begins with one wherever it reads OpenStack's and EC2's metadata.

use std::fs;
use std::process::{Child, Stdio};

use super::Node;

/// It ends when it is dropped.
#[derive(Debug)]
pub struct Dhcp(Child);

impl Dhcp {
    /// The first address it gives.
    pub const FIRST: &str = "10.9.9.50";

    /// Starts it with so many addresses to give.
    pub fn start(node: &Node, addresses: u8) -> Self {
        node.namespace.ip("addr replace 10.9.9.1/24 dev vmbr0");
        let (config, leases) = (Node::dir().join("udhcpd.conf"), Node::dir().join("leases"));
        fs::write(&leases, "").unwrap();
        let text = format!(
            "interface vmbr0\nstart {}\nend 10.9.9.{}\nmax_leases {addresses}\nlease_file {leases}\npidfile {pid}\n\
             option subnet 255.255.255.0\noption router 10.9.9.1\n",
            Self::FIRST,
            50 + addresses - 1,
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
