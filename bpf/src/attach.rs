//! How a program gets onto an interface and stays there: through a link that is pinned.
//!
//! The pin is the truth. If it holds a link to the right interface, the program is swapped into that link in one step
//! and no frame passes unguarded, or the link is left as it is; if that interface is gone, or there is no pin, a new link
//! is made and pinned. A link of ours that runs there and has lost its pin gets one instead ([`stray`]), and whatever
//! else of ours is there is taken off, last.
//! What is refused: an attachment that cannot be pinned, XDP that the driver does not run, and a name that has come to
//! mean another interface (the kernel attaches by index, but the library asks for a name).

use std::io;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::xdp::XdpLink;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode};
use aya::sys::SyscallError;
use rustix::io::Errno;

use crate::error::{AttachError, PinError};
use crate::mend::removal;
use crate::pins::{Pins, Program};
use crate::standing::Standing;
use crate::step::Step;
use crate::stray::{self, Which};

/// What became of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Swap {
    /// The link was there and runs the new program since one instant: no gap.
    Swapped,
    /// There was none.
    Attached,
    /// There was one to an interface that is gone; it was replaced.
    Renewed,
}

/// What to do with a link that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Live {
    /// Swap the program in.
    Swap,
    /// Nothing: whatever it runs guards.
    Leave,
}

/// How a program got its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Settled {
    /// It was there, alive, and was treated as [`Live`] says.
    Live,
    /// The same, and it was not pinned here before.
    Pinned,
    /// There was none.
    Attached,
    /// There was one to an interface that is gone.
    Renewed,
}

impl From<Settled> for Swap {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Live | Settled::Pinned => Self::Swapped,
            Settled::Attached => Self::Attached,
            Settled::Renewed => Self::Renewed,
        }
    }
}

/// Where a program is to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) program: Program,
    pub(crate) name: &'a str,
    pub(crate) ifindex: u32,
}

impl Target<'_> {
    fn refused(&self, source: ProgramError) -> AttachError {
        AttachError::Refused { program: self.program, name: self.name.to_owned(), source }
    }

    fn legacy(&self) -> AttachError {
        AttachError::Legacy { program: self.program, name: self.name.to_owned() }
    }
}

/// A program of either kind, with the two ways to a link.
pub(crate) trait Hook {
    /// A new link.
    fn attach(&mut self, target: &Target<'_>) -> Result<FdLink, AttachError>;
    /// The program into a link that is there.
    fn replace(&mut self, link: FdLink) -> Result<(), ReplaceError>;
}

/// Why a program did not go into a link.
#[derive(Debug)]
pub(crate) enum ReplaceError {
    /// The interface, or the pin, went away meanwhile.
    Gone,
    /// It is a link of another kind.
    Foreign(LinkError),
    /// The kernel refused.
    Refused(ProgramError),
}

impl From<ProgramError> for ReplaceError {
    fn from(why: ProgramError) -> Self {
        match errno(&why) {
            Some(Errno::NOLINK) => Self::Gone,
            _ => Self::Refused(why),
        }
    }
}

impl From<LinkError> for ReplaceError {
    fn from(why: LinkError) -> Self {
        match why {
            LinkError::SyscallError(why) if why.io_error.kind() == io::ErrorKind::NotFound => Self::Gone,
            other => Self::Foreign(other),
        }
    }
}

/// A classifier and its side of the interface.
pub(crate) struct Tcx<'a> {
    pub(crate) program: &'a mut SchedClassifier,
    pub(crate) side: TcAttachType,
}

impl Hook for Tcx<'_> {
    fn attach(&mut self, target: &Target<'_>) -> Result<FdLink, AttachError> {
        // First, because a program in front of us that redirects or says "done" would go round us.
        let order = TcAttachOptions::TcxOrder(LinkOrder::first());
        let link = self
            .program
            .attach_with_options(target.name, self.side, order)
            .and_then(|id| self.program.take_link(id))
            .map_err(|why| target.refused(why))?;
        FdLink::try_from(link).map_err(|_| target.legacy())
    }

    fn replace(&mut self, link: FdLink) -> Result<(), ReplaceError> {
        let link = SchedClassifierLink::try_from(link).map_err(ReplaceError::Foreign)?;
        let id = self.program.attach_to_link(link)?;
        // Only the pin shall hold the link: two descriptors per guest would be two too many.
        drop(self.program.take_link(id)?);
        Ok(())
    }
}

/// An XDP program, run by the driver or not at all.
pub(crate) struct Driver<'a> {
    pub(crate) program: &'a mut Xdp,
}

impl Hook for Driver<'_> {
    fn attach(&mut self, target: &Target<'_>) -> Result<FdLink, AttachError> {
        let link = self
            .program
            .attach_to_if_index(target.ifindex, XdpMode::Driver)
            .and_then(|id| self.program.take_link(id))
            .map_err(|why| match errno(&why) {
                Some(Errno::OPNOTSUPP) => AttachError::NotNative { name: target.name.to_owned(), source: why },
                _ => target.refused(why),
            })?;
        FdLink::try_from(link).map_err(|_| target.legacy())
    }

    fn replace(&mut self, link: FdLink) -> Result<(), ReplaceError> {
        let link = XdpLink::try_from(link).map_err(ReplaceError::Foreign)?;
        let id = self.program.attach_to_link(link)?;
        drop(self.program.take_link(id)?);
        Ok(())
    }
}

