//! The links that outlive us, in a BPF file system of their own.
//!
//! A directory comes in and is proof, as [`Pins`], that links can be pinned there. Its files are the truth about what
//! is guarded: `<ifindex>-steer` and `<ifindex>-shield` for each interface, `return` and `funnel` for our own devices.
//! Only links are pinned: programs and maps live as long as a link runs them. Files named otherwise are not ours.
//!
//! Many processes work here at once: the daemon, and a command for each interface that is born. Making a pin never
//! takes another's place; taking one away is done under [`Change`], after a second look.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::error::{LockError, PinError};
use crate::loaded::{Loaded, Mode};
use crate::lock::{Change, Lock};
use crate::step::Step;
use crate::sys::{self, LinkKind, LinkTarget, Side};

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

    /// The side of an interface that a classifier judges; XDP has none.
    pub(crate) const fn side(self) -> Option<Side> {
        match self {
            Self::Steer | Self::Return => Some(Side::Ingress),
            Self::Shield => Some(Side::Egress),
            Self::Funnel => None,
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
    /// It guards nothing here: its interface is gone, has left this network namespace, or is another by now.
    pub defunct: bool,
    /// Whether the interface has a slot, as its `steer` says. Our own devices are served.
    pub mode: Mode,
    /// Frames that the program has dropped on the interface since it was loaded. `None` where that is not counted: on
    /// our own devices, by a program of an earlier version, and beyond 4096 interfaces.
    pub drops: Option<u64>,
}

/// What a file name in the directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinName {
    Interface(u32, Program),
    Device(Program),
}

impl PinName {
    pub(crate) fn parse(name: &str) -> Option<Self> {
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

impl PinName {
    fn of(program: Program, ifindex: u32) -> Self {
        match program {
            Program::Steer | Program::Shield => Self::Interface(ifindex, program),
            Program::Return | Program::Funnel => Self::Device(program),
        }
    }

    const fn program(self) -> Program {
        match self {
            Self::Interface(_, program) | Self::Device(program) => program,
        }
    }
}

/// What a pin is worth for an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// There is none.
    Absent,
    /// Its link runs there.
    Live,
    /// Its link does not.
    Stale,
    /// It is a link for another hook: not ours.
    Foreign,
}

/// That the link says the index is not enough: an interface that moved to another network namespace may have it there,
/// while here another interface has got it. So the interface is asked too.
fn standing(link: &LinkTarget, program: Program, ifindex: u32) -> io::Result<Standing> {
    Ok(match (program.side(), link.kind) {
        (Some(_), LinkKind::Xdp) | (None, LinkKind::Tcx) => Standing::Foreign,
        _ if link.ifindex == 0 || link.ifindex != ifindex => Standing::Stale,
        (None, LinkKind::Xdp) => Standing::Live,
        (Some(side), LinkKind::Tcx) if sys::links_at(ifindex, side)?.contains(&link.id) => Standing::Live,
        (Some(_), LinkKind::Tcx) => Standing::Stale,
    })
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

    /// The process that serves from these pins, if one does: 0 if it did not say who it is.
    ///
    /// # Errors
    ///
    /// [`LockError::File`] if the lock's file cannot be read.
    pub fn holder(&self) -> Result<Option<u32>, LockError> {
        Lock::holder(&self.dir)
    }

    /// Everything that is pinned, by interface.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] if the directory or a pin in it cannot be read.
    pub fn list(&self) -> Result<Vec<Pinned>, PinError> {
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(|why| self.unreadable(why.into()))?;
        let mut programs = BTreeMap::new();
        let mut found = Vec::new();
        for name in self.names()? {
            let Some((ifindex, link, standing)) = self.look(name)? else { continue };
            let (program, defunct) = (name.program(), standing == Standing::Stale);
            let loaded = programs.entry(link.program).or_insert_with(|| Loaded::find(link.program));
            found.push(Pinned {
                ifindex,
                name: if defunct { None } else { netdevice::index_to_name(&any, ifindex).ok() },
                program,
                program_id: link.program,
                defunct,
                mode: match program {
                    Program::Steer => loaded.mode(ifindex),
                    Program::Shield => Mode::Drop,
                    Program::Return | Program::Funnel => Mode::Serve,
                },
                drops: loaded.drops(program, ifindex),
            });
        }
        found.sort();
        // shield has no use for slots and knows none. In this order it stands right behind the steer of its interface.
        for at in 1..found.len() {
            if found[at].program == Program::Shield && found[at - 1].ifindex == found[at].ifindex {
                found[at].mode = found[at - 1].mode;
            }
        }
        Ok(found)
    }

    /// Removes what is left of interfaces that are gone: their links are defunct, or `alive` denies them. Returns what
    /// was removed.
    ///
    /// `alive` is asked with the directory in hand, and must look anew: an interface may have been born, and guarded by
    /// another process, since a list of them was made.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] and [`PinError::Busy`]; pins that came later in the list are still there.
    pub fn sweep(&self, alive: impl Fn(u32) -> bool) -> Result<Vec<Pinned>, PinError> {
        let mut gone = Vec::new();
        for pinned in self.list()? {
            if !pinned.defunct && alive(pinned.ifindex) {
                continue;
            }
            let _change = Change::take(&self.dir)?;
            let name = PinName::of(pinned.program, pinned.ifindex);
            if let Some((ifindex, _, standing)) = self.look(name)?
                && (standing == Standing::Stale || !alive(ifindex))
            {
                self.clear(name)?;
                gone.push(pinned);
            }
        }
        Ok(gone)
    }

    /// Removes what is left of one interface. A guard that lives is left alone: by now it may be another interface's
    /// that has got the same index, or the same one's under another name. Only [`Pins::sweep`] and
    /// [`Pins::remove_all`] open a guard.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] and [`PinError::Busy`].
    pub fn forget(&self, ifindex: u32) -> Result<(), PinError> {
        self.clear_stale(Program::Steer, ifindex)?;
        self.clear_stale(Program::Shield, ifindex)?;
        Ok(())
    }

    /// Removes every pin of ours, and with them every guard.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] and [`PinError::Busy`]; pins may be left.
    pub fn remove_all(&self) -> Result<(), PinError> {
        let _change = Change::take(&self.dir)?;
        self.names()?.into_iter().try_for_each(|name| self.clear(name))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the link of `program` on `ifindex` is pinned.
    pub(crate) fn path(&self, program: Program, ifindex: u32) -> PathBuf {
        self.file(PinName::of(program, ifindex))
    }

    /// What is pinned for `program` on `ifindex` is worth.
    pub(crate) fn standing(&self, program: Program, ifindex: u32) -> Result<Standing, PinError> {
        let path = self.path(program, ifindex);
        match sys::pinned_link(&path).and_then(|link| standing(&link, program, ifindex)) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Standing::Absent),
            found => found.map_err(|source| PinError::Pin { path, source }),
        }
    }

