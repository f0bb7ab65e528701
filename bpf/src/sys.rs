//! The two system calls that no crate of ours wraps: a pinned link's target (`bpf(2)`) and a device's checksum offload
//! (`SIOCETHTOOL`). The crate's `unsafe`, all of it.
//!
//! Why it is sound: both calls take the address of a structure on our stack and its size. Each structure is `repr(C)`,
//! laid out as in `linux/bpf.h` and `linux/ethtool.h`, fully initialised, and outlives the call; pointers inside it
//! point to values that outlive it too. The kernel writes at most the size we state, into memory of integers, for which every
//! bit pattern is a value. A file descriptor that the kernel returns is owned by nobody else.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the kernel says of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkTarget {
    /// The interface it is attached to; 0 once that is gone (the link is *defunct*).
    pub(crate) ifindex: u32,
    /// The program it runs.
    pub(crate) program: u32,
}

const BPF_OBJ_GET: libc::c_int = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_LINK_TYPE_XDP: u32 = 6;
const BPF_LINK_TYPE_TCX: u32 = 11;

/// `union bpf_attr` for `BPF_OBJ_GET`.
#[repr(C)]
struct ObjectGet {
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

/// `struct bpf_link_info`, with the member of the union that tcx and XDP share: both begin with the interface.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    gap: u32,
    ifindex: u32,
    rest: [u32; 11],
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
    let mut get = ObjectGet { pathname: address(pathname.as_ptr()), bpf_fd: 0, file_flags: 0 };
    // SAFETY: the structure is the one of BPF_OBJ_GET; `pathname` is a C string that lives as long as this function.
    let fd = unsafe { bpf(BPF_OBJ_GET, &mut get) }?;
    let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };

    let mut info = LinkInfo::default();
    let mut by_fd = InfoByFd {
        bpf_fd: fd.as_raw_fd().cast_unsigned(),
        info_len: u32::try_from(size_of::<LinkInfo>()).map_err(io::Error::other)?,
        info: address(std::ptr::from_mut(&mut info)),
    };
    // SAFETY: the structure is the one of BPF_OBJ_GET_INFO_BY_FD; `info` is as long as it says, and writable.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut by_fd) }?;
    match info.kind {
        BPF_LINK_TYPE_XDP | BPF_LINK_TYPE_TCX => Ok(LinkTarget { ifindex: info.ifindex, program: info.program }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "neither a tcx nor an XDP link")),
    }
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
