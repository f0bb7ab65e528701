//! A guest's end of a tap: what it writes are a virtual machine's frames, with the header in which that machine asks the
//! kernel to cut a large one up.
//!
//! The `unsafe` is that of making the tap, by requests that no crate of ours knows.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use pve_imds_bpf::testing::Frame;

/// An open tap. It goes with its descriptor.
pub struct Tap(File);

/// `struct ifreq` with `ifr_flags` (netdevice(7)).
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

impl Tap {
    /// Makes a tap; it is down.
    pub fn open(name: &str) -> Self {
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let mut request = Request { name: [0; libc::IFNAMSIZ], flags: flags.try_into().unwrap(), rest: [0; 22] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: TUNSETIFF reads and writes an `ifreq`, which `Request` is, alive for the call.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        assert!(made >= 0, "{}", io::Error::last_os_error());
        let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
        // SAFETY: TUNSETOFFLOAD takes a number.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) };
        assert!(set >= 0, "{}", io::Error::last_os_error());
        Self(file)
    }

    /// Sends a TCP frame as a guest with offloads does: its checksum is to be filled in, and it is to be cut into
    /// segments of `size` bytes of data (`VIRTIO_NET_HDR_GSO_TCPV4`). 0: as it is.
    pub fn send(&mut self, frame: &Frame, size: u16) {
        let tag = if frame.0[12..14] == [0x81, 0] { 4 } else { 0 };
        let tcp = 14 + tag + 20;
        let headers = tcp + u16::from(frame.0[usize::from(tcp) + 12] >> 4) * 4;
        let (needs_checksum, tcp_ipv4, checksum_at) = (1, 1, 16_u16);
        let mut header = vec![needs_checksum, if size == 0 { 0 } else { tcp_ipv4 }];
        for field in [headers, size, tcp, checksum_at] {
            header.extend(field.to_ne_bytes());
        }
        self.0.write_all(&[&header, &frame.0[..]].concat()).unwrap();
    }
}
