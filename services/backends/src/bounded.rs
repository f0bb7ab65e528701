//! One file, read whole or not at all.
//!
//! In come a path and how large the file may be; out go its bytes. Whoever asks says what a link is to him. Refused: anything
//! that is no regular file, a larger one, and to wait for anybody at the other end of one.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

/// What a link at the path's end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// The file that it leads to.
    Followed,
    /// No regular file (`ELOOP`).
    Refused,
}

/// Why there are no bytes.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It cannot be opened or read.
    Io(io::Error),
    /// A directory, a device, a FIFO.
    NotRegular,
    /// Larger than it may be.
    TooLarge,
}

/// Reads the file behind `bytes`, which are the caller's so that they can be wiped and have room.
pub(crate) fn read_into(bytes: &mut Vec<u8>, path: &Path, links: Links, limit: usize) -> Result<(), Unread> {
    let links = match links {
        Links::Followed => OFlags::empty(),
        Links::Refused => OFlags::NOFOLLOW,
    };
    // Nobody is waited for who should write into a FIFO.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | links;
    let file = File::from(open(path, flags, Mode::empty()).map_err(|error| Unread::Io(error.into()))?);
    if !file.metadata().map_err(Unread::Io)?.is_file() {
        return Err(Unread::NotRegular);
    }
    // One byte more than allowed: sizes that a file claims are not trusted, least of all pmxcfs's status files'.
    let length = file.take(limit as u64 + 1).read_to_end(bytes).map_err(Unread::Io)?;
    if length > limit { Err(Unread::TooLarge) } else { Ok(()) }
}
