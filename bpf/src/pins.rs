//! The links that outlive us, in a BPF file system of their own.
//!
//! A directory comes in and is proof, as [`Pins`], that links can be pinned there. Its files are the truth about what
//! is guarded: `<ifindex>-steer` and `<ifindex>-shield` for each interface, `return` and `funnel` for our own devices.
//! Only links are pinned: programs and maps live as long as a link runs them. Files named otherwise are not ours.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::error::{LockError, PinError};
use crate::lock::Lock;
use crate::sys;

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// The four kernel programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Program {
    /// From a guest: ours to user space, forgeries nowhere, the rest untouched.
    Steer,
    /// To a guest: nobody speaks in our name.
    Shield,
    /// From user space back to the guest.
    Return,
    /// Into the AF_XDP socket.
    Funnel,
}

impl Program {
    /// The word for it in pins, logs and errors.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Steer => "steer",
            Self::Shield => "shield",
            Self::Return => "return",
            Self::Funnel => "funnel",
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A directory on a BPF file system.
#[derive(Clone, Debug)]
pub struct Pins {
    dir: PathBuf,
}

/// One pinned link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pinned {
    /// The interface it was made for; 0 for `return` and `funnel` of a device that is gone.
    pub ifindex: u32,
    /// That interface's name now; `None` if it is gone.
    pub name: Option<String>,
    /// What it runs.
    pub program: Program,
    /// The kernel's number of the loaded program: it differs between loads.
    pub program_id: u32,
    /// The interface is gone and the link does nothing.
    pub defunct: bool,
}

/// What a file name in the directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PinName {
    Interface(u32, Program),
    Device(Program),
}

impl PinName {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "return" => return Some(Self::Device(Program::Return)),
            "funnel" => return Some(Self::Device(Program::Funnel)),
            _ => {}
        }
        let (ifindex, program) = name.split_once('-')?;
        let program = match program {
            "steer" => Program::Steer,
            "shield" => Program::Shield,
            _ => return None,
        };
        let parsed = Self::Interface(ifindex.parse().ok()?, program);
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for PinName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(ifindex, program) => write!(f, "{ifindex}-{program}"),
            Self::Device(program) => write!(f, "{program}"),
        }
    }
}

impl Pins {
    /// The pins in `dir`, which is on a BPF file system.
    ///
    /// # Errors
    ///
    /// [`PinError::Missing`] and [`PinError::NotBpf`], with the command that mends it.
    pub fn open(dir: &Path) -> Result<Self, PinError> {
        let found = statfs(dir).map_err(|why| PinError::Missing { dir: dir.to_owned(), source: why.into() })?;
        if u32::try_from(found.f_type) == Ok(BPF_FS_MAGIC) {
            Ok(Self { dir: dir.to_owned() })
        } else {
            Err(PinError::NotBpf { dir: dir.to_owned() })
        }
    }

    /// The right to serve from these pins, for one process at a time. The file is `<dir>.lock`.
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] names the process that has it.
    pub fn lock(&self) -> Result<Lock, LockError> {
        Lock::take(&self.dir)
    }

    /// Everything that is pinned, by interface.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] if the directory or a pin in it cannot be read.
    pub fn list(&self) -> Result<Vec<Pinned>, PinError> {
        let failed = |source| PinError::Pin { path: self.dir.clone(), source };
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(|why| failed(why.into()))?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(name) = entry.file_name().to_str().and_then(PinName::parse) else { continue };
            let link = match sys::pinned_link(&entry.path()) {
                Ok(link) => link,
                // Removed since the directory was read.
                Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(PinError::Pin { path: entry.path(), source }),
            };
            let (ifindex, program) = match name {
                PinName::Interface(ifindex, program) => (ifindex, program),
                PinName::Device(program) => (link.ifindex, program),
            };
            let defunct = link.ifindex == 0 || link.ifindex != ifindex;
            found.push(Pinned {
                ifindex,
                name: if defunct { None } else { netdevice::index_to_name(&any, ifindex).ok() },
                program,
                program_id: link.program,
                defunct,
            });
        }
        found.sort();
        Ok(found)
    }

    /// Removes what is left of interfaces that are gone: their links are defunct, or `alive` denies them. Returns what
    /// was removed.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`]; pins that came later in the list are still there.
    pub fn sweep(&self, alive: impl Fn(u32) -> bool) -> Result<Vec<Pinned>, PinError> {
        let mut gone = self.list()?;
        gone.retain(|pinned| pinned.defunct || !alive(pinned.ifindex));
        for pinned in &gone {
            self.remove(&self.path(pinned.program, pinned.ifindex))?;
        }
        Ok(gone)
    }

    /// Removes the guard of one interface: from now on its frames for the metadata address go wherever the bridge sends
    /// them. Nothing happens if it has none.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] if a pin cannot be removed.
    pub fn forget(&self, ifindex: u32) -> Result<(), PinError> {
        self.remove(&self.path(Program::Steer, ifindex))?;
        self.remove(&self.path(Program::Shield, ifindex))
    }

    /// Removes every pin of ours, and with them every guard.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] if a pin cannot be removed; others may be left.
    pub fn remove_all(&self) -> Result<(), PinError> {
        let failed = |source| PinError::Pin { path: self.dir.clone(), source };
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_str().and_then(PinName::parse).is_some() {
                self.remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Where the link of `program` on `ifindex` is pinned.
    pub(crate) fn path(&self, program: Program, ifindex: u32) -> PathBuf {
        let name = match program {
            Program::Steer | Program::Shield => PinName::Interface(ifindex, program),
            Program::Return | Program::Funnel => PinName::Device(program),
        };
        self.dir.join(name.to_string())
    }

    /// Removes one pin; that it is gone already is as good.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), PinError> {
        match fs::remove_file(path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                Err(PinError::Pin { path: path.to_owned(), source: why })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_name_has_one_spelling() {
        for (name, parsed) in [
            ("7-steer", Some(PinName::Interface(7, Program::Steer))),
            ("4294967295-shield", Some(PinName::Interface(u32::MAX, Program::Shield))),
            ("return", Some(PinName::Device(Program::Return))),
            ("funnel", Some(PinName::Device(Program::Funnel))),
            ("07-steer", None),
            ("+7-steer", None),
            ("7-return", None),
            ("7-steer.old", None),
            ("-steer", None),
            ("4294967296-steer", None),
            ("progs", None),
        ] {
            assert_eq!(PinName::parse(name), parsed, "{name}");
        }
    }

    #[test]
    fn a_directory_that_can_hold_no_links_is_refused_with_the_command() {
        let missing = Path::new("/nonexistent/pve-imds");
        let said = Pins::open(missing).map(|_| ()).map_err(|why| why.to_string());
        assert_eq!(
            said,
            Err("/nonexistent/pve-imds is not there: `mkdir -p /nonexistent/pve-imds && mount -t bpf bpf \
                 /nonexistent/pve-imds`"
                .to_owned())
        );
        let said = Pins::open(Path::new("/proc")).map(|_| ()).map_err(|why| why.to_string());
        assert_eq!(said, Err("/proc is not a BPF file system: `mount -t bpf bpf /proc`".to_owned()));
    }
}