    /// Removes the pin of `program` on `ifindex` if it is stale, and says whether it was.
    pub(crate) fn clear_stale(&self, program: Program, ifindex: u32) -> Result<bool, PinError> {
        // Nothing to do is the rule, and then nobody is kept waiting.
        if self.standing(program, ifindex)? != Standing::Stale {
            return Ok(false);
        }
        let _change = Change::take(&self.dir)?;
        let stale = self.standing(program, ifindex)? == Standing::Stale;
        if stale {
            self.clear(PinName::of(program, ifindex))?;
        }
        Ok(stale)
    }

    fn unreadable(&self, source: io::Error) -> PinError {
        PinError::Pin { path: self.dir.clone(), source }
    }

    fn file(&self, name: PinName) -> PathBuf {
        self.dir.join(name.to_string())
    }

    /// The pins of ours.
    pub(crate) fn names(&self) -> Result<Vec<PinName>, PinError> {
        let entries = fs::read_dir(&self.dir).map_err(|why| self.unreadable(why))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_str().and_then(PinName::parse)));
        names.filter_map(Result::transpose).collect::<io::Result<_>>().map_err(|why| self.unreadable(why))
    }

    /// Which interface a pin is for, its link, and what it is worth there. `None` if it has gone meanwhile.
    fn look(&self, name: PinName) -> Result<Option<(u32, LinkTarget, Standing)>, PinError> {
        let look = || -> io::Result<_> {
            let link = sys::pinned_link(&self.file(name))?;
            let ifindex = match name {
                PinName::Interface(ifindex, _) => ifindex,
                PinName::Device(_) => link.ifindex,
            };
            Ok((ifindex, link, standing(&link, name.program(), ifindex)?))
        };
        match look() {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some).map_err(|source| PinError::Pin { path: self.file(name), source }),
        }
    }

    /// Removes one pin, with [`Change`] held; that it is gone already is as good.
    fn clear(&self, name: PinName) -> Result<(), PinError> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Ok(()) => Step::Cleared.taken(),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(PinError::Pin { path, source }),
        }
        Ok(())
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
