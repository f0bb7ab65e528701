//! What no crate of ours wraps: what the kernel says of links and programs (`bpf(2)`), a device's checksum offload
//! (`SIOCETHTOOL`), and memory that a map shares with us (`mmap(2)`). The crate's `unsafe`, all of it.
//!
//! Why it is sound: the calls take the address of a structure on our stack and its size. Each structure is `repr(C)`,
//! laid out as in `linux/bpf.h` and `linux/ethtool.h`, fully initialised, and outlives the call; pointers inside it
//! point to values that outlive it too. The kernel writes at most the size we state, into memory of integers, for which
//! every bit pattern is a value. A file descriptor that the kernel returns is owned by nobody else. Shared memory is read
//! and written as atomics only, and unmapped when the one value that owns it is dropped.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// What the kernel says of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkTarget {
    /// The link's own number.
    pub(crate) id: u32,
    /// Which hook it is for.
    pub(crate) kind: LinkKind,
    /// The interface it is attached to; 0 once that is gone (the link is *defunct*).
    pub(crate) ifindex: u32,
    /// The program it runs.
    pub(crate) program: u32,
}

/// The hooks that we make links for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    Tcx(Side),
    Xdp,
}

const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_LINK_UPDATE: libc::c_int = 29;
const BPF_LINK_GET_FD_BY_ID: libc::c_int = 30;
const BPF_LINK_GET_NEXT_ID: libc::c_int = 31;
const BPF_LINK_DETACH: libc::c_int = 34;
const BPF_LINK_TYPE_XDP: u32 = 6;
const BPF_LINK_TYPE_TCX: u32 = 11;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;

/// `union bpf_attr` for `BPF_OBJ_GET` and `BPF_OBJ_PIN`.
#[repr(C)]
struct ObjectAt {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// `union bpf_attr` for `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct InfoByFd {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// `union bpf_attr` for `BPF_LINK_UPDATE`; `BPF_LINK_DETACH` takes the first member.
#[repr(C)]
struct OfLink {
    link_fd: u32,
    program_fd: u32,
    flags: u32,
    old_program_fd: u32,
}

/// `union bpf_attr` for `BPF_PROG_GET_FD_BY_ID`, `BPF_LINK_GET_FD_BY_ID` and `BPF_LINK_GET_NEXT_ID`.
#[repr(C)]
struct ById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

/// `union bpf_attr` for `BPF_PROG_QUERY`.
#[repr(C)]
#[derive(Default)]
struct Query {
    ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    count: u32,
    gap: u32,
    program_flags: u64,
    link_ids: u64,
    link_flags: u64,
    revision: u64,
}

/// The beginning of `struct bpf_prog_info`, as far as the name.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    translated_len: u32,
    jited: u64,
    translated: u64,
    load_time: u64,
    created_by: u32,
    map_count: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// `struct bpf_link_info`, with the member of the union that is tcx's; XDP's begins with the interface, too.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    gap: u32,
    ifindex: u32,
    attach_type: u32,
    rest: [u32; 10],
}

