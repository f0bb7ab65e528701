//! Whether what was attached is still there: somebody may have removed a pin, taken a program off, or unmounted the file
//! system. What can be put back is put back, and what was wrong is said ([`Finding`]).
//!
//! A look goes by the names of pins, which costs about a millisecond for a thousand interfaces. Whether a link lives
//! must be asked under the kernel's lock of all links: always for our own two devices, for interfaces a few at a time.
//! The same question tells whether it is alone: another `shield` of ours behind it would drop our own answers.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use metrics::counter;
use pve_imds_model::chain;
use pve_imds_model::tap::TapName;
use pve_imds_transport::bpf::{AttachError, Datapath, PinError, Pins, Program, Standing, Swap, removal};
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
    /// This program is off our device of this name; why it could not be put back, if it could not.
    Off(Program, String, Option<String>),
    /// These interfaces have lost these programs. They are in line for them.
    Naked(Vec<Lost>),
    /// On these interfaces so many programs of ours were beside the pinned ones; why they could not be taken off, if not.
    Doubled(Vec<String>, usize, Option<String>),
    /// These interfaces are refused their guard, again and again, and why.
    Open(Vec<(Interface, String)>),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPins(why) => write!(f, "nothing can be pinned: {why}"),
            Self::Off(program, device, None) => {
                write!(f, "{program} was off our device {device}; it has been put back")
            }
            Self::Off(program, device, Some(why)) => write!(f, "{program} is off our device {device}: {why}"),
            Self::Naked(lost) => {
                let (named, more) = named(lost, " theirs");
                write!(f, "{named}{more}; {}", if lost.len() == 1 { "it gets it back" } else { "they get it back" })
            }
            Self::Doubled(on, count, None) => {
                let (named, more) = named(on, "");
                write!(f, "second guards stood on {named}{more}; {count} programs were taken off")
            }
            Self::Doubled(on, count, Some(why)) => {
                let (named, more) = named(on, "");
                write!(f, "second guards stand on {named}{more} ({count} programs), guests get silence: {why}")
            }
            Self::Open(open) => {
                let open: Vec<_> = open.iter().map(|(interface, why)| format!("{}: {why}", whose(interface))).collect();
                let (named, more) = named(&open, "");
                write!(f, "cannot be guarded, and tried again: {named}{more}")
            }
        }
    }
}

/// The interface, and the VM that its name says.
pub(crate) fn whose(interface: &Interface) -> String {
    match TapName::parse(&interface.name) {
        Some(tap) => format!("{} (VM {})", interface.name, tap.vmid),
        None => interface.name.clone(),
    }
}

/// The first few, and how many more there are.
fn named<T: ToString>(all: &[T], what: &str) -> (String, String) {
    let first: Vec<_> = all.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more interfaces{what}"),
    };
    (first.join(", "), more)
}

/// So many interfaces are named in one line. When a file system is emptied, all of them are naked at once.
const NAMED: usize = 3;

/// An interface that has lost something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    interface: Interface,
    programs: Vec<Program>,
}

impl Lost {
    /// `None`: it has lost nothing.
    fn of(interface: &Interface, programs: Vec<Program>) -> Option<Self> {
        (!programs.is_empty()).then(|| Self { interface: interface.clone(), programs })
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let programs: Vec<&str> = self.programs.iter().map(|program| program.word()).collect();
        write!(f, "{} has lost {}", whose(&self.interface), programs.join(" and "))
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

    /// The session then hears that they are lost, and makes others.
    fn discard_devices(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let discarded = runtime
            .map_err(|error| error.to_string())
            .and_then(|runtime| runtime.block_on(self.devices.discard()).map_err(|error| chain(&error)));
        if let Err(error) = discarded {
            tracing::error!(error, "our devices cannot be made anew");
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
    /// Files with a pin's name that are none; the log has heard of these.
    foreign: HashSet<PathBuf>,
}

/// So many strange files are named; `guard status` names all.
const NAMED_FOREIGN: usize = 64;

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now + LOOK, next_sweep: now, closer: 0, said: Vec::new(), foreign: HashSet::new() }
    }

