//! Links of ours that no pin of ours holds.
//!
//! A link lives as long as anybody holds it: when the file system with our pins is unmounted, a mount namespace that
//! still has it keeps every guard alive and out of reach. Such a link is told by what it runs: a program of our name
//! and kind, with our counters. Where a pin is missing it gets one (no gap, nothing to attach); where a pin is there, it
//! is taken off by force, because the `shield` behind another one drops our own answers: their passport has been taken.
//!
//! What is ours is so by network namespace, not by directory: two guards on one interface cannot both be right. Links in
//! other network namespaces are not looked for and not touched.
//!
//! To look into a program that is not pinned takes `CAP_SYS_ADMIN`, which a daemon may lack. Then nothing is attached
//! beside what cannot be looked into, and the error says who can.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use aya::maps::MapData;

use crate::netlink;
use crate::object::symbol;
use crate::pins::Program;
use crate::step::Step;
use crate::sys::{self, Attached, Hook, Link, LinkKind, LinkTarget, ProgramAbout};

/// Which program of ours this is, if it is one.
fn identify(id: u32) -> io::Result<Option<Program>> {
    match sys::program(id) {
        Ok(about) => Ok(recognise(&about)),
        Err(why) if is_going(&why) => Ok(None),
        Err(why) => Err(why),
    }
}

fn recognise(about: &ProgramAbout) -> Option<Program> {
    let program = Program::ALL.iter().copied().find(|program| symbol(*program) == about.name)?;
    let hook = if program.side().is_some() { Hook::Classifier } else { Hook::Xdp };
    let counts = |id: &u32| {
        MapData::from_id(*id).and_then(|map| map.info()).is_ok_and(|info| info.name_as_str() == Some("counters"))
    };
    (about.hook == Some(hook) && about.maps.iter().any(counts)).then_some(program)
}

/// Whether this is a link of ours that runs `program`.
pub(crate) fn is_one(attached: Attached, program: Program) -> io::Result<bool> {
    Ok(attached.link != 0 && identify(attached.program)? == Some(program))
}

fn ones(attached: Vec<Attached>, program: Program) -> io::Result<Vec<Attached>> {
    let mut found = Vec::new();
    for one in attached {
        if is_one(one, program)? {
            found.push(one);
        }
    }
    Ok(found)
}

/// Which stray may be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The one that is asked before all others: a new link would stand there.
    First,
    /// Whichever is there, since the kernel makes no new link beside it.
    Any,
}

/// Pins a link of ours that runs `program` on the interface. `false`: there is none, or it has just gone.
pub(crate) fn adopt(program: Program, ifindex: u32, which: Which, path: &Path) -> io::Result<bool> {
    let candidates = match (program.side(), which) {
        (Some(side), Which::First) => sys::attached_at(ifindex, side)?.into_iter().take(1).collect(),
        (Some(side), Which::Any) => sys::attached_at(ifindex, side)?,
        // Of these there is never more than one, and to find it takes a look at every link there is.
        (None, Which::First) => Vec::new(),
        (None, Which::Any) => driver_link(ifindex)?,
    };
    let Some(stray) = ones(candidates, program)?.into_iter().next() else { return Ok(false) };
    match Link::open(stray.link).and_then(|link| link.pin(path)) {
        Ok(()) => Step::Pinned.taken(),
        // Somebody was faster.
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
        Err(why) if is_going(&why) => return Ok(false),
        Err(why) => return Err(why),
    }
    Ok(true)
}

/// Takes off all links of ours that run `program` on the interface, but for one. Returns how many.
pub(crate) fn detach_but(program: Program, ifindex: u32, kept: u32) -> io::Result<usize> {
    let Some(side) = program.side() else { return Ok(0) };
    let others = sys::attached_at(ifindex, side)?.into_iter().filter(|attached| attached.link != kept);
    let mut count = 0;
    for stray in ones(others.collect(), program)? {
        count += usize::from(detach(stray.link)?);
    }
    Ok(count)
}

fn detach(link: u32) -> io::Result<bool> {
    match Link::open(link).and_then(|link| link.detach()) {
        Ok(()) => {
            Step::Detached.taken();
            Ok(true)
        }
        Err(why) if is_going(&why) => Ok(false),
        Err(why) => Err(why),
    }
}

/// A link that nobody holds any more, or that is not yet made.
fn is_going(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock)
}

/// Every link of ours that runs on an interface of this network namespace, pinned here or not.
pub(crate) fn all() -> io::Result<Vec<(Program, LinkTarget)>> {
    let mut known = BTreeMap::new();
    let mut found = Vec::new();
    each(|_, target| {
        let program = match known.get(&target.program) {
            Some(known) => *known,
            None => *known.entry(target.program).or_insert(identify(target.program)?),
        };
        let Some(program) = program else { return Ok(()) };
        let here = match target.kind {
            LinkKind::Tcx(side) => {
                sys::attached_at(target.ifindex, side)?.iter().any(|attached| attached.link == target.id)
            }
            LinkKind::Xdp => netlink::driver_program(target.ifindex)? == Some(target.program),
        };
        if here {
            found.push((program, target));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Takes off all of them.
pub(crate) fn detach_all() -> io::Result<Vec<(Program, LinkTarget)>> {
    let mut off = Vec::new();
    for (program, target) in all()? {
        if detach(target.id)? {
            off.push((program, target));
        }
    }
    Ok(off)
}

/// The link whose program the driver of this interface runs. The interface knows the program alone, so the link is the
/// one that has both.
fn driver_link(ifindex: u32) -> io::Result<Vec<Attached>> {
    let Some(program) = netlink::driver_program(ifindex)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    each(|link, target| {
        if (target.kind, target.ifindex, target.program) == (LinkKind::Xdp, ifindex, program) {
            found.push(Attached { link, program });
        }
        Ok(())
    })?;
    Ok(found)
}

/// All links of the kinds we make and that are attached somewhere, in any namespace.
fn each(mut look: impl FnMut(u32, LinkTarget) -> io::Result<()>) -> io::Result<()> {
    let mut at = 0;
    while let Some(id) = sys::next_link(at)? {
        at = id;
        match Link::open(id).and_then(|link| link.target()) {
            Ok(target) if target.ifindex != 0 => look(id, target)?,
            Ok(_) => {}
            Err(why) if is_going(&why) || why.kind() == io::ErrorKind::InvalidData => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}