/// Each way round the loop, another process has changed the pin between a look and a step.
const ATTEMPTS: usize = 4;

/// Makes sure of a pinned link of `target`: one that runs the program of `hook`, unless a live one is to be left.
///
/// No lock is held while the kernel works, which takes it 15 ms a link: of two that make a link at once, one pins it and
/// the other finds that.
pub(crate) fn settle(
    pins: &Pins,
    target: &Target<'_>,
    hook: &mut impl Hook,
    live: Live,
) -> Result<Settled, AttachError> {
    let path = pins.path(target.program, target.ifindex);
    let (mut renewed, mut pinned) = (false, Settled::Live);
    for _ in 0..ATTEMPTS {
        let standing = pins.standing(target.program, target.ifindex)?;
        match (standing, live) {
            (Standing::Live | Standing::Doubled, Live::Leave) => {
                alone(pins, target, standing)?;
                return Ok(pinned);
            }
            (Standing::Live | Standing::Doubled, Live::Swap) => match swap(&path, hook) {
                Ok(()) => {
                    alone(pins, target, standing)?;
                    return Ok(if renewed { Settled::Renewed } else { pinned });
                }
                Err(ReplaceError::Gone) => {}
                Err(ReplaceError::Foreign(source)) => return Err(foreign(path, source)),
                Err(ReplaceError::Refused(why)) => return Err(target.refused(why)),
            },
            (Standing::Stale, _) => renewed |= pins.clear_stale(target.program, target.ifindex)?,
            (Standing::Absent, _) if adopt(target, Which::First, &path)? => pinned = Settled::Pinned,
            (Standing::Absent, _) => match create(pins, target, &path, hook) {
                Ok(Created::Pinned) if renewed => return Ok(Settled::Renewed),
                Ok(Created::Pinned) => return Ok(Settled::Attached),
                Ok(Created::Outrun) => {}
                Err(why) => {
                    if !(is_taken(&why) && adopt(target, Which::Any, &path)?) {
                        return Err(why);
                    }
                    pinned = Settled::Pinned;
                }
            },
            (Standing::Foreign, _) => return Err(foreign(path, LinkError::InvalidLink)),
        }
    }
    Err(AttachError::Contended { path })
}

fn foreign(path: PathBuf, source: LinkError) -> AttachError {
    AttachError::Foreign { removal: removal(&path), path, source }
}

fn adopt(target: &Target<'_>, which: Which, path: &Path) -> Result<bool, AttachError> {
    Ok(stray::adopt(target.program, target.ifindex, which, path).map_err(PinError::Strays)?)
}

/// Sees that the pinned link is the only one of ours there. It runs already: between the two there is no gap.
fn alone(pins: &Pins, target: &Target<'_>, standing: Standing) -> Result<(), AttachError> {
    if standing == Standing::Doubled {
        pins.detach_strays(target.program, target.ifindex)?;
    }
    Ok(())
}

/// The kernel runs a program once on a side of an interface, and one alone in a driver.
fn is_taken(why: &AttachError) -> bool {
    matches!(why, AttachError::Refused { source, .. } if matches!(errno(source), Some(Errno::EXIST | Errno::BUSY)))
}

fn swap(path: &Path, hook: &mut impl Hook) -> Result<(), ReplaceError> {
    let link = PinnedLink::from_pin(path).map_err(ReplaceError::from)?;
    hook.replace(link.into())?;
    Step::Swapped.taken();
    Ok(())
}

/// What became of a new link.
enum Created {
    Pinned,
    /// Another process has pinned one first, or has taken ours away; there is something new to look at.
    Outrun,
}

fn create(pins: &Pins, target: &Target<'_>, path: &Path, hook: &mut impl Hook) -> Result<Created, AttachError> {
    let link = hook.attach(target)?;
    Step::Linked.taken();
    match link.pin(path) {
        Ok(_pinned) => {}
        Err(aya::pin::PinError::SyscallError(SyscallError { io_error, .. })) => {
            return if io_error.kind() == io::ErrorKind::AlreadyExists {
                Ok(Created::Outrun)
            } else {
                Err(PinError::Pin { path: path.to_owned(), source: io_error }.into())
            };
        }
        Err(why) => return Err(PinError::Pin { path: path.to_owned(), source: io::Error::other(why) }.into()),
    }
    Step::Pinned.taken();
    // The name was resolved after the caller looked; the interface itself says what it got.
    match pins.standing(target.program, target.ifindex)? {
        standing @ (Standing::Live | Standing::Doubled) => {
            alone(pins, target, standing)?;
            Ok(Created::Pinned)
        }
        Standing::Stale => {
            pins.clear_stale(target.program, target.ifindex)?;
            Err(AttachError::Renamed { name: target.name.to_owned(), expected: target.ifindex })
        }
        // Somebody has seen the same and was faster.
        Standing::Absent | Standing::Foreign => Ok(Created::Outrun),
    }
}

fn errno(why: &ProgramError) -> Option<Errno> {
    match why {
        ProgramError::SyscallError(SyscallError { io_error, .. }) => Errno::from_io_error(io_error),
        _ => None,
    }
}
