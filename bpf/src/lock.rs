//! Two lock files beside the directory of pins: one process serves at a time, and one takes pins away at a time.
//!
//! The first, [`Lock`], is held for as long as somebody serves and does not wait. The second, [`Change`], is held for
//! moments, by whoever removes pins: the daemon and any number of commands.
//!
//! The file of the first outlives its holder on purpose. It keeps the last epoch, so that no start repeats the one before
//! it, and deleting a file others wait on would let two of them hold "the" lock. It lives in `/run`: a new boot has no
//! pins and begins anew. Somebody may remove it nevertheless, and the programs that are pinned run on with their epoch.
//! So a copy lives and dies with the pins: a symbolic link among them, whose target is the number.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::error::{LockError, PinError};
use crate::tag::Epoch;

/// The right to serve. Given back when dropped, or when the process dies in whatever way.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
    /// The pins'.
    dir: PathBuf,
    last: Option<Epoch>,
}

impl Lock {
    /// Takes the lock `<dir>.lock` without waiting and leaves the process id in it.
    pub(crate) fn take(dir: &Path) -> Result<Self, LockError> {
        let path = beside(dir, "lock");
        let failed = |source: io::Error| LockError::File { path: path.clone(), source };
        let file = open(&path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(LockError::Held { pid: pid(&file).map_err(failed)?, path });
            }
            Err(why) => return Err(failed(why.into())),
        }
        let empty = file.metadata().map_err(failed)?.len() == 0;
        let last = match read(&file).map_err(failed)? {
            Some(Record { epoch: Some(epoch), .. }) => Some(epoch),
            Some(Record { epoch: None, .. }) => copied(dir),
            None if empty => copied(dir),
            None => return Err(LockError::Garbled { path }),
        };
        let lock = Self { file, path, dir: dir.to_owned(), last };
        lock.write()?;
        Ok(lock)
    }

    /// Who holds the lock `<dir>.lock`, without taking it: 0 if the file does not say. `None`: nobody does.
    ///
    /// A shared lock for an instant: those who ask are not in each other's way, and nothing is written.
    pub(crate) fn holder(dir: &Path) -> Result<Option<u32>, LockError> {
        let path = beside(dir, "lock");
        let failed = |source: io::Error| LockError::File { path: path.clone(), source };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(failed(why)),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                // Nobody is left to be told: should this fail, the lock ends with the file.
                let _ = flock(&file, FlockOperation::Unlock);
                Ok(None)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(Some(pid(&file).map_err(failed)?)),
            Err(why) => Err(failed(why.into())),
        }
    }

    /// The epoch for the next load of the programs: one more than the last, of this process or of the one before it.
    /// It is on record before it is returned.
    ///
    /// # Errors
    ///
    /// [`LockError::File`] if it cannot be recorded; it must not be used then.
    pub fn next_epoch(&mut self) -> Result<Epoch, LockError> {
        let epoch = self.last.map_or_else(Epoch::default, Epoch::next);
        self.last = Some(epoch);
        self.write()?;
        // Only what is lost needs the copy: that it cannot be made is no reason not to serve.
        forget_copy(&self.dir);
        let _ = symlink(epoch.number().to_string(), self.dir.join(COPY));
        Ok(epoch)
    }

    /// One write of a fixed size: a reader sees the old record or the new one.
    fn write(&self) -> Result<(), LockError> {
        let record = Record { pid: std::process::id(), epoch: self.last };
        self.file
            .write_all_at(record.encode().as_bytes(), 0)
            .map_err(|source| LockError::File { path: self.path.clone(), source })
    }
}

