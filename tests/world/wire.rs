//! Where a test puts frames of its own making: a guest's link, or any interface.
//!
//! On a veth that is a packet socket on the guest's side. On a tap it is the node's own descriptor, written as QEMU
//! writes it, with a virtio header in front, so that a frame of 64 KiB with a half-made checksum can be sent too.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use super::Namespace;

/// `struct virtio_net_hdr` (linux/virtio_net.h), without what a merged buffer would add.
pub type Virtio = [u8; 10];

/// Nothing special about the frame.
const PLAIN: Virtio = [0; 10];

/// Sends whole Ethernet frames.
#[derive(Debug)]
pub struct Wire {
    descriptor: OwnedFd,
    virtio: bool,
}

impl Wire {
    /// A packet socket on `interface`.
    pub fn packet(namespace: &Namespace, interface: &str) -> Self {
        let descriptor = namespace.inside(|| {
            let any = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
            bound(netdevice::name_to_index(any, interface).unwrap()).unwrap()
        });
        Self { descriptor, virtio: false }
    }

    /// A tap, by the descriptor of who holds it; `virtio`: frames on it have a header.
    pub fn tap(descriptor: OwnedFd, virtio: bool) -> Self {
        Self { descriptor, virtio }
    }

    /// Sends a frame; whether the link took it. One that is down, gone or full loses it, and so does one whose own
    /// program drops it.
    pub fn send(&self, frame: &[u8]) -> bool {
        self.send_as(&PLAIN, frame)
    }

    /// Sends a frame that its header says more about. Only a tap has one.
    pub fn send_as(&self, header: &Virtio, frame: &[u8]) -> bool {
        assert!(self.virtio || *header == PLAIN, "no virtio header on this link");
        let parts = [IoSlice::new(header), IoSlice::new(frame)];
        rustix::io::writev(&self.descriptor, if self.virtio { &parts } else { &parts[1..] }).is_ok()
    }
}

/// A packet socket that sends on the interface with this index and receives nothing.
fn bound(index: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the kernel makes a new descriptor, which nobody else owns.
    let socket = unsafe {
        match libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) {
            ..0 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET.try_into().unwrap(),
        sll_protocol: 0,
        sll_ifindex: index.try_into().unwrap(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let size = size_of::<libc::sockaddr_ll>().try_into().unwrap();
    // SAFETY: `address` is a live `sockaddr_ll` of that size.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    if result == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}
