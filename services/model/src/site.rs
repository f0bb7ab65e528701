//! What the node a VM runs on adds to its answers.
//!
//! In come the node's settings, its files of vendor data and its `resolv.conf`; out goes a [`Site`]. Nothing in it is any VM's own.

use std::sync::Arc;

use crate::format::is_address;
use crate::vendor::Files;

/// The node's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Proxmox's own cloud-init options of VMs are heeded (`cloudinit.enabled`).
    pub cloudinit: bool,
    /// The node's own resolver.
    pub dns: Arc<Dns>,
    /// The node's files of vendor data.
    pub vendor: Arc<Files>,
    /// User data is rendered with its secrets (`secrets.enabled`).
    pub secrets: bool,
}

impl Default for Site {
    fn default() -> Self {
        Self { cloudinit: true, dns: Arc::default(), vendor: Arc::default(), secrets: false }
    }
}

/// Who is asked for names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses, the first choice first.
    pub servers: Vec<String>,
    /// Domains that short names are looked for in.
    pub search: Vec<String>,
}

/// Most servers a resolver asks (`MAXNS`, resolv.conf(5)).
const MAX_SERVERS: usize = 3;

impl Dns {
    /// Reads `resolv.conf`. Of several `search` and `domain` lines the last one counts (resolv.conf(5)). Servers that
    /// only the node itself can reach, on its loopback, are left out: they would be the guest's own loopback there.
    #[must_use]
    pub fn parse(resolv_conf: &str) -> Self {
        let mut dns = Self::default();
        for line in resolv_conf.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => {
                    dns.servers.extend(words.take(1).filter(|server| serves_guests(server)).map(str::to_owned))
                }
                Some("search" | "domain") => {
                    dns.search = words.filter(|domain| is_address(domain)).map(str::to_owned).collect();
                }
                _ => {}
            }
        }
        dns.servers.truncate(MAX_SERVERS);
        dns
    }
}

fn serves_guests(server: &str) -> bool {
    server.parse::<std::net::IpAddr>().is_ok_and(|address| !address.is_loopback() && !address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_that_guests_can_ask_too() {
        for (text, servers, search) in [
            ("", &[][..], &[][..]),
            (
                "nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch a.example b.example\n",
                &["192.0.2.1", "2001:db8::1"],
                &["a.example", "b.example"],
            ),
            ("# nameserver 192.0.2.1\n;nameserver 192.0.2.1\n nameserver\t192.0.2.2 # ours\r\n", &["192.0.2.2"], &[]),
            (
                "nameserver 127.0.0.53\nnameserver ::1\nnameserver 0.0.0.0\nnameserver fe80::1%eth0\nnameserver x",
                &[],
                &[],
            ),
            ("search a.example\ndomain b.example\n", &[], &["b.example"]),
            ("search a_b . c.example\n", &[], &["c.example"]),
            (
                "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4",
                &["192.0.2.1", "192.0.2.2", "192.0.2.3"],
                &[],
            ),
        ] {
            let dns = Dns::parse(text);
            assert_eq!(
                (&dns.servers[..], &dns.search[..]),
                (
                    &servers.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..],
                    &search.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..]
                ),
                "{text:?}"
            );
        }
    }
}