/// # Safety
///
/// `Attr` is one of the structures of `union bpf_attr`, the one that `command` takes, and its pointers are good.
unsafe fn bpf<Attr>(command: libc::c_int, attr: &mut Attr) -> io::Result<libc::c_long> {
    // SAFETY: address and size are those of a live, exclusively borrowed value; its content is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<Attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Where the link that is pinned at `path` is attached.
///
/// Fails with `NotFound` if nothing is pinned there and `InvalidData` if it is no link of a kind we make.
pub(crate) fn pinned_link(path: &Path) -> io::Result<LinkTarget> {
    let pathname = CString::new(path.as_os_str().as_bytes())?;
    let mut get = ObjectAt { pathname: address(pathname.as_ptr()), bpf_fd: 0, file_flags: 0 };
    // SAFETY: the structure is the one of BPF_OBJ_GET; `pathname` is a C string that lives as long as this function.
    let object = unsafe { make(BPF_OBJ_GET, &mut get) }?;
    if is_link(&object)? { Link(object).target() } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Whether a BPF object is a link. What the kernel says of one does not tell: each kind has a structure of its own, and
/// they begin alike. So it is asked to update the link with a descriptor that nobody has, which changes nothing.
fn is_link(object: &OwnedFd) -> io::Result<bool> {
    let mut update =
        OfLink { link_fd: object.as_raw_fd().cast_unsigned(), program_fd: u32::MAX, flags: 0, old_program_fd: 0 };
    // SAFETY: the structure is the one of BPF_LINK_UPDATE and holds no pointer.
    match unsafe { bpf(BPF_LINK_UPDATE, &mut update) } {
        Err(why) if why.raw_os_error() == Some(libc::EBADF) => Ok(true),
        Err(why) if why.raw_os_error() != Some(libc::EINVAL) => Err(why),
        _ => Ok(false),
    }
}

/// A link, whoever has made it.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

impl Link {
    /// The link of that number. Fails with `NotFound` if it is gone, or going.
    pub(crate) fn open(id: u32) -> io::Result<Self> {
        let mut get = ById { id, next_id: 0, open_flags: 0 };
        // SAFETY: the structure is the one of BPF_LINK_GET_FD_BY_ID and holds no pointer.
        unsafe { make(BPF_LINK_GET_FD_BY_ID, &mut get) }.map(Self)
    }

    /// Where it is attached. Fails with `InvalidData` if it is of no kind we make.
    pub(crate) fn target(&self) -> io::Result<LinkTarget> {
        let mut info = LinkInfo::default();
        // SAFETY: the structure is the one of a link and holds no pointer of ours.
        unsafe { inform(&self.0, &mut info) }?;
        let kind = match (info.kind, info.attach_type) {
            (BPF_LINK_TYPE_XDP, _) => LinkKind::Xdp,
            (BPF_LINK_TYPE_TCX, side) if side == Side::Ingress as u32 => LinkKind::Tcx(Side::Ingress),
            (BPF_LINK_TYPE_TCX, side) if side == Side::Egress as u32 => LinkKind::Tcx(Side::Egress),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(LinkTarget { id: info.id, kind, ifindex: info.ifindex, program: info.program })
    }

    /// Pins it. Fails with `AlreadyExists` if there is something.
    pub(crate) fn pin(&self, path: &Path) -> io::Result<()> {
        let pathname = CString::new(path.as_os_str().as_bytes())?;
        let bpf_fd = self.0.as_raw_fd().cast_unsigned();
        let mut pin = ObjectAt { pathname: address(pathname.as_ptr()), bpf_fd, file_flags: 0 };
        // SAFETY: the structure is the one of BPF_OBJ_PIN; `pathname` is a C string that lives as long as this function.
        unsafe { bpf(BPF_OBJ_PIN, &mut pin) }.map(drop)
    }

    /// Takes it off its interface, whoever holds it. That it is off already is as good.
    pub(crate) fn detach(&self) -> io::Result<()> {
        let mut which = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: the structure of BPF_LINK_DETACH is the descriptor alone.
        unsafe { bpf(BPF_LINK_DETACH, &mut which) }.map(drop)
    }
}

/// The number of the next link after this one, of all that the kernel has; of the first after 0.
pub(crate) fn next_link(after: u32) -> io::Result<Option<u32>> {
    let mut next = ById { id: after, next_id: 0, open_flags: 0 };
    // SAFETY: the structure is the one of BPF_LINK_GET_NEXT_ID and holds no pointer.
    match unsafe { bpf(BPF_LINK_GET_NEXT_ID, &mut next) } {
        Ok(_) => Ok(Some(next.next_id)),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

/// A side of an interface that classifiers are attached to: `BPF_TCX_INGRESS` and `BPF_TCX_EGRESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ingress = 46,
    Egress = 47,
}

/// The kernel runs no more programs than that on one side (`BPF_MPROG_MAX`).
const CHAIN: usize = 64;

/// A program on one side of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    /// The link that holds it there; 0 if it is held otherwise.
    pub(crate) link: u32,
    pub(crate) program: u32,
}

/// The programs on one side of an interface of this network namespace, in the order in which they are asked. None if
/// there is no such interface.
pub(crate) fn attached_at(ifindex: u32, side: Side) -> io::Result<Vec<Attached>> {
    let (mut programs, mut links) = ([0_u32; CHAIN], [0_u32; CHAIN]);
    let mut query = Query {
        ifindex,
        attach_type: side as u32,
        count: u32::try_from(CHAIN).map_err(io::Error::other)?,
        program_ids: address(programs.as_mut_ptr()),
        link_ids: address(links.as_mut_ptr()),
        ..Query::default()
    };
    // SAFETY: the structure is the one of BPF_PROG_QUERY; both arrays are writable and as long as `count` says.
    match unsafe { bpf(BPF_PROG_QUERY, &mut query) } {
        Ok(_) => {
            let both = programs.into_iter().zip(links).take(query.count as usize);
            Ok(both.map(|(program, link)| Attached { link, program }).collect())
        }
        Err(why) if matches!(why.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => Ok(Vec::new()),
        Err(why) => Err(why),
    }
}

/// What the kernel says of a loaded program.
#[derive(Debug)]
pub(crate) struct ProgramAbout {
    /// Where it can run; `None` if that is nowhere we attach anything.
    pub(crate) hook: Option<Hook>,
    /// The name of its function.
    pub(crate) name: String,
    /// The maps that it uses, by number.
    pub(crate) maps: Vec<u32>,
}

/// What a program is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Classifier,
    Xdp,
}

/// The program of that number. Fails with `NotFound` if it is gone.
pub(crate) fn program(id: u32) -> io::Result<ProgramAbout> {
    let mut get = ById { id, next_id: 0, open_flags: 0 };
    // SAFETY: the structure is the one of BPF_PROG_GET_FD_BY_ID and holds no pointer.
    let fd = unsafe { make(BPF_PROG_GET_FD_BY_ID, &mut get) }?;
    let mut ids = [0_u32; CHAIN];
    let map_count = u32::try_from(CHAIN).map_err(io::Error::other)?;
    let mut info = ProgramInfo { map_count, map_ids: address(ids.as_mut_ptr()), ..ProgramInfo::default() };
    // SAFETY: the structure is the one of a program; `map_ids` is writable and has room for `map_count`.
    unsafe { inform(&fd, &mut info) }?;
    let hook = match info.kind {
        BPF_PROG_TYPE_SCHED_CLS => Some(Hook::Classifier),
        BPF_PROG_TYPE_XDP => Some(Hook::Xdp),
        _ => None,
    };
    let name = info.name.split(|byte| *byte == 0).next().unwrap_or_default();
    let maps = ids[..CHAIN.min(info.map_count as usize)].to_vec();
    Ok(ProgramAbout { hook, name: String::from_utf8_lossy(name).into_owned(), maps })
}

/// Runs a command that makes a descriptor.
///
/// # Safety
///
/// As for [`bpf`], and `command` is one of those.
unsafe fn make<Attr>(command: libc::c_int, attr: &mut Attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attr) }?;
    let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the kernel fill in what it knows of the object.
///
/// # Safety
///
/// `Info` is integers only, the structure that belongs to the object, and its pointers are good.
unsafe fn inform<Info>(object: &OwnedFd, info: &mut Info) -> io::Result<()> {
    let mut by_fd = InfoByFd {
        bpf_fd: object.as_raw_fd().cast_unsigned(),
        info_len: u32::try_from(size_of::<Info>()).map_err(io::Error::other)?,
        info: address(std::ptr::from_mut(info)),
    };
    // SAFETY: the structure is the one of BPF_OBJ_GET_INFO_BY_FD; `info` is as long as it says, and writable.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut by_fd) }?;
    Ok(())
}

fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

const SIOCETHTOOL: u64 = 0x8946;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `struct ifreq` with the member of the union that ethtool uses, padded to the size of the largest.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    data: *mut EthtoolValue,
    rest: [u64; 2],
}

/// Runs a "get" or "set" of ethtool that carries one value; returns the value as the kernel left it.
///
/// `name` is shorter than `IFNAMSIZ`; a longer one is `InvalidInput`.
pub(crate) fn ethtool(socket: impl AsFd, name: &CStr, command: u32, data: u32) -> io::Result<u32> {
    let bytes = name.to_bytes();
    if bytes.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no interface has so long a name"));
    }
    let mut value = EthtoolValue { command, data };
    let mut request =
        InterfaceRequest { name: [0; libc::IFNAMSIZ], data: std::ptr::from_mut(&mut value), rest: [0; 2] };
    request.name[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: the kernel reads an `ifreq` at this address and an `ethtool_value` at the one inside it; both are live
    // and writable, and the descriptor is borrowed for the call.
    let result = unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL as libc::Ioctl, std::ptr::from_mut(&mut request))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value.data) }
}

/// The values of a `BPF_F_MMAPABLE` array, in words of 32 bits that the kernel programs change while we look.
#[derive(Debug)]
pub(crate) struct Shared {
    start: NonNull<AtomicU32>,
    words: usize,
}

// SAFETY: the memory belongs to no thread, and all that is done with it is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the first `words` words of the array. The mapping needs the descriptor no longer.
    ///
    /// Fails with `InvalidInput` if the array is smaller (to the page) or cannot be mapped.
    pub(crate) fn map(array: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        let size = words * size_of::<AtomicU32>();
        // SAFETY: a new mapping, at an address that the kernel chooses, takes nobody's memory away.
        let start = unsafe {
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), size, writable, libc::MAP_SHARED, array.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, words })
    }

    /// The words.
    pub(crate) fn words(&self) -> &[AtomicU32] {
        // SAFETY: the mapping begins on a page, is that long, and stays as long as `self`. An array's memory does not
        // shrink, so every page of it is there.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and no slice of it outlives us.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * size_of::<AtomicU32>()) };
    }
}