impl Drop for Lock {
    /// Closing the file is not enough: a child that another thread has just forked holds it until it runs its program.
    fn drop(&mut self) {
        // Nobody is left to be told: should this fail, the lock ends with the process.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// The right to take pins away.
///
/// Making one needs no right: the kernel pins nothing over a name that is taken. Removing is a look and a step, and in
/// between another process could have put a fresh pin where the stale one was. So every removal looks again under this
/// lock, and the pin it then sees is the one it removes. Should the interface come back from another network namespace
/// that very moment, it is guarded anew like one that was born.
#[derive(Debug)]
pub(crate) struct Change {
    file: File,
}

/// A removal takes the kernel milliseconds; who waits longer than this waits for a process that hangs.
const PATIENCE: Duration = Duration::from_secs(2);

impl Change {
    /// Takes the lock `<dir>.change`, and waits 2 s for it if need be.
    pub(crate) fn take(dir: &Path) -> Result<Self, PinError> {
        Self::take_within(dir, PATIENCE)
    }

    fn take_within(dir: &Path, patience: Duration) -> Result<Self, PinError> {
        let path = beside(dir, "change");
        let failed = |source: io::Error| PinError::Change { path: path.clone(), source };
        let file = open(&path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Self { file }),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(why) => return Err(failed(why.into())),
        }
        // The kernel has no bound for this wait, so a thread waits and we have one. Should it come too late, it finds
        // nobody to give the lock to, and the lock is free again with the file.
        let (give, given) = mpsc::sync_channel(0);
        let waiter = move || {
            let locked = flock(&file, FlockOperation::LockExclusive).map(|()| Self { file });
            let _ = give.send(locked);
        };
        std::thread::Builder::new().name("pin-change".into()).spawn(waiter).map_err(failed)?;
        match given.recv_timeout(patience) {
            Ok(locked) => locked.map_err(|why| failed(why.into())),
            Err(_) => Err(PinError::Busy { path }),
        }
    }
}

impl Drop for Change {
    /// As for [`Lock`].
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// The copy's name. No pin is called so.
const COPY: &str = "epoch";

fn copied(dir: &Path) -> Option<Epoch> {
    fs::read_link(dir.join(COPY)).ok()?.to_str()?.parse().ok().and_then(Epoch::new)
}

/// Where nothing is pinned any more, no epoch is to be kept from coming back.
pub(crate) fn forget_copy(dir: &Path) {
    let _ = fs::remove_file(dir.join(COPY));
}

/// `/run/pve-imds/bpf` → `/run/pve-imds/bpf.lock`: a BPF file system holds no ordinary files.
fn beside(dir: &Path, what: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    PathBuf::from(name)
}

/// Its owner's alone: who may open a file may lock it, and keep everybody else waiting.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(OWNERS).open(path)?;
    if file.metadata()?.mode() & 0o777 != OWNERS {
        // An earlier version's. Where it is not ours to say, somebody has made it so.
        let _ = file.set_permissions(Permissions::from_mode(OWNERS));
    }
    Ok(file)
}

const OWNERS: u32 = 0o600;

/// `<pid, 10 wide> <epoch, 2 wide, or -->\n`
#[derive(Debug, PartialEq)]
struct Record {
    pid: u32,
    epoch: Option<Epoch>,
}

impl Record {
    const SIZE: usize = 14;

