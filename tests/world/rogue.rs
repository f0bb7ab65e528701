//! Another port of the bridge, where somebody claims the metadata addresses and answers to them.

use std::process::{Child, Stdio};

use super::chatter::Chatter;
use super::wire::Wire;
use super::{Namespace, Node, frames, run};

/// The rogue; gone when dropped.
pub struct Rogue {
    pub namespace: Namespace,
    server: Child,
}

impl Rogue {
    /// Its hardware address, in all that it sends.
    pub const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x66, 0x66, 0x66];

    /// A port of `vmbr0`, an HTTP server, the address.
    pub fn new(node: &Node) -> Self {
        let namespace = Namespace::new("rogue");
        node.namespace.ip(&format!("link add rogue0 type veth peer name eth0 netns {}", namespace.name()));
        node.namespace.ip("link set rogue0 up master vmbr0");
        namespace.ip("link set eth0 address 52:54:00:66:66:66 up");
        namespace.ip("addr add 169.254.169.254/16 dev eth0");
        run("mkdir -p /run/imdstk/rogue/nocloud && echo evil > /run/imdstk/rogue/nocloud/user-data");
        let mut command = namespace.command("busybox");
        command.args(["httpd", "-f", "-p", "169.254.169.254:80", "-h", "/run/imdstk/rogue"]);
        let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { namespace, server }
    }

    /// Says, unasked and until it is dropped, all that can be said in a metadata address's name.
    pub fn chatter(&self) -> Chatter {
        let frames = frames::from_bridge().into_iter().map(|(_, frame)| frame.with(6, &Self::MAC).0);
        Chatter::of(Wire::packet(&self.namespace, "eth0"), frames.collect())
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
