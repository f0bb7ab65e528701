//! The links that outlive us, in a BPF file system of their own.
//!
//! A directory comes in and is proof, as [`Pins`], that links can be pinned there. Its files are the truth about what
//! is guarded: `<ifindex>-steer` and `<ifindex>-shield` for each interface, `return` and `funnel` for our own devices.
//! Only links are pinned: programs and maps live as long as a link runs them. Files named otherwise are not ours, nor is
//! what has such a name and is no such link: that is named to whoever asks and left alone.
//!
//! Many processes work here at once: the daemon, and a command for each interface that is born. Making a pin never
//! takes another's place; taking one away is done under [`Change`], after a second look.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::error::{LockError, PinError};
use crate::loaded::{Loaded, Mode};
use crate::lock::{self, Change, Lock};
use crate::standing::{self, Found, Standing};
use crate::step::Step;
use crate::stray;
use crate::sys::{LinkTarget, Side};
use crate::words::words;

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

words! {
    /// The four kernel programs; the word is also that of pins.
    pub enum Program {
        /// From a guest: ours to user space, forgeries nowhere, the rest untouched.
        Steer => "steer",
        /// To a guest: nobody speaks in our name.
        Shield => "shield",
        /// From user space back to the guest.
        Return => "return",
        /// Into the AF_XDP socket.
        Funnel => "funnel",
    }
}

impl Program {
    /// The side of an interface that a classifier judges; XDP has none.
    pub(crate) const fn side(self) -> Option<Side> {
        match self {
            Self::Steer | Self::Return => Some(Side::Ingress),
            Self::Shield => Some(Side::Egress),
            Self::Funnel => None,
        }
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

/// A guard whose link nobody here has pinned: somebody else holds it, as a mount namespace does that has kept a file
/// system with our pins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// The interface it runs on.
    pub ifindex: u32,
    /// That interface's name.
    pub name: Option<String>,
    /// What it runs.
    pub program: Program,
}

/// What [`Pins::sweep`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The pins it removed: program and interface, 0 for our devices when they are gone.
    pub gone: Vec<(Program, u32)>,
    /// Files with a pin's name that are none.
    pub foreign: Vec<PathBuf>,
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