    /// The next look is to be now.
    pub(super) fn hurry(&mut self) {
        self.due = Instant::now();
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
            match finding {
                // Each of these has had a line of its own, when it was refused.
                Finding::Open(_) => {}
                Finding::NoPins(_) => tracing::error!(%finding, "the guard cannot be looked after"),
                _ => tracing::warn!(%finding, "the guard was tampered with"),
            }
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
        let devices = [(Program::Return, &attached.devices.a), (Program::Funnel, &attached.devices.b)];
        let devices = devices.map(|(program, device)| (program, device.clone()));
        let mut doubles = Doubles::default();
        for (program, device) in devices {
            match attached.pins.standing(program, device.index) {
                Ok(Standing::Live) => {}
                Ok(Standing::Doubled) => doubles.take_off(&attached.pins, program, device.index, device.name),
                _ => {
                    let put_back = attached.put_back(program);
                    match &put_back {
                        Ok(_) => counter!(MENDS, "what" => "program").increment(1),
                        Err(error) if error.is_out_of_reach() => attached.discard_devices(),
                        Err(_) => {}
                    }
                    found.push(Finding::Off(program, device.name, put_back.err().map(|error| chain(&error))));
                }
            }
        }
        let naked = self.naked(census, &attached.pins, roster, &mut doubles);
        for lost in &naked {
            counter!(MENDS, "what" => "guard").increment(1);
            roster.naked(lost.interface.index);
        }
        if !naked.is_empty() {
            found.push(Finding::Naked(naked));
        }
        found.extend(doubles.finding());
        let open = roster.stuck(Instant::now());
        if !open.is_empty() {
            found.push(Finding::Open(open));
        }
        // Somebody guards them without knowing better, as `guard attach` does at an interface's birth.
        if census.iter().any(|(_, index)| roster.is_left_open(*index)) {
            match attached.pins.sweep(|index| !roster.is_left_open(index)) {
                Ok(swept) => self.name_foreign(swept.foreign),
                Err(error) => {
                    tracing::warn!(error = chain(&error), "an excluded interface cannot be opened; trying again")
                }
            }
        }
        let strangers = census.iter().any(|(_, index)| *index != 0 && !roster.is_known(*index));
        if strangers && Instant::now() >= self.next_sweep {
            self.next_sweep = Instant::now() + SWEEP;
            // Only what is defunct: an interface that is none of ours may have been guarded by hand.
            match attached.pins.sweep(|_| true) {
                Ok(swept) => self.name_foreign(swept.foreign),
                Err(error) => tracing::warn!(error = chain(&error), "pins of vanished interfaces cannot be swept"),
            }
        }
        found
    }

    /// Each once, and not without end: they are nobody's to remove but their maker's.
    fn name_foreign(&mut self, found: Vec<PathBuf>) {
        for found in found {
            if self.foreign.len() < NAMED_FOREIGN && !self.foreign.contains(&found) {
                let removal = removal(&found);
                tracing::warn!("this has the name of a pin and is none of ours: remove it with `{removal}`");
                self.foreign.insert(found);
            }
        }
    }

