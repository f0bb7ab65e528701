//! Whether what was attached is still there: somebody may have removed a pin, taken a program off, or unmounted the file
//! system. What can be put back is put back, and what was wrong is said ([`Finding`]).
//!
//! A look goes by the names of pins, which costs about a millisecond for a thousand interfaces. Whether a link lives
//! must be asked under the kernel's lock of all links: always for our own two devices, for interfaces a few at a time.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use metrics::counter;
use pve_imds_model::chain;
use pve_imds_transport::bpf::{AttachError, Datapath, Pins, Program, Swap};
use pve_imds_transport::{Devices, Interface};
use tokio::time::Instant;

use super::MENDS;
use super::roster::Roster;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// So many interfaces a look are also asked whether their links live, in turn: a link can be detached by force and leave
/// its pin. All four thousand are round in half a minute.
const CLOSER: usize = 64;

/// But no longer than this, where the kernel's lock is wanted by others: a node that is taking hundreds of interfaces
/// down has better things to do.
const CLOSER_TIME: Duration = Duration::from_millis(5);

/// Pins of nobody's are swept when they are seen, but not more often: they may be alive and somebody's work.
const SWEEP: Duration = Duration::from_secs(30);

/// The two programs of a guest's interface.
const GUARDS: [Program; 2] = [Program::Steer, Program::Shield];

/// What a look found wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// There is nothing to pin to; what happened, with the mend.
    NoPins(String),
    /// This program is off our device; why it could not be put back, if it could not.
    Off(Program, Option<String>),
    /// So many interfaces have lost a program. They are in line for it.
    Naked(usize),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPins(why) => write!(f, "nothing can be pinned: {why}"),
            Self::Off(program, None) => write!(f, "{program} was off our device; it has been put back"),
            Self::Off(program, Some(why)) => write!(f, "{program} is off our device: {why}"),
            Self::Naked(1) => f.write_str("an interface has lost its guard; it gets it back"),
            Self::Naked(count) => write!(f, "{count} interfaces have lost their guard; they get it back"),
        }
    }
}

/// What is looked at.
pub(super) struct Attached {
    pub(super) datapath: Datapath,
    pub(super) pins: Pins,
    pub(super) devices: Devices,
}

impl Attached {
    fn put_back(&mut self, program: Program) -> Result<Swap, AttachError> {
        match program {
            Program::Funnel => self.datapath.attach_funnel(&self.pins, &self.devices.b.name),
            _ => self.datapath.attach_return(&self.pins, &self.devices.a.name),
        }
    }
}

/// When the next look is due, and where it goes on.
pub(super) struct Watch {
    due: Instant,
    next_sweep: Instant,
    /// Where the closer look goes on.
    closer: usize,
    /// What the log has heard of last.
    said: Vec<Finding>,
}

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now + LOOK, next_sweep: now, closer: 0, said: Vec::new() }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Looks, puts back what can be, and tells the log what it has not heard yet. Interfaces that have lost a program go
    /// into the roster's line.
    pub(super) fn look(&mut self, attached: &mut Attached, roster: &mut Roster) -> Vec<Finding> {
        let found = match attached.pins.census() {
            Ok(census) => self.compare(&census, attached, roster),
            Err(error) => vec![Finding::NoPins(chain(&error))],
        };
        for finding in found.iter().filter(|finding| !self.said.contains(finding)) {
            tracing::warn!(%finding, "the guard was tampered with");
        }
        self.said.clone_from(&found);
        self.due = Instant::now() + LOOK;
        found
    }

    fn compare(
        &mut self,
        census: &HashSet<(Program, u32)>,
        attached: &mut Attached,
        roster: &mut Roster,
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        let devices = [(Program::Return, attached.devices.a.index), (Program::Funnel, attached.devices.b.index)];
        for (program, ifindex) in devices {
            if !attached.pins.is_alive(program, ifindex) {
                let put_back = attached.put_back(program);
                if put_back.is_ok() {
                    counter!(MENDS, "what" => "program").increment(1);
                }
                found.push(Finding::Off(program, put_back.err().map(|error| chain(&error))));
            }
        }
        let naked = self.naked(census, &attached.pins, roster);
        for index in &naked {
            counter!(MENDS, "what" => "guard").increment(1);
            roster.naked(*index);
        }
        if !naked.is_empty() {
            found.push(Finding::Naked(naked.len()));
        }
        let strangers = census.iter().any(|(_, index)| *index != 0 && !roster.is_known(*index));
        if strangers && Instant::now() >= self.next_sweep {
            self.next_sweep = Instant::now() + SWEEP;
            // Only what is defunct: an interface that is none of ours may have been guarded by hand.
            if let Err(error) = attached.pins.sweep(|_| true) {
                tracing::warn!(error = chain(&error), "pins of vanished interfaces cannot be swept");
            }
        }
        found
    }

    /// Those who have lost a program.
    fn naked(&mut self, census: &HashSet<(Program, u32)>, pins: &Pins, roster: &Roster) -> Vec<u32> {
        let mut guarded: Vec<&Interface> = roster.all_guarded().collect();
        guarded.sort_unstable_by_key(|interface| interface.index);
        let (pinned, mut naked): (Vec<&Interface>, Vec<_>) = guarded
            .into_iter()
            .partition(|interface| GUARDS.iter().all(|program| census.contains(&(*program, interface.index))));
        let begun = Instant::now();
        for step in 0..pinned.len().min(CLOSER) {
            if step > 0 && begun.elapsed() > CLOSER_TIME {
                break;
            }
            self.closer = (self.closer + 1) % pinned.len();
            let interface = pinned[self.closer];
            if !GUARDS.iter().all(|program| pins.is_alive(*program, interface.index)) {
                naked.push(interface);
            }
        }
        // Of an interface that has just gone we shall hear.
        naked.into_iter().filter(|interface| interface.is_there()).map(|interface| interface.index).collect()
    }
}
