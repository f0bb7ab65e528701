//! Where the node itself asks for names: its `resolv.conf`, which Proxmox gives to guests that have fixed addresses and no
//! name server of their own.
//!
//! In comes a path; out goes the last content that could be read, at once and without IO. Whoever keeps the inventory
//! reads it anew from time to time; a file that is gone or unreadable changes nothing. Refused: what is no regular file,
//! because that thread has other work than to wait for a writer, and what is longer than any resolver's.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pve_imds_model::site::Dns;
use rustix::fs::{Mode, OFlags, open};

/// More than a `resolv.conf` of three servers and all that may stand around them, in bytes.
const MAX_FILE: u64 = 64 << 10;

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
        if let Ok(bytes) = bytes(path) {
            let dns = Dns::parse(&String::from_utf8_lossy(&bytes));
            if dns != **self.0.load() {
                tracing::info!(servers = ?dns.servers, search = ?dns.search, "the node's resolver");
                self.0.store(Arc::new(dns));
            }
        }
    }
}

/// The bytes of the file, which may be a link to one elsewhere.
fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    // Opened first and looked at then, so that nothing comes in between; so that opening does not wait for the other
    // end of a FIFO, and no terminal becomes ours.
    let mut file =
        File::from(open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    let length = file.by_ref().take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if length as u64 > MAX_FILE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

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

    #[test]
    fn only_a_file_of_a_sensible_size_is_read_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let servers = |name: &str| {
            let resolver = Resolver::default();
            resolver.read(&at(name));
            resolver.dns().servers.clone()
        };
        let line = "nameserver 192.0.2.1\n";
        let padded = |size: usize| format!("{line}{}", "#".repeat(size - line.len()));
        let limit = usize::try_from(MAX_FILE).unwrap();
        std::fs::write(at("largest"), padded(limit)).unwrap();
        std::fs::write(at("larger"), padded(limit + 1)).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        // systemd-resolved and resolvconf put a link there.
        for target in ["largest", "fifo"] {
            symlink(at(target), at(&format!("link-to-{target}"))).unwrap();
        }
        symlink("/dev/zero", at("endless")).unwrap();
        for (name, read) in [
            ("largest", true),
            ("link-to-largest", true),
            ("larger", false),
            ("directory", false),
            ("fifo", false),
            ("link-to-fifo", false),
            ("endless", false),
        ] {
            assert_eq!(servers(name).len(), usize::from(read), "{name}");
        }
    }
}