    /// Those who have lost a program. Those who have one twice are rid of the second one.
    fn naked(
        &mut self,
        census: &HashSet<(Program, u32)>,
        pins: &Pins,
        roster: &Roster,
        doubles: &mut Doubles,
    ) -> Vec<Lost> {
        let mut guarded: Vec<&Interface> = roster.all_guarded().collect();
        guarded.sort_unstable_by_key(|interface| interface.index);
        let (mut naked, mut pinned) = (Vec::new(), Vec::new());
        for interface in guarded {
            let unpinned = GUARDS.into_iter().filter(|program| !census.contains(&(*program, interface.index)));
            match Lost::of(interface, unpinned.collect()) {
                Some(lost) => naked.push(lost),
                None => pinned.push(interface),
            }
        }
        let begun = Instant::now();
        for step in 0..pinned.len().min(CLOSER) {
            if step > 0 && begun.elapsed() > CLOSER_TIME {
                break;
            }
            self.closer = (self.closer + 1) % pinned.len();
            let interface = pinned[self.closer];
            let mut off = Vec::new();
            for program in GUARDS {
                match pins.standing(program, interface.index) {
                    Ok(Standing::Live) => {}
                    Ok(Standing::Doubled) => doubles.take_off(pins, program, interface.index, whose(interface)),
                    _ => off.push(program),
                }
            }
            naked.extend(Lost::of(interface, off));
        }
        // Of an interface that has just gone we shall hear.
        naked.retain(|lost| lost.interface.is_there());
        naked
    }
}

/// Programs of ours beside the pinned ones, and what became of them.
#[derive(Debug, Default)]
struct Doubles {
    on: Vec<String>,
    count: usize,
    trouble: Option<PinError>,
}

impl Doubles {
    fn take_off(&mut self, pins: &Pins, program: Program, ifindex: u32, whose: String) {
        let off = pins.detach_strays(program, ifindex);
        if !matches!(off, Ok(0)) && !self.on.contains(&whose) {
            self.on.push(whose);
        }
        match off {
            Ok(0) => {}
            Ok(count) => {
                counter!(MENDS, "what" => "double").increment(u64::try_from(count).unwrap_or(u64::MAX));
                self.count += count;
            }
            Err(error) => {
                self.count += 1;
                self.trouble = Some(error);
            }
        }
    }

    fn finding(self) -> Option<Finding> {
        (self.count > 0).then(|| Finding::Doubled(self.on, self.count, self.trouble.map(|error| chain(&error))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(numbers: std::ops::RangeInclusive<u32>, programs: &[Program]) -> Finding {
        let interface = |index| Interface { index, name: format!("tap{index}i0"), kind: "tun".to_owned() };
        let lost = |index| Lost { interface: interface(index), programs: programs.to_vec() };
        Finding::Naked(numbers.map(lost).collect())
    }

    #[test]
    fn whatever_is_wrong_names_whom_and_why() {
        let tap = |index| Interface { index, name: format!("tap{index}i0"), kind: "tun".to_owned() };
        let open = |numbers: std::ops::RangeInclusive<u32>| {
            Finding::Open(numbers.map(|index| (tap(index), "No room".to_owned())).collect())
        };
        let on = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (finding, said) in [
            (lost(101..=101, &[Program::Steer]), "tap101i0 (VM 101) has lost steer; it gets it back"),
            (
                lost(101..=102, &[Program::Shield]),
                "tap101i0 (VM 101) has lost shield, tap102i0 (VM 102) has lost shield; they get it back",
            ),
            (
                lost(101..=109, &GUARDS),
                "tap101i0 (VM 101) has lost steer and shield, tap102i0 (VM 102) has lost steer and shield, \
                 tap103i0 (VM 103) has lost steer and shield and 6 more interfaces theirs; they get it back",
            ),
            (open(101..=101), "cannot be guarded, and tried again: tap101i0 (VM 101): No room"),
            (
                open(101..=104),
                "cannot be guarded, and tried again: tap101i0 (VM 101): No room, tap102i0 (VM 102): No room, \
                 tap103i0 (VM 103): No room and 1 more interfaces",
            ),
            (
                Finding::Off(Program::Return, "imds-a".into(), None),
                "return was off our device imds-a; it has been put back",
            ),
            (
                Finding::Doubled(on(&["tap101i0 (VM 101)"]), 2, None),
                "second guards stood on tap101i0 (VM 101); 2 programs were taken off",
            ),
            (
                Finding::Doubled(on(&["imds-a"]), 1, Some("No".into())),
                "second guards stand on imds-a (1 programs), guests get silence: No",
            ),
        ] {
            assert_eq!(finding.to_string(), said);
        }
    }
}