    /// Everything that is pinned, by interface. What has a pin's name and is none is left out ([`Pins::foreign`]).
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] if the directory or a pin in it cannot be read.
    pub fn list(&self) -> Result<Vec<Pinned>, PinError> {
        let names = self.interfaces()?;
        let mut programs = BTreeMap::new();
        let mut found = Vec::new();
        for name in self.names()? {
            let Looked::At(Look { ifindex, link, standing }) = self.look(name)? else { continue };
            let (program, defunct) = (name.program(), standing == Standing::Stale);
            let loaded = programs.entry(link.program).or_insert_with(|| Loaded::find(link.program));
            found.push(Pinned {
                ifindex,
                name: if defunct { None } else { names.name(ifindex) },
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

    /// Files that have a pin's name and are none. Nothing here touches them; one that stands where a pin must be keeps
    /// that interface open.
    ///
    /// # Errors
    ///
    /// As [`Pins::list`].
    pub fn foreign(&self) -> Result<Vec<PathBuf>, PinError> {
        let mut found = Vec::new();
        for name in self.names()? {
            if matches!(self.look(name)?, Looked::Foreign) {
                found.push(self.file(name));
            }
        }
        found.sort();
        Ok(found)
    }

    /// The guards on interfaces of this network namespace that are not pinned here. Looks at every link the kernel has.
    ///
    /// # Errors
    ///
    /// As [`Pins::list`], and [`PinError::Strays`].
    pub fn strays(&self) -> Result<Vec<Stray>, PinError> {
        let mut pinned = HashSet::new();
        for name in self.names()? {
            if let Looked::At(Look { link, .. }) = self.look(name)? {
                pinned.insert(link.id);
            }
        }
        let all = stray::all().map_err(PinError::Strays)?;
        self.named(all.into_iter().filter(|(_, link)| !pinned.contains(&link.id)))
    }

    /// Removes what is left of interfaces that are gone: their links are defunct, or `alive` denies them.
    ///
    /// `alive` is asked with the directory in hand, and must look anew: an interface may have been born, and guarded by
    /// another process, since a list of them was made.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] and [`PinError::Busy`]; pins that came later in the list are still there.
    pub fn sweep(&self, alive: impl Fn(u32) -> bool) -> Result<Swept, PinError> {
        let mut swept = Swept::default();
        let is_left = |look: &Look| look.standing == Standing::Stale || !alive(look.ifindex);
        for name in self.names()? {
            match self.look(name)? {
                Looked::At(look) if is_left(&look) => {}
                Looked::Foreign => {
                    swept.foreign.push(self.file(name));
                    continue;
                }
                Looked::At(_) | Looked::Nothing => continue,
            }
            let _change = Change::take(&self.dir)?;
            if let Looked::At(look) = self.look(name)?
                && is_left(&look)
            {
                self.clear(name)?;
                swept.gone.push((name.program(), look.ifindex));
            }
        }
        swept.gone.sort_unstable_by_key(|(program, ifindex)| (*ifindex, *program));
        swept.foreign.sort();
        Ok(swept)
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

    /// Removes every pin of ours, and takes every guard off the interfaces of this network namespace, also those that
    /// somebody else holds: returns these.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`], [`PinError::Busy`] and [`PinError::Strays`]; pins and guards may be left.
    pub fn remove_all(&self) -> Result<Vec<Stray>, PinError> {
        let _change = Change::take(&self.dir)?;
        let mut pinned = HashSet::new();
        for name in self.names()? {
            if let Looked::At(Look { link, .. }) = self.look(name)? {
                self.clear(name)?;
                pinned.insert(link.id);
            }
        }
        lock::forget_copy(&self.dir);
        // Without its pin a link goes when the kernel finds the time; what is still there is taken off, but only what
        // was pinned nowhere here is news.
        let off = stray::detach_all().map_err(PinError::Strays)?;
        self.named(off.into_iter().filter(|(_, link)| !pinned.contains(&link.id)))
    }

    /// Takes off whatever else of ours runs beside the pinned link of `program` on `ifindex`. Returns how many that was.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] if the pin cannot be read, [`PinError::Strays`].
    pub fn detach_strays(&self, program: Program, ifindex: u32) -> Result<usize, PinError> {
        match self.look(PinName::of(program, ifindex))? {
            Looked::At(Look { link, standing: Standing::Doubled, .. }) => {
                stray::detach_but(program, ifindex, link.id).map_err(PinError::Strays)
            }
            _ => Ok(0),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the link of `program` on `ifindex` is pinned.
    pub(crate) fn path(&self, program: Program, ifindex: u32) -> PathBuf {
        self.file(PinName::of(program, ifindex))
    }

    /// What is pinned for `program` on `ifindex` is worth. Takes the kernel's lock of all links.
    ///
    /// # Errors
    ///
    /// [`PinError::Pin`] if that cannot be told.
    pub fn standing(&self, program: Program, ifindex: u32) -> Result<Standing, PinError> {
        let path = self.path(program, ifindex);
        let look = || match standing::find(&path)? {
            Found::Nothing => Ok(Standing::Absent),
            Found::Other => Ok(Standing::Foreign),
            Found::Link(link) => standing::judge(&link, program, ifindex),
        };
        look().map_err(|source| PinError::Pin { path: path.clone(), source })
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

    fn look(&self, name: PinName) -> Result<Looked, PinError> {
        let path = self.file(name);
        let look = || -> io::Result<_> {
            let link = match standing::find(&path)? {
                Found::Nothing => return Ok(Looked::Nothing),
                Found::Other => return Ok(Looked::Foreign),
                Found::Link(link) => link,
            };
            let ifindex = match name {
                PinName::Interface(ifindex, _) => ifindex,
                PinName::Device(_) => link.ifindex,
            };
            Ok(match standing::judge(&link, name.program(), ifindex)? {
                Standing::Foreign => Looked::Foreign,
                standing => Looked::At(Look { ifindex, link, standing }),
            })
        };
        look().map_err(|source| PinError::Pin { path: path.clone(), source })
    }

    fn interfaces(&self) -> Result<Interfaces, PinError> {
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(|why| self.unreadable(why.into()))?;
        Ok(Interfaces(any))
    }

    fn named(&self, links: impl Iterator<Item = (Program, LinkTarget)>) -> Result<Vec<Stray>, PinError> {
        let names = self.interfaces()?;
        let stray = |(program, link): (Program, LinkTarget)| Stray {
            ifindex: link.ifindex,
            name: names.name(link.ifindex),
            program,
        };
        let mut strays: Vec<_> = links.map(stray).collect();
        strays.sort();
        Ok(strays)
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

/// What is found under a pin's name.
enum Looked {
    /// It has gone meanwhile.
    Nothing,
    /// Nothing of ours.
    Foreign,
    At(Look),
}

/// Which interface a pin is for, its link, and what it is worth there.
struct Look {
    ifindex: u32,
    link: LinkTarget,
    standing: Standing,
}

/// Who knows what interfaces are called.
struct Interfaces(OwnedFd);

impl Interfaces {
    fn name(&self, ifindex: u32) -> Option<String> {
        netdevice::index_to_name(&self.0, ifindex).ok()
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
