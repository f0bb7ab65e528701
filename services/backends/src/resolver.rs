//! Where the node itself asks for names: its `resolv.conf`, which Proxmox gives to guests that have fixed addresses and no
//! name server of their own.
//!
//! In comes a path; out goes the last content that could be read, at once and without IO. Whoever keeps the inventory
//! reads it anew from time to time; a file that is gone or unreadable changes nothing.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pve_imds_model::site::Dns;

/// What the node's `resolv.conf` says. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Resolver(Arc<ArcSwap<Dns>>);

impl Resolver {
    /// What it said last.
    #[must_use]
    pub fn dns(&self) -> Arc<Dns> {
        self.0.load_full()
    }

    /// Reads the file again.
    pub(crate) fn read(&self, path: &Path) {
        if let Ok(bytes) = std::fs::read(path) {
            let dns = Dns::parse(&String::from_utf8_lossy(&bytes));
            if dns != **self.0.load() {
                tracing::info!(servers = ?dns.servers, search = ?dns.search, "the node's resolver");
                self.0.store(Arc::new(dns));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_is_known_until_there_is_something_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let resolver = Resolver::default();
        let seen = resolver.clone();
        resolver.read(&path);
        assert_eq!(*seen.dns(), Dns::default());
        std::fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        resolver.read(&path);
        assert_eq!(seen.dns().servers, ["192.0.2.1"]);
        std::fs::remove_file(&path).unwrap();
        resolver.read(&path);
        assert_eq!(seen.dns().servers, ["192.0.2.1"]);
    }
}
