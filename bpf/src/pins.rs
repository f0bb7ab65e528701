//! The links that outlive us, in a BPF file system of their own.
//!
//! A directory comes in and is proof, as [`Pins`], that links can be pinned there. Its files are the truth about what
//! is guarded: `<ifindex>-steer` and `<ifindex>-shield` for each interface, `return` and `funnel` for our own devices.
//! Only links are pinned: programs and maps live as long as a link runs them. Files named otherwise are not ours, nor is
//! what has such a name and is no such link: that is named to whoever asks and left alone.
//!
//! Many processes work here at once: the daemon, and a command for each interface that is born. Making a pin never
//! takes another's place; how one is taken away stands in [`removal`].

mod name;
mod removal;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statfs};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::error::{LockError, PinError};
use crate::loaded::{Loaded, Mode};
use crate::lock::Lock;
use crate::standing::{self, Found, Standing};
use crate::stray;
use crate::sys::{LinkTarget, Side};
use crate::words;

pub(crate) use self::name::PinName;
pub use self::removal::Swept;

/// The group and everybody else may write.
const OTHERS_WRITE: u32 = 0o022;

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

words! {
    /// The four kernel programs; the word is also that of pins.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// Whether the interface has a slot, as its `steer` says, in the load that `return` answers from: no other reaches
    /// user space. Our own devices are served.
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

impl Pins {
    /// The pins in `dir`, which is on a BPF file system.
    ///
    /// The kernel makes such a file system one that everybody may write to: then anyone could put something where a pin
    /// must be. Where it is ours to say, others may not from here on.
    ///
    /// # Errors
    ///
    /// [`PinError::Missing`], [`PinError::NotBpf`] and [`PinError::ReadOnly`], with the command that mends it, and
    /// [`PinError::Dir`].
    pub fn open(dir: &Path) -> Result<Self, PinError> {
        let found = statfs(dir).map_err(|why| match io::Error::from(why) {
            why if why.kind() == io::ErrorKind::NotFound => PinError::Missing { dir: dir.to_owned() },
            source => PinError::Dir { dir: dir.to_owned(), source },
        })?;
        if u32::try_from(found.f_type) != Ok(BPF_FS_MAGIC) {
            return Err(PinError::NotBpf { dir: dir.to_owned() });
        }
        if u64::try_from(found.f_flags).is_ok_and(|flags| flags & StatVfsMountFlags::RDONLY.bits() != 0) {
            return Err(PinError::ReadOnly { dir: dir.to_owned() });
        }
        // Whoever may not change that can pin nothing either, unless it is somebody's own arrangement.
        if let Ok(about) = fs::metadata(dir)
            && about.mode() & OTHERS_WRITE != 0
        {
            let _ = fs::set_permissions(dir, Permissions::from_mode(about.mode() & 0o7777 & !OTHERS_WRITE));
        }
        Ok(Self { dir: dir.to_owned() })
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
    /// [`PinError::Dir`] or [`PinError::Pin`] if the directory or a pin in it cannot be read.
    pub fn list(&self) -> Result<Vec<Pinned>, PinError> {
        let names = Interfaces::open().map_err(|why| self.unreadable(why))?;
        let mut looks = Vec::new();
        for name in self.names()? {
            if let Looked::At(look) = self.look(name)? {
                looks.push((name.program(), look));
            }
        }
        let mut programs = BTreeMap::new();
        for (_, look) in &looks {
            programs.entry(look.link.program).or_insert_with(|| Loaded::find(look.link.program));
        }
        let answering = looks.iter().find(|(program, _)| *program == Program::Return);
        let answering = answering.and_then(|(_, look)| programs[&look.link.program].counters);
        let mut found = Vec::new();
        for (program, Look { ifindex, link, standing }) in looks {
            let (defunct, loaded) = (standing == Standing::Stale, &programs[&link.program]);
            found.push(Pinned {
                ifindex,
                name: if defunct { None } else { names.name(ifindex) },
                program,
                program_id: link.program,
                defunct,
                mode: match program {
                    Program::Steer if answering.is_none() || loaded.counters != answering => Mode::Drop,
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
        let names = Interfaces::open().map_err(PinError::Strays)?;
        Ok(names.named(all.into_iter().filter(|(_, link)| !pinned.contains(&link.id))))
    }

    /// Whether all that is pinned here and attached is in another network namespace, and nothing in this one. Of `funnel`
    /// the kernel does not say where it is.
    ///
    /// # Errors
    ///
    /// As [`Pins::list`].
    pub fn are_elsewhere(&self) -> Result<bool, PinError> {
        let mut elsewhere = false;
        for name in self.names()?.into_iter().filter(|name| name.program() != Program::Funnel) {
            match self.look(name)? {
                Looked::At(look) if look.is_elsewhere() => elsewhere = true,
                Looked::At(Look { standing: Standing::Live | Standing::Doubled, .. }) => return Ok(false),
                Looked::At(_) | Looked::Nothing | Looked::Foreign => {}
            }
        }
        Ok(elsewhere)
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
        Ok(match self.look_for(PinName::of(program, ifindex), |_| ifindex)? {
            Looked::Nothing => Standing::Absent,
            Looked::Foreign => Standing::Foreign,
            Looked::At(look) => look.standing,
        })
    }

    /// The program that runs on `ifindex` through the pin of `program`, if it does.
    pub(crate) fn running(&self, program: Program, ifindex: u32) -> Option<u32> {
        match self.look(PinName::of(program, ifindex)) {
            Ok(Looked::At(Look { link, standing: Standing::Live, .. })) => Some(link.program),
            _ => None,
        }
    }

    fn unreadable(&self, source: io::Error) -> PinError {
        PinError::Dir { dir: self.dir.clone(), source }
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

    /// For the interface that its name says; for our own devices, for the one that its link says.
    fn look(&self, name: PinName) -> Result<Looked, PinError> {
        self.look_for(name, |link| match name {
            PinName::Interface(ifindex, _) => ifindex,
            PinName::Device(_) => link.ifindex,
        })
    }

    fn look_for(&self, name: PinName, whom: impl Fn(&LinkTarget) -> u32) -> Result<Looked, PinError> {
        let path = self.file(name);
        let look = || -> io::Result<_> {
            let link = match standing::find(&path)? {
                Found::Nothing => return Ok(Looked::Nothing),
                Found::Other => return Ok(Looked::Foreign),
                Found::Link(link) => link,
            };
            let ifindex = whom(&link);
            Ok(match standing::judge(&link, name.program(), ifindex)? {
                Standing::Foreign => Looked::Foreign,
                standing => Looked::At(Look { ifindex, link, standing }),
            })
        };
        look().map_err(|source| PinError::Pin { path: path.clone(), source })
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

impl Look {
    /// It runs on an interface of this index, and not on the one that has it here: that one has moved, or this is
    /// another network namespace.
    fn is_elsewhere(&self) -> bool {
        self.standing == Standing::Stale && self.link.ifindex != 0 && self.link.ifindex == self.ifindex
    }
}

/// Who knows what interfaces are called.
struct Interfaces(OwnedFd);

impl Interfaces {
    fn open() -> io::Result<Self> {
        // Any socket can be asked.
        Ok(Self(socket(AddressFamily::INET, SocketType::DGRAM, None)?))
    }

    fn named(&self, links: impl Iterator<Item = (Program, LinkTarget)>) -> Vec<Stray> {
        let stray = |(program, link): (Program, LinkTarget)| Stray {
            ifindex: link.ifindex,
            name: self.name(link.ifindex),
            program,
        };
        let mut strays: Vec<_> = links.map(stray).collect();
        strays.sort();
        strays
    }

    fn name(&self, ifindex: u32) -> Option<String> {
        netdevice::index_to_name(&self.0, ifindex).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_can_hold_no_links_is_refused_with_the_command() {
        let missing = Path::new("/nonexistent/pve-imds");
        let said = Pins::open(missing).map(|_| ()).map_err(|why| why.to_string());
        assert_eq!(
            said,
            Err(
                "/nonexistent/pve-imds is not there: `mkdir -p /nonexistent/pve-imds && mount -t bpf -o mode=0700 bpf \
                 /nonexistent/pve-imds`"
                    .to_owned()
            )
        );
        let said = Pins::open(Path::new("/proc")).map(|_| ()).map_err(|why| why.to_string());
        assert_eq!(said, Err("/proc is not a BPF file system: `mount -t bpf -o mode=0700 bpf /proc`".to_owned()));
    }
}
