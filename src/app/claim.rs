//! The claim: who serves in this network namespace, and from where.
//!
//! A file for each namespace, `/run/pve-imds/net-<inode>`, locked by the daemon for as long as it lives, in whatever way
//! it dies. So it is two things. To hold it is the right to serve here, which the lock of the pins alone cannot give: two
//! daemons may have been told of two directories, and would take each guest from one another. To read it is how a command
//! learns which directory it is, whatever environment it was started in. Beside it stands the daemon's socket
//! ([`control`](super::control)), `net-<inode>.sock`.
//!
//! In comes nothing but what the daemon says of itself; out goes that, to root. Refused is everyone else: who may open a
//! file may lock it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Root's, like everything else of ours there.
const DIR: &str = "/run/pve-imds";

/// In front of the namespace's inode.
const PREFIX: &str = "net-";

/// Behind it, for the socket.
const SOCKET: &str = "sock";

/// The longest claim that is read: many times what a path and a few words take.
const LONGEST: u64 = 16 * 1024;

/// What a daemon says of itself: options that commands must share with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Says {
    /// Its process.
    pub pid: u32,
    /// Where it pins the guard.
    pub pin_dir: PathBuf,
    /// Which kinds of links it takes for guests' interfaces.
    pub accept_kinds: Vec<String>,
}

/// Who serves here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// A daemon; `None`: it has not yet said what it should.
    Daemon(Option<Says>),
    /// Only root may ask.
    Hidden,
}

impl Holder {
    /// Asks.
    ///
    /// # Errors
    /// The claim cannot be read, by no fault of whoever asks.
    pub fn ask() -> io::Result<Self> {
        Self::of(&path(Path::new(DIR))?)
    }

    fn of(path: &Path) -> io::Result<Self> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Self::Nobody),
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => return Ok(Self::Hidden),
            Err(why) => return Err(why),
        };
        // Shared, so that those who ask are not in each other's way.
        match file.try_lock_shared() {
            Ok(()) => Ok(Self::Nobody),
            Err(TryLockError::WouldBlock) => Ok(Self::Daemon(read(&file))),
            Err(TryLockError::Error(why)) => Err(why),
        }
    }

    /// The process that serves here, if one does: 0 if it did not say who it is.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Daemon(says) => Some(says.as_ref().map_or(0, |says| says.pid)),
            Self::Nobody | Self::Hidden => None,
        }
    }

    /// What the daemon that serves here says.
    #[must_use]
    pub fn says(&self) -> Option<&Says> {
        match self {
            Self::Daemon(says) => says.as_ref(),
            Self::Nobody | Self::Hidden => None,
        }
    }
}

/// The right to serve in this network namespace. Given back when dropped, or when the process dies.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// Locked. Closed after the file is gone, so that nobody takes over a claim that the next one will not find.
    _file: File,
}

/// Why it cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Somebody has it.
    #[error("{} already: stop it first", whom(.0.as_ref()))]
    Held(Option<Says>),
    /// The file cannot be made or locked.
    #[error("cannot claim this network namespace with {}: {source}; run as root", path.display())]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

fn whom(says: Option<&Says>) -> String {
    let place = |says: &Says| {
        format!("process {} serves this network namespace (its pins are in {})", says.pid, says.pin_dir.display())
    };
    says.map_or_else(|| "another daemon serves this network namespace".to_owned(), place)
}

impl Claim {
    /// Takes it, without waiting.
    ///
    /// # Errors
    /// [`Refused`]
    pub fn take(says: &Says) -> Result<Self, Refused> {
        let dir = Path::new(DIR);
        let failed = |source| Refused::File { path: dir.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
        let claim = Self::take_at(&path(dir).map_err(failed)?, says)?;
        sweep(dir);
        Ok(claim)
    }

    fn take_at(path: &Path, says: &Says) -> Result<Self, Refused> {
        let failed = |source| Refused::File { path: path.to_owned(), source };
        loop {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
            let file = file.map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Refused::Held(read(&file))),
                Err(TryLockError::Error(why)) => return Err(failed(why)),
            }
            // Else it was the last one's, who has taken it away meanwhile.
            if is_at(&file, path) {
                write(&file, says).map_err(failed)?;
                return Ok(Self { path: path.to_owned(), _file: file });
            }
        }
    }
}