    fn encode(&self) -> String {
        match self.epoch {
            Some(epoch) => format!("{:>10} {:>2}\n", self.pid, epoch.number()),
            None => format!("{:>10} --\n", self.pid),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (pid, epoch) = text.strip_suffix('\n')?.trim_start().split_once(' ')?;
        let epoch = match epoch {
            "--" => None,
            number => Some(Epoch::new(number.trim_start().parse().ok()?)?),
        };
        Some(Self { pid: pid.parse().ok()?, epoch })
    }
}

/// Who holds the lock, as the file says; 0 if it does not.
fn pid(file: &File) -> io::Result<u32> {
    Ok(read(file)?.map_or(0, |record| record.pid))
}

fn read(file: &File) -> io::Result<Option<Record>> {
    let mut bytes = [0; Record::SIZE + 1];
    let size = file.read_at(&mut bytes, 0)?;
    Ok(std::str::from_utf8(&bytes[..size]).ok().and_then(Record::decode))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for (pid, epoch, text) in [
            (1, None, "         1 --\n"),
            (4_194_304, Epoch::new(0), "   4194304  0\n"),
            (u32::MAX, Epoch::new(31), "4294967295 31\n"),
        ] {
            let record = Record { pid, epoch };
            assert_eq!(record.encode(), text);
            assert_eq!(text.len(), Record::SIZE);
            assert_eq!(Record::decode(text), Some(record));
        }
        for text in ["", "1 0", "1\n", "x 0\n", "1 32\n", "1 -1\n", "1 0\nmore"] {
            assert_eq!(Record::decode(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_second_taker_hears_who_holds_it() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("bpf");
        let lock = Lock::take(&dir).unwrap();
        match Lock::take(&dir).unwrap_err() {
            LockError::Held { pid, path } => {
                assert_eq!(pid, std::process::id());
                assert_eq!(path, home.path().join("bpf.lock"));
            }
            other => panic!("{other}"),
        }
        drop(lock);
        Lock::take(&dir).unwrap();
    }

    #[test]
    fn whoever_removes_pins_waits_for_his_turn_but_not_for_ever() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("bpf");
        let held = Change::take(&dir).unwrap();
        let why = Change::take_within(&dir, Duration::from_millis(5)).unwrap_err();
        assert!(matches!(&why, PinError::Busy { path } if *path == home.path().join("bpf.change")), "{why}");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| Change::take(&dir).map(drop));
            drop(held);
            waiter.join().unwrap().unwrap();
        });
        // Serving is another matter.
        let _serving = Lock::take(&dir).unwrap();
        Change::take(&dir).unwrap();
    }

    #[test]
    fn who_only_asks_takes_nothing_and_leaves_no_trace() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("bpf");
        assert_eq!(Lock::holder(&dir).unwrap(), None);
        assert!(!home.path().join("bpf.lock").exists());
        let lock = Lock::take(&dir).unwrap();
        assert_eq!(Lock::holder(&dir).unwrap(), Some(std::process::id()));
        drop(lock);
        let before = fs::read(home.path().join("bpf.lock")).unwrap();
        assert_eq!(Lock::holder(&dir).unwrap(), None);
        assert_eq!(fs::read(home.path().join("bpf.lock")).unwrap(), before);
        Lock::take(&dir).unwrap();
    }

    #[test]
    fn no_start_repeats_the_epoch_before_it() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("bpf");
        let mut seen = Vec::new();
        for _ in 0..20 {
            let mut lock = Lock::take(&dir).unwrap();
            seen.push(lock.next_epoch().unwrap().number());
            seen.push(lock.next_epoch().unwrap().number());
        }
        assert_eq!(seen, (0..40).map(|n| n % 32).collect::<Vec<_>>());
    }

    #[test]
    fn nor_does_one_that_finds_no_lock_beside_the_pins() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("bpf");
        fs::create_dir(&dir).unwrap();
        let mut seen = Vec::new();
        for _ in 0..40 {
            seen.push(Lock::take(&dir).unwrap().next_epoch().unwrap().number());
            fs::remove_file(home.path().join("bpf.lock")).unwrap();
        }
        assert_eq!(seen, (0..40).map(|n| n % 32).collect::<Vec<_>>());
        // What is no epoch says nothing, and without pins there is nothing to say.
        for (what, expected) in [(Some("32"), 0), (Some("x"), 0), (Some("7"), 8), (None, 0)] {
            forget_copy(&dir);
            let _ = what.map(|what| symlink(what, dir.join(COPY)).unwrap());
            assert_eq!(Lock::take(&dir).unwrap().next_epoch().unwrap().number(), expected, "{what:?}");
            fs::remove_file(home.path().join("bpf.lock")).unwrap();
        }
    }

    #[test]
    fn a_file_of_others_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("bpf.lock");
        fs::write(&file, "not ours").unwrap();
        assert!(matches!(Lock::take(&home.path().join("bpf")), Err(LockError::Garbled { .. })));
        assert_eq!(fs::read(&file).unwrap(), b"not ours");
    }
}
