//! The programs of an idle guard that runs already, for one more interface.
//!
//! Each load costs the kernel some 40 KiB (more, by whole pages) and the caller the verifier's time, while an interface
//! stands open. So a command that guards a single newborn looks at who was guarded last: if `steer` and `shield` there
//! are of an idle guard that has room to count one interface more, they are attached once more. What serves is never
//! borrowed: its slots may be those of interfaces that are gone. Nor is what lacks a map of ours.

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::{ProgramInfo, SchedClassifier, loaded_programs};

use crate::loaded::{Drops, Loaded};
use crate::object::{Guards, count};
use crate::pins::{Pins, Program};
use crate::sys;

/// So many interfaces are looked at, the newest first: births come together.
const LOOKS: usize = 8;

/// Two programs that somebody else has loaded.
#[derive(Debug)]
pub(crate) struct Borrowed {
    steer: SchedClassifier,
    shield: SchedClassifier,
    drops: HashMap<MapData, u32, Drops>,
}

impl Borrowed {
    /// Programs for this interface, whose drops are counted from here on.
    pub(crate) fn find(pins: &Pins, ifindex: u32) -> Option<Self> {
        let census = pins.census().ok()?;
        let steered = census.into_iter().filter(|(program, other)| *program == Program::Steer && *other != ifindex);
        let mut others: Vec<_> = steered.map(|(_, other)| other).collect();
        others.sort_unstable_by(|one, other| other.cmp(one));
        others.into_iter().take(LOOKS).find_map(|other| Self::of(pins, other, ifindex))
    }

    fn of(pins: &Pins, other: u32, ifindex: u32) -> Option<Self> {
        let [steer, shield] = [Program::Steer, Program::Shield].map(|program| pins.running(program, other));
        let (steer, shield) = (steer?, shield?);
        let (id, mut drops) = Loaded::find(steer).into_idle()?;
        if !sys::program(shield).ok()?.maps.contains(&id) {
            return None;
        }
        count(&mut drops, ifindex).ok()?;
        Some(Self {
            steer: SchedClassifier::from_program_info(info(steer)?, Program::Steer.word().into()).ok()?,
            shield: SchedClassifier::from_program_info(info(shield)?, Program::Shield.word().into()).ok()?,
            drops,
        })
    }
}

fn info(program: u32) -> Option<ProgramInfo> {
    loaded_programs().flatten().find(|info| info.id() == program)
}

impl Guards for Borrowed {
    fn classifier(&mut self, program: Program) -> Option<&mut SchedClassifier> {
        match program {
            Program::Steer => Some(&mut self.steer),
            Program::Shield => Some(&mut self.shield),
            Program::Return | Program::Funnel => None,
        }
    }

    fn count_drops(&mut self, ifindex: u32) -> Result<(), MapError> {
        count(&mut self.drops, ifindex)
    }
}
