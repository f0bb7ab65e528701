//! Another port of the bridge, where somebody claims the metadata addresses and answers to them.

use std::process::{Child, Stdio};

use super::wire::Wire;
use super::{Namespace, Node, run};

/// The rogue; gone when dropped.
pub struct Rogue {
    pub namespace: Namespace,
    server: Child,
}

impl Rogue {
    pub fn new(node: &Node) -> Self {
        let namespace = Namespace::new("rogue");
        node.namespace.ip(&format!("link add rogue0 type veth peer name eth0 netns {}", namespace.name()));
        node.namespace.ip("link set rogue0 up master vmbr0");
        namespace.ip("link set eth0 up");
        namespace.ip("addr add 169.254.169.254/16 dev eth0");
        run("mkdir -p /run/imdstk/rogue/nocloud && echo evil > /run/imdstk/rogue/nocloud/user-data");
        let mut command = namespace.command("busybox");
        command.args(["httpd", "-f", "-p", "169.254.169.254:80", "-h", "/run/imdstk/rogue"]);
        let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { namespace, server }
    }

    /// Where it says what it was not asked.
    pub fn wire(&self) -> Wire {
        Wire::packet(&self.namespace, "eth0")
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
