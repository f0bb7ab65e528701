//! FUSE as the kernel speaks it (`linux/fuse.h`, protocol 7.31), as much as a tree of small files needs.
//!
//! In come requests from `/dev/fuse`; out go answers made of a [`Cluster`]. One thread does it all: a request that
//! hangs is put aside with its number and everybody else is answered. Nothing is cached by the kernel but pages, for the
//! length of one open file.
#![allow(clippy::cast_possible_truncation, reason = "the tests' own small files, on 64 bits")]

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::sync::Mutex;

use libc::{EACCES, EEXIST, EIO, ENOENT, ENOSYS};
use rustix::event::{PollFd, PollFlags, poll};

use super::{Cluster, LINKS, STATUS};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const READLINK: u32 = 5;
const UNLINK: u32 = 10;
const RENAME: u32 = 12;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const CREATE: u32 = 35;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const RENAME2: u32 = 45;

/// In front of each request: length, opcode, its number, the node, who asks.
const HEADER: usize = 40;

/// The size is to be set (`FATTR_SIZE`).
const SET_SIZE: u32 = 1 << 3;

/// More than the largest request.
const LARGEST: usize = 256 << 10;

const WRITE_SIZE: u32 = 128 << 10;

/// A path per node number, in the order in which they were asked for; the first is the root.
struct Nodes(Vec<String>);

impl Nodes {
    fn path(&self, node: u64) -> String {
        self.0[node as usize - 1].clone()
    }

    fn number(&mut self, path: &str) -> u64 {
        let at = self.0.iter().position(|known| known == path);
        let at = at.unwrap_or_else(|| {
            self.0.push(path.to_owned());
            self.0.len() - 1
        });
        at as u64 + 1
    }
}

/// Answers until the pipe's other end is closed or the mount is gone.
pub(super) fn serve(mut device: &File, stopped: &PipeReader, cluster: &Mutex<Cluster>) {
    let mut nodes = Nodes(vec![String::new()]);
    let mut aside: Vec<Vec<u8>> = Vec::new();
    let mut buffer = vec![0; LARGEST];
    loop {
        let mut ready = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if poll(&mut ready, None).is_err() {
            continue;
        }
        if !ready[1].revents().is_empty() {
            return;
        }
        let length = match device.read(&mut buffer) {
            Ok(length) => length,
            // Unmounted.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            Err(_) => continue,
        };
        let mut cluster = cluster.lock().unwrap();
        aside.push(buffer[..length].to_vec());
        aside.retain(|request| {
            if hangs(request, &nodes, &cluster) {
                return true;
            }
            if let Some(answer) = answer(request, &mut nodes, &mut cluster) {
                let (error, body) = answer.map_or_else(|error| (-error, Vec::new()), |body| (0, body));
                let mut bytes = Vec::with_capacity(16 + body.len());
                bytes.extend((16 + body.len() as u32).to_ne_bytes());
                bytes.extend(error.to_ne_bytes());
                bytes.extend(&request[8..16]);
                bytes.extend(body);
                // Fails when whoever asked has gone.
                _ = device.write_all(&bytes);
            }
            false
        });
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The path of a name in a directory.
fn below(directory: &str, name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap());
    if directory.is_empty() { name.into_owned() } else { format!("{directory}/{name}") }
}

fn hangs(request: &[u8], nodes: &Nodes, cluster: &Cluster) -> bool {
    let Some(part) = &cluster.hanging else { return false };
    // Only what reads: to look up, open and list is answered.
    u32_at(request, 4) == READ && nodes.path(u64_at(request, 16)).contains(part.as_str())
}

/// `None`: no answer is wanted. Errors are `errno`.
fn answer(request: &[u8], nodes: &mut Nodes, cluster: &mut Cluster) -> Option<Result<Vec<u8>, i32>> {
    let (opcode, node, body) = (u32_at(request, 4), u64_at(request, 16), &request[HEADER..]);
    let writes = matches!(opcode, SETATTR | UNLINK | RENAME | RENAME2 | WRITE | CREATE);
    if writes && !cluster.quorate {
        return Some(Err(EACCES));
    }
    let path = || nodes.path(node);
    Some(match opcode {
        FORGET | BATCH_FORGET | INTERRUPT => return None,
        INIT => {
            let mut out = vec![0; 64];
            out[..4].copy_from_slice(&7_u32.to_ne_bytes());
            out[4..8].copy_from_slice(&31_u32.to_ne_bytes());
            out[20..24].copy_from_slice(&WRITE_SIZE.to_ne_bytes());
            Ok(out)
        }
        LOOKUP => entry(&below(&path(), body), nodes, cluster),
        GETATTR => attributes(&path(), node, cluster),
        SETATTR => {
            let path = path();
            if u32_at(body, 0) & SET_SIZE != 0
                && let Some(mut bytes) = cluster.files.get(&path).cloned()
            {
                bytes.resize(u64_at(body, 16) as usize, 0);
                cluster.write(&path, bytes);
            }
            attributes(&path, node, cluster)
        }
        READLINK => link(&path()).map(|to| to.as_bytes().to_vec()).ok_or(ENOENT),
        OPEN | OPENDIR => Ok(vec![0; 16]),
        READ => {
            let path = path();
            let fails = cluster.failing.as_ref().is_some_and(|part| path.contains(part.as_str()));
            let bytes = cluster.status.get(&path).or_else(|| cluster.files.get(&path)).filter(|_| !fails);
            bytes.map(|bytes| part(bytes, body)).ok_or(EIO)
        }
        READDIR => {
            let listing = listing(&path(), nodes, cluster);
            Ok(if u64_at(body, 8) == 0 { listing } else { Vec::new() })
        }
        WRITE => {
            let (path, offset, size) = (path(), u64_at(body, 8) as usize, u32_at(body, 16));
            let mut bytes = cluster.files.get(&path).cloned().unwrap_or_default();
            bytes.resize(bytes.len().max(offset + size as usize), 0);
            bytes[offset..offset + size as usize].copy_from_slice(&body[40..40 + size as usize]);
            cluster.write(&path, bytes);
            Ok([size.to_ne_bytes(), [0; 4]].concat())
        }
        CREATE => {
            let path = below(&path(), &body[16..]);
            if cluster.files.contains_key(&path) {
                Err(EEXIST)
            } else {
                cluster.write(&path, Vec::new());
                entry(&path, nodes, cluster).map(|entry| [entry, vec![0; 16]].concat())
            }
        }
        RENAME | RENAME2 => {
            let names = &body[if opcode == RENAME { 8 } else { 16 }..];
            let from = below(&path(), names);
            let length = names.iter().position(|byte| *byte == 0).unwrap();
            let to = below(&nodes.path(u64_at(body, 0)), &names[length + 1..]);
            if cluster.rename(&from, &to) { Ok(Vec::new()) } else { Err(ENOENT) }
        }
        UNLINK => {
            if cluster.unlink(&below(&path(), body)) {
                Ok(Vec::new())
            } else {
                Err(ENOENT)
            }
        }
        STATFS => Ok(vec![0; 80]),
        RELEASE | RELEASEDIR | FLUSH => Ok(Vec::new()),
        _ => Err(ENOSYS),
    })
}

/// What a read at an offset is given.
fn part(bytes: &[u8], body: &[u8]) -> Vec<u8> {
    let from = bytes.len().min(u64_at(body, 8) as usize);
    let to = bytes.len().min(from + u32_at(body, 16) as usize);
    bytes[from..to].to_vec()
}

fn entry(path: &str, nodes: &mut Nodes, cluster: &mut Cluster) -> Result<Vec<u8>, i32> {
    let node = nodes.number(path);
    let attributes = attributes(path, node, cluster)?;
    // Number, generation, and four times "ask again each time".
    let mut out = vec![0; 40];
    out[..8].copy_from_slice(&node.to_ne_bytes());
    out.extend(&attributes[16..]);
    Ok(out)
}

/// Directories there are without any file in them.
const DIRECTORIES: [&str; 6] =
    ["", "nodes", "nodes/pve1", "nodes/pve1/qemu-server", "nodes/pve2", "nodes/pve2/qemu-server"];

/// Where a link leads.
fn link(path: &str) -> Option<&'static str> {
    LINKS.iter().find(|(link, _)| *link == path).map(|(_, to)| *to)
}

