//! The guard while nobody serves: `steer` and `shield` without a slot.
//!
//! In come interfaces, out go pinned programs that drop whatever concerns the metadata address, and count it. This
//! reads no configuration and needs no device, socket or daemon, so it can run before an interface's guest does. The
//! daemon may do the same work at the same time: a link that is alive is left alone, whoever's program it runs.

use aya::Ebpf;

use crate::attach::{Live, Settled};
use crate::borrowed::Borrowed;
use crate::error::{AttachError, LoadError};
use crate::loaded::IDLE_CAPACITY;
use crate::object::{self, guard_interface, load_guard};
use crate::pins::{Pins, Program};
use crate::step::Step;

/// What became of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It is guarded now; of the two programs, what was missing or defunct is new.
    Attached,
    /// It was guarded already, by links that somebody else held; now they are pinned here.
    Pinned,
    /// It was guarded already, and nothing was changed.
    Already,
}

/// The guard with the smallest maps there are. Dropping it closes our end only.
#[derive(Debug)]
pub struct Idle(Programs);

#[derive(Debug)]
enum Programs {
    Own(Box<Ebpf>),
    Borrowed(Box<Borrowed>),
}

/// At least so many interfaces' drops are counted by a load: room for those who borrow it. 5 KiB, without the counts.
const ROOM: u32 = 256;

impl Idle {
    /// Loads the two programs, with counts of drops for that many interfaces or more.
    ///
    /// # Errors
    ///
    /// [`LoadError`], as for [`crate::Datapath::load`].
    pub fn load(interfaces: u32) -> Result<Self, LoadError> {
        let mut loader = object::loader();
        for map in ["interfaces", "slots", "credits", "buckets"] {
            loader.map_max_entries(map, IDLE_CAPACITY);
        }
        loader.map_max_entries("drops", interfaces.max(ROOM));
        let guard = load_guard(&mut loader, &[Program::Steer, Program::Shield])?;
        Step::Loaded.taken();
        Ok(Self(Programs::Own(Box::new(guard))))
    }

    /// The guard for one interface: of programs that run already, if another one has been guarded so, or its own.
    ///
    /// # Errors
    ///
    /// As [`Idle::load`].
    pub fn for_one(pins: &Pins, ifindex: u32) -> Result<Self, LoadError> {
        match Borrowed::find(pins, ifindex) {
            Some(borrowed) => Ok(Self(Programs::Borrowed(Box::new(borrowed)))),
            None => Self::load(1),
        }
    }

    /// Puts `steer` and `shield` on an interface, first in order, where no pinned link runs one yet. Takes about 15 ms
    /// for each.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; if only `shield` failed, `steer` is pinned.
    pub fn guard(&mut self, pins: &Pins, name: &str, ifindex: u32) -> Result<Held, AttachError> {
        let settled = match &mut self.0 {
            Programs::Own(guard) => guard_interface(guard.as_mut(), pins, name, ifindex, Live::Leave)?,
            Programs::Borrowed(guard) => guard_interface(guard.as_mut(), pins, name, ifindex, Live::Leave)?,
        };
        Ok(match settled {
            Settled::Live => Held::Already,
            Settled::Pinned => Held::Pinned,
            Settled::Attached | Settled::Renewed => Held::Attached,
        })
    }
}

const _: fn() = || {
    fn assert_send<T: Send>() {}
    assert_send::<Idle>();
};
