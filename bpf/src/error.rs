//! What can go wrong, one enum per family of operations. Each text says what the kernel said, and last what to do about
//! it.

use std::io;
use std::path::{Path, PathBuf};

use aya::EbpfError;
use aya::maps::MapError as AyaMapError;
use aya::programs::ProgramError;
use aya::programs::links::LinkError;

use crate::mend::{causes, removal};
use crate::pins::Program;

/// The mend where the kernel does not say which right it misses.
const RIGHTS: &str = "run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN";

/// The programs could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The kernel has no tcx.
    #[error("this kernel is too old (tcx came with 6.6): boot the kernel of Proxmox VE 8.2 or later")]
    Kernel,
    /// The object or its maps were refused.
    #[error("the kernel refused our maps: {}; {RIGHTS}", causes(.0))]
    Object(#[source] EbpfError),
    /// Who asks may not load programs.
    #[error("the kernel lets us load no program (`{program}`): {source}; {RIGHTS}")]
    Denied {
        /// Which one was tried.
        program: Program,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The verifier refused a program.
    #[error(
        "the kernel refused the program `{program}`: report this with the kernel's version and the text that follows"
    )]
    Verifier {
        /// Which one.
        program: Program,
        /// What the kernel said.
        #[source]
        source: ProgramError,
    },
    /// The object holds no such map or program.
    #[error("the object lacks `{0}`: it was built from other sources than this binary, rebuild both")]
    Lacking(&'static str),
}

/// A map could not be changed or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The socket was refused.
    #[error("the kernel refused the socket: {}; it must be an AF_XDP socket", causes(.0))]
    Socket(#[source] AyaMapError),
    /// The memory that programs and user space share could not be mapped.
    #[error("the map `{map}` cannot be shared with the kernel: {source}; the process may be out of memory mappings")]
    Shared {
        /// Which map.
        map: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The object holds no such map.
    #[error("the object lacks `{0}`: it was built from other sources than this binary, rebuild both")]
    Lacking(&'static str),
    /// A slot could not be assigned or released.
    #[error("slot {slot} could not be changed: {}; the node may be out of kernel memory", causes(source))]
    Slot {
        /// Which one.
        slot: u16,
        /// What the kernel said.
        #[source]
        source: AyaMapError,
    },
}

/// A program could not be attached to an interface. What was attached before is still there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no such interface.
    #[error("there is no interface `{name}` ({source}): it may just have gone, otherwise look at `ip link`")]
    NoInterface {
        /// The name that was asked for.
        name: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The name meant another interface by the time the link was made; it has been taken off again.
    #[error("`{name}` is not interface {expected} any more: treat it as gone and look for the new one")]
    Renamed {
        /// The name that was asked for.
        name: String,
        /// The index that was asked for.
        expected: u32,
    },
    /// The kernel refused.
    #[error(
        "`{program}` cannot be attached to `{name}`: {}; see what sits there with `bpftool net show dev {name}`",
        causes(source)
    )]
    Refused {
        /// Which program.
        program: Program,
        /// Where.
        name: String,
        /// What the kernel said.
        #[source]
        source: ProgramError,
    },
    /// The driver cannot run XDP itself. Generic XDP would receive nothing, so it is not tried.
    #[error(
        "`{name}` has no native XDP: {}; it must be one end of a veth pair that this service has made",
        causes(source)
    )]
    NotNative {
        /// Where.
        name: String,
        /// What the kernel said.
        #[source]
        source: ProgramError,
    },
    /// The attachment is not a link, so it can be neither pinned nor swapped.
    #[error(
        "the kernel attached `{program}` to `{name}` the old way: boot a kernel of 6.6 or later and remove `{name}`"
    )]
    Legacy {
        /// Which program.
        program: Program,
        /// Where.
        name: String,
    },
    /// What has the pin's name is no link for that hook. Nothing here removes it.
    #[error(
        "{} has the name of a pin and is no link of ours ({}): remove it with `{removal}`",
        path.display(),
        causes(source)
    )]
    Foreign {
        /// Which pin.
        path: PathBuf,
        /// The command that removes it.
        removal: String,
        /// Why it cannot be.
        #[source]
        source: LinkError,
    },
    /// The object holds no such program.
    #[error("the object lacks `{0}`: it was built from other sources than this binary, rebuild both")]
    Lacking(Program),
    /// Others keep changing the pin.
    #[error("the pin {} does not stand still: stop the other process that attaches guards", path.display())]
    Contended {
        /// Which pin.
        path: PathBuf,
    },
    /// The pin could not be made, read or removed.
    #[error(transparent)]
    Pin(#[from] PinError),
}

