//! Which program an interface's driver runs: the one thing that only route netlink says (rtnetlink(7)).
//!
//! In comes an index in this network namespace, out goes a program's number. One question, one answer; what cannot be
//! read as one is an error.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
/// `struct nlmsghdr`, and `struct ifinfomsg` behind it.
const HEADER: usize = 16;
const LINK: usize = 16;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
/// A list of attributes says so in its type.
const TYPE: u16 = 0x3fff;
/// ENODEV, as an answer says it.
const NO_SUCH_DEVICE: i32 = -libc::ENODEV;

/// The program that the driver of this interface runs. `None` if it runs none, or there is no such interface.
pub(crate) fn driver_program(ifindex: u32) -> io::Result<Option<u32>> {
    let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    send(&kernel, &question(ifindex), SendFlags::empty())?;
    let mut answer = vec![0; 32 << 10];
    let (_, size) = recv(&kernel, &mut answer[..], RecvFlags::empty())?;
    read(&answer[..size.min(answer.len())])
}

fn question(ifindex: u32) -> Vec<u8> {
    let size = u32::try_from(HEADER + LINK).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(HEADER + LINK);
    message.extend(size.to_ne_bytes());
    message.extend(RTM_GETLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([0; 4]);
    message.extend(ifindex.to_ne_bytes());
    message.extend([0; 8]);
    message
}

fn read(answer: &[u8]) -> io::Result<Option<u32>> {
    let garbled = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = answer.get(4..6).map(half).ok_or_else(garbled)?;
    let body = answer.get(HEADER..).ok_or_else(garbled)?;
    match kind {
        NLMSG_ERROR => match body.first_chunk().map(|code| i32::from_ne_bytes(*code)).ok_or_else(garbled)? {
            NO_SUCH_DEVICE => Ok(None),
            code => Err(io::Error::from_raw_os_error(-code)),
        },
        RTM_NEWLINK => {
            let xdp = attribute(body.get(LINK..).ok_or_else(garbled)?, IFLA_XDP);
            let program = xdp.and_then(|xdp| attribute(xdp, IFLA_XDP_DRV_PROG_ID));
            Ok(program.and_then(<[u8]>::first_chunk).map(|id| u32::from_ne_bytes(*id)).filter(|id| *id != 0))
        }
        _ => Err(garbled()),
    }
}

/// The value of the first attribute of this type (`struct rtattr`).
fn attribute(mut list: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(head) = list.first_chunk::<4>() {
        let size = usize::from(half(&head[..2]));
        let value = list.get(4..size)?;
        if half(&head[2..]) & TYPE == wanted {
            return Some(value);
        }
        list = list.get(size.next_multiple_of(4)..)?;
    }
    None
}

fn half(bytes: &[u8]) -> u16 {
    u16::from_ne_bytes([bytes[0], bytes[1]])
}
