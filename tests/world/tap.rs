//! A tap's other side: a process that holds the descriptor, as QEMU does, with another kernel's network behind it.
//!
//! A [`Relay`] opens the node's tap and a tap in the guest's namespace, both with virtio headers and offloads, and
//! copies frames between them. So the guest's 64 KiB frames with half-made checksums reach the node as a virtio
//! guest's do.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::Namespace;
use super::wire::Wire;

/// Copies frames until it is dropped; both taps go with it.
pub struct Relay {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Frames from the guest, by queue.
    pub sent: Arc<Vec<AtomicU64>>,
    /// The node's side of the first queue.
    outside: Arc<File>,
    offloads: bool,
}

impl Relay {
    /// Between `outside` on the node and `inside` in the guest. With a VLAN the guest's frames carry its tag on the
    /// node's side, and answers without it are lost.
    pub fn start(
        (node, outside): (&Namespace, &str),
        (guest, inside): (&Namespace, &str),
        queues: usize,
        vlan: Option<u16>,
    ) -> Self {
        let kind = Kind { many: queues > 1, offloads: vlan.is_none() };
        let open = |namespace: &Namespace, name: &str| -> Vec<File> {
            namespace.inside(|| (0..queues).map(|_| open(name, kind).unwrap()).collect())
        };
        let (outsides, insides) = (open(node, outside), open(guest, inside));
        let stop = Arc::new(AtomicBool::new(false));
        let sent: Arc<Vec<AtomicU64>> = Arc::new((0..queues).map(|_| AtomicU64::new(0)).collect());
        let mut threads = Vec::new();
        let outsides: Vec<_> = outsides.into_iter().map(Arc::new).collect();
        let first = outsides[0].clone();
        for (queue, (outside, inside)) in outsides.into_iter().zip(insides).enumerate() {
            let inside = Arc::new(inside);
            let (stop_in, stop_out, sent) = (stop.clone(), stop.clone(), sent.clone());
            let (o, i) = (outside.clone(), inside.clone());
            threads.push(std::thread::spawn(move || {
                copy(&i, &o, &stop_in, |frame| {
                    sent[queue].fetch_add(1, Ordering::Relaxed);
                    tag(frame, vlan)
                });
            }));
            threads.push(std::thread::spawn(move || copy(&outside, &inside, &stop_out, |frame| untag(frame, vlan))));
        }
        Self { stop, threads, sent, outside: first, offloads: kind.offloads }
    }

    /// A way to write into the node's tap beside the guest's kernel.
    pub fn wire(&self) -> Wire {
        Wire::tap(self.outside.try_clone().unwrap().into(), self.offloads)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A frame of 64 KiB, its virtio header and its Ethernet header.
const LARGEST: usize = 65_536 + 64;

fn copy(mut from: &File, mut to: &File, stop: &AtomicBool, mut change: impl FnMut(&mut Vec<u8>) -> bool) {
    let mut frame = Vec::with_capacity(LARGEST);
    let tenth = Duration::from_millis(100).try_into().unwrap();
    while !stop.load(Ordering::Relaxed) {
        if poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&tenth)).unwrap_or(0) == 0 {
            continue;
        }
        loop {
            frame.resize(LARGEST, 0);
            match from.read(&mut frame) {
                Ok(length) => {
                    frame.truncate(length);
                    if change(&mut frame) {
                        // A side that is down loses frames, as a cable does.
                        let _ = to.write(&frame);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return,
            }
        }
    }
}

/// Puts an 802.1Q tag behind the addresses.
fn tag(frame: &mut Vec<u8>, vlan: Option<u16>) -> bool {
    if let Some(vlan) = vlan {
        let [high, low] = vlan.to_be_bytes();
        frame.splice(12..12, [0x81, 0x00, high, low]);
    }
    true
}

/// Takes it off; `false` for a frame that has not exactly this tag.
fn untag(frame: &mut Vec<u8>, vlan: Option<u16>) -> bool {
    let Some(vlan) = vlan else { return true };
    let [high, low] = vlan.to_be_bytes();
    let ours = frame.get(12..16) == Some(&[0x81, 0x00, high, low]);
    if ours {
        frame.drain(12..16);
    }
    ours
}

/// `struct ifreq` with `ifr_flags` (netdevice(7)).
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// What a tap is opened for.
#[derive(Clone, Copy)]
struct Kind {
    many: bool,
    /// Virtio headers, frames of 64 KiB, checksums to be filled in.
    offloads: bool,
}

/// A tap that is born now in the calling thread's namespace, and dies with what is returned.
pub fn born(name: &str) -> Wire {
    Wire::tap(open(name, Kind { many: false, offloads: true }).unwrap().into(), true)
}

/// Opens one queue of the tap with this name in the calling thread's namespace.
fn open(name: &str, kind: Kind) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
    flags |= if kind.many { libc::IFF_MULTI_QUEUE } else { 0 };
    flags |= if kind.offloads { libc::IFF_VNET_HDR } else { 0 };
    let mut request = Request { name: [0; libc::IFNAMSIZ], flags: flags.try_into().unwrap(), rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let offloads = if kind.offloads { libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 } else { 0 };
    // SAFETY: TUNSETIFF reads and writes an `ifreq`, which `Request` is, alive for the call.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: TUNSETOFFLOAD takes a number.
    let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}