fn attributes(path: &str, node: u64, cluster: &mut Cluster) -> Result<Vec<u8>, i32> {
    cluster.refresh(path);
    let bytes = cluster.status.get(path).or_else(|| cluster.files.get(path));
    let (mode, size) = match bytes {
        Some(bytes) => (libc::S_IFREG | if STATUS.contains(&path) { 0o440 } else { 0o640 }, bytes.len()),
        None if DIRECTORIES.contains(&path) => (libc::S_IFDIR | 0o755, 0),
        None => (libc::S_IFLNK | 0o755, link(path).ok_or(ENOENT)?.len()),
    };
    // Nobody's bit for writing is set without a quorum.
    let mode = if cluster.quorate { mode } else { mode & !0o222 };
    let mut out = vec![0; 104];
    out[16..24].copy_from_slice(&node.to_ne_bytes());
    out[24..32].copy_from_slice(&(size as u64).to_ne_bytes());
    out[76..80].copy_from_slice(&mode.to_ne_bytes());
    out[80..84].copy_from_slice(&1_u32.to_ne_bytes());
    Ok(out)
}

fn listing(directory: &str, nodes: &mut Nodes, cluster: &Cluster) -> Vec<u8> {
    let links = LINKS.map(|(link, _)| link);
    let all = cluster.files.keys().map(String::as_str).chain(DIRECTORIES).chain(STATUS).chain(links);
    let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
    let names =
        all.filter_map(|path| path.strip_prefix(&prefix)).filter(|name| !name.is_empty() && !name.contains('/'));
    let mut out = Vec::new();
    for (name, offset) in names.zip(1_u64..) {
        out.extend(nodes.number(&below(directory, name.as_bytes())).to_ne_bytes());
        out.extend(offset.to_ne_bytes());
        out.extend((name.len() as u32).to_ne_bytes());
        out.extend(0_u32.to_ne_bytes());
        out.extend(name.as_bytes());
        out.resize(out.len().next_multiple_of(8), 0);
    }
    out
}
