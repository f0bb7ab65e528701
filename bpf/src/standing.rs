//! What a pin is worth for an interface: whether its link runs where it should, and alone.
//!
//! In comes a path, out goes a judgement; nothing is changed. That the link says the interface's index is not enough: an
//! interface that moved to another network namespace may have it there, while here another interface has got it. So the
//! interface is asked too. What is no link for that hook is nobody we know: it is named and never touched.

use std::io;
use std::path::Path;

use crate::pins::Program;
use crate::stray;
use crate::sys::{self, LinkKind, LinkTarget};

/// What a pin is worth for an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is none.
    Absent,
    /// Its link runs there.
    Live,
    /// Its link runs there, and so does another one of ours, that is not pinned here.
    Doubled,
    /// Its link does not run there.
    Stale,
    /// It is something else than a link for that hook: not ours.
    Foreign,
}

/// What is found under a pin's name.
#[derive(Debug)]
pub(crate) enum Found {
    Nothing,
    Link(LinkTarget),
    /// A map, a program, a link of another kind, a directory, a symbolic link to what is none.
    Other,
}

pub(crate) fn find(path: &Path) -> io::Result<Found> {
    match sys::pinned_link(path) {
        Ok(link) => Ok(Found::Link(link)),
        Err(why) if why.kind() == io::ErrorKind::InvalidData => Ok(Found::Other),
        // How the kernel refuses a directory, or a symbolic link to somewhere, depends on where that is.
        Err(why) => match path.symlink_metadata() {
            Ok(about) if !about.is_file() => Ok(Found::Other),
            // Another process has just made it; whoever makes one now finds that.
            Ok(_) if why.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
            Ok(_) => Err(why),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
            Err(why) => Err(why),
        },
    }
}

pub(crate) fn judge(link: &LinkTarget, program: Program, ifindex: u32) -> io::Result<Standing> {
    Ok(match (program.side(), link.kind) {
        (Some(side), LinkKind::Tcx(other)) if side != other => Standing::Foreign,
        (Some(_), LinkKind::Xdp) | (None, LinkKind::Tcx(_)) => Standing::Foreign,
        _ if link.ifindex == 0 || link.ifindex != ifindex => Standing::Stale,
        (None, LinkKind::Xdp) => Standing::Live,
        (Some(side), LinkKind::Tcx(_)) => {
            let attached = sys::attached_at(ifindex, side)?;
            let (own, others): (Vec<_>, Vec<_>) = attached.into_iter().partition(|attached| attached.link == link.id);
            // Who may not look into the others takes the pinned one for the only one of ours.
            let is_one = |other| stray::is_one(other, program).unwrap_or(false);
            match (own.is_empty(), others.into_iter().any(is_one)) {
                (true, _) => Standing::Stale,
                (false, true) => Standing::Doubled,
                (false, false) => Standing::Live,
            }
        }
    })
}
