//! A node of its own for one test: a network and a mount namespace that belong to a thread and vanish with it, however
//! the test ends. Interfaces, pins and locks in there need no sweeping and nobody else sees them.
//!
//! The `unsafe` of the tests: leaving the namespaces, and packet sockets, whose address type no crate of ours knows.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use pve_imds_bpf::testing::Frame;

/// Runs a test on a fresh node. Its argument is a directory on a BPF file system.
pub fn node(test: impl FnOnce(&Path) + Send) {
    let ran = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                // SAFETY: file descriptors stay shared; only network and mounts are left, for this thread alone.
                unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS) }.expect("root is needed");
                mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).unwrap();
                mount("imdst", "/run", "tmpfs", MountFlags::empty(), None).unwrap();
                let dir = PathBuf::from("/run/pve-imds/bpf");
                std::fs::create_dir_all(&dir).unwrap();
                mount("imdst", &dir, "bpf", MountFlags::empty(), None).unwrap();
                test(&dir);
            })
            .join()
    });
    if let Err(panic) = ran {
        std::panic::resume_unwind(panic);
    }
}

/// Runs this with the node's mounts and a network namespace of its own.
pub fn elsewhere(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let away = scope.spawn(|| {
            // SAFETY: nothing but the network is left, for this thread alone.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            test();
        });
        if let Err(panic) = away.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs `ip` commands, one a line.
pub fn ip(commands: &str) {
    let mut child = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{commands}");
}

/// What a command says.
pub fn said(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A veth pair, up and silent.
pub fn pair(a: &str, b: &str) {
    ip(&format!(
        "link add {a} mtu 9000 type veth peer {b} mtu 9000\n\
         link set {a} addrgenmode none arp off\nlink set {b} addrgenmode none arp off\n\
         link set {a} up\nlink set {b} up\n"
    ));
}

/// The index of an interface.
pub fn index(name: &str) -> u32 {
    let any = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).unwrap();
    rustix::net::netdevice::name_to_index(any, name).unwrap()
}

/// A packet socket on one interface.
pub struct Wire {
    socket: OwnedFd,
    headed: bool,
}

const ETH_P_ALL: u16 = 3;

impl Wire {
    /// Sends and receives whole frames on `name`.
    pub fn open(name: &str) -> Self {
        Self::made(name, false)
    }

    /// As [`Wire::open`], for [`Wire::send_split`].
    pub fn open_headed(name: &str) -> Self {
        Self::made(name, true)
    }

    fn made(name: &str, headed: bool) -> Self {
        // SAFETY: no pointers are passed; the kernel makes a new descriptor, which nobody else owns.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET.try_into().unwrap(),
            sll_protocol: ETH_P_ALL.to_be(),
            sll_ifindex: index(name).try_into().unwrap(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let size = size_of::<libc::sockaddr_ll>().try_into().unwrap();
        // SAFETY: `address` is a live `sockaddr_ll` of that size.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), size) };
        assert_eq!(bound, 0, "{}", io::Error::last_os_error());
        // Room for everything that a slot's credit lets through, whatever the system's default.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
        let patience = Some(Duration::from_secs(5));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, patience).unwrap();
        for option in [libc::PACKET_AUXDATA].into_iter().chain(headed.then_some(libc::PACKET_VNET_HDR)) {
            let yes: libc::c_int = 1;
            let value = std::ptr::from_ref(&yes).cast();
            let size = size_of::<libc::c_int>().try_into().unwrap();
            // SAFETY: the value is a live integer of that size.
            let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, size) };
            assert_eq!(set, 0, "{}", io::Error::last_os_error());
        }
        Self { socket, headed }
    }

    /// Sends a frame as it is.
    pub fn send(&self, frame: &Frame) {
        assert!(!self.headed);
        self.write(&frame.0);
    }

    /// "No buffer space" is what a sender hears when a program on its own interface drops the frame.
    fn write(&self, bytes: &[u8]) {
        match rustix::io::write(&self.socket, bytes) {
            Ok(_) | Err(rustix::io::Errno::NOBUFS) => {}
            Err(why) => panic!("{why}"),
        }
    }

    /// Sends a frame of which only the Ethernet header is linear memory for the kernel. It must be larger than a page,
    /// or the kernel makes it linear after all.
    pub fn send_split(&self, frame: &Frame) {
        assert!(self.headed && frame.0.len() > 4096);
        let header = [0, 0, 14, 0, 0, 0, 0, 0, 0, 0];
        self.write(&[&header[..], &frame.0].concat());
    }

    /// The next frame that somebody else sent; the kernel keeps its outermost VLAN tag beside it, here it is put back.
    pub fn receive(&self) -> Frame {
        let mut bytes = vec![0_u8; 10_000];
        let mut beside = [0_u64; 16];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: a message header of zeroes is a valid empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = beside.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&beside);
        // SAFETY: the header points to live buffers, of the sizes it states, that nothing else uses meanwhile.
        let size = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, 0) };
        bytes.truncate(usize::try_from(size).unwrap_or_else(|_| panic!("no frame: {}", io::Error::last_os_error())));
        let frame = Frame(bytes);
        // SAFETY: the kernel has filled in the header and what it points to; the first message is whole or null.
        let auxiliary = unsafe {
            let control = libc::CMSG_FIRSTHDR(&raw const message);
            assert!(!control.is_null() && (*control).cmsg_type == libc::PACKET_AUXDATA);
            libc::CMSG_DATA(control).cast::<libc::tpacket_auxdata>().read_unaligned()
        };
        if auxiliary.tp_status & libc::TP_STATUS_VLAN_VALID == 0 { frame } else { frame.vlan(auxiliary.tp_vlan_tci) }
    }
}