impl AttachError {
    /// Whether a program of ours may be there, held by somebody else, that cannot be pinned or taken off from here. Of our
    /// own devices, new ones are the mend.
    #[must_use]
    pub fn is_out_of_reach(&self) -> bool {
        matches!(self, Self::Pin(PinError::Strays(_)))
    }
}

/// The directory of pins, or a pin in it, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// There is no such directory.
    #[error(
        "{} is not there: `mkdir -p {} && mount -t bpf -o mode=0700 bpf {}`",
        dir.display(),
        dir.display(),
        dir.display()
    )]
    Missing {
        /// Which directory.
        dir: PathBuf,
    },
    /// The directory cannot be looked into.
    #[error("the directory of pins {} cannot be read: {source}; run as root", dir.display())]
    Dir {
        /// Which directory.
        dir: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The directory is not on a BPF file system, so it can hold no links.
    #[error("{} is not a BPF file system: `mount -t bpf -o mode=0700 bpf {}`", dir.display(), dir.display())]
    NotBpf {
        /// Which directory.
        dir: PathBuf,
    },
    /// Nothing can be pinned there, and what is pinned cannot even be looked at.
    #[error("{} is read-only; what is pinned there still guards: `mount -o remount,rw {}`", dir.display(), dir.display())]
    ReadOnly {
        /// Which directory.
        dir: PathBuf,
    },
    /// Links of ours that are not pinned here could not be looked for, pinned or taken off.
    #[error(
        "programs that are not pinned here cannot be reached: {0}; take them over as root with \
         `pve-imds guard attach --all`"
    )]
    Strays(#[source] io::Error),
    /// What is pinned there guards interfaces of another network namespace.
    #[error(
        "what is pinned in {} guards interfaces of another network namespace: run this inside of it, or use another \
         directory",
        dir.display()
    )]
    Elsewhere {
        /// Which directory.
        dir: PathBuf,
    },
    /// Another process has been removing pins for two seconds.
    #[error("{} is held by a process that does not let go: see which with `fuser {}`", path.display(), path.display())]
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// The right to take pins away cannot be had.
    #[error("the lock file {} cannot be used: {source}; {LOCK}", path.display())]
    Change {
        /// The lock file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A pin could not be made, read or removed.
    #[error("the pin {} cannot be used: {source}; {}", path.display(), unusable(path, source))]
    Pin {
        /// Which pin.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Somebody who may not touch a pin is not told to remove it: what it holds may be a guard that works.
fn unusable(path: &Path, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "run as root: what root has pinned is root's".to_owned(),
        _ => format!("if that stays so, remove it with `{}`", removal(path)),
    }
}

/// The mend of a lock file that cannot be opened or written.
const LOCK: &str = "run as root, and see that its directory is writable";

/// The lock beside the pins cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process serves.
    #[error("process {pid} serves already (it holds {}): stop it first", path.display())]
    Held {
        /// Who.
        pid: u32,
        /// The lock file.
        path: PathBuf,
    },
    /// The file holds something that is not ours.
    #[error("{} is no lock file of ours: remove it with `{}`", path.display(), removal(path))]
    Garbled {
        /// The lock file.
        path: PathBuf,
    },
    /// The file could not be opened, locked or written.
    #[error("the lock file {} cannot be used: {source}; {LOCK}", path.display())]
    File {
        /// The lock file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}