impl Claim {
    /// Where whoever holds it is asked.
    pub(super) fn socket(&self) -> PathBuf {
        self.path.with_extension(SOCKET)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A file that stays is no claim without its lock.
        let _ = fs::remove_file(&self.path);
    }
}

/// Of the network namespace that the calling thread is in.
fn path(dir: &Path) -> io::Result<PathBuf> {
    let inode = fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(dir.join(format!("{PREFIX}{inode}")))
}

/// Where the daemon of the calling thread's network namespace is asked.
pub(super) fn socket() -> io::Result<PathBuf> {
    Ok(path(Path::new(DIR))?.with_extension(SOCKET))
}

/// Removes what daemons that were killed have left of namespaces that may not come back.
fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // Ours is locked too. A socket cannot be opened, and goes with its claim.
        if let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
            && is_at(&file, &path)
        {
            let _ = fs::remove_file(path.with_extension(SOCKET));
            let _ = fs::remove_file(&path);
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let which = |about: fs::Metadata| (about.dev(), about.ino());
    file.metadata().map(which).ok() == fs::symlink_metadata(path).map(which).ok()
}

/// One line, in one write, over the one before it: whoever reads meanwhile reads either.
fn write(file: &File, says: &Says) -> io::Result<()> {
    let line = serde_json::to_string(says)? + "\n";
    file.write_all_at(line.as_bytes(), 0)?;
    file.set_len(line.len().try_into().map_err(io::Error::other)?)
}

fn read(file: &File) -> Option<Says> {
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    serde_json::from_str(text.lines().next()?).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn says(pid: u32) -> Says {
        Says { pid, pin_dir: "/run/x".into(), accept_kinds: vec!["tun".into(), "veth".into()] }
    }

    #[test]
    fn one_has_it_and_everybody_hears_who() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path()).unwrap();
        assert_eq!(Holder::of(&path).unwrap(), Holder::Nobody);
        let claim = Claim::take_at(&path, &says(7)).unwrap();
        assert_eq!(Holder::of(&path).unwrap(), Holder::Daemon(Some(says(7))));
        let refused = Claim::take_at(&path, &says(8)).unwrap_err();
        let said = "process 7 serves this network namespace (its pins are in /run/x) already: stop it first";
        assert_eq!(refused.to_string(), said);
        sweep(dir.path());
        assert!(path.exists(), "one that is held is not swept");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "nobody else may lock it");
        drop(claim);
        assert!(!path.exists());
        Claim::take_at(&path, &says(9)).unwrap();
    }

    #[test]
    fn what_a_daemon_that_was_killed_has_left_is_no_claim() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, other) = (path(dir.path()).unwrap(), dir.path().join("net-1"));
        let longer = says(4_000_000);
        for path in [&ours, &other] {
            write(&File::create(path).unwrap(), &longer).unwrap();
        }
        fs::write(dir.path().join("bpf.lock"), "").unwrap();
        let sockets = [&ours, &other].map(|path| path.with_extension(SOCKET));
        let _listeners = sockets.each_ref().map(|path| UnixListener::bind(path).unwrap());
        assert_eq!(Holder::of(&ours).unwrap(), Holder::Nobody);
        let _claim = Claim::take_at(&ours, &says(7)).unwrap();
        assert_eq!(Holder::of(&ours).unwrap().says(), Some(&says(7)), "of the longer line nothing is left");
        sweep(dir.path());
        assert!(sockets[0].exists() && !sockets[1].exists());
        assert!(ours.exists() && !other.exists() && dir.path().join("bpf.lock").exists());
    }

    #[test]
    fn a_claim_is_understood_or_it_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net-1");
        for (text, expected) in [
            ("", None),
            ("{", None),
            (r#"{"pid":7}"#, None),
            (r#"{"pid":7,"pin_dir":"/run/x","accept_kinds":["tun","veth"]}"#, Some(says(7))),
            // A later version may say more.
            ("{\"pid\":7,\"pin_dir\":\"/run/x\",\"accept_kinds\":[\"tun\",\"veth\"],\"more\":1}\nx", Some(says(7))),
        ] {
            fs::write(&path, text).unwrap();
            let held = File::open(&path).unwrap();
            held.lock().unwrap();
            assert_eq!(Holder::of(&path).unwrap(), Holder::Daemon(expected), "{text}");
        }
    }
}
