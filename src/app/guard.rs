//! The guard's worker: one thread that attaches, assigns and removes kernel programs, and sees that they stay.
//!
//! Attaching takes the kernel about 15 ms a link, under a lock of its own; on a thread of their own those waits hold up
//! no request. In come jobs; out come reports. Whose turn it is, [`roster`] says. A failed attachment leaves the old link
//! dropping and is tried again.
//!
//! Twice a second the worker looks whether what it attached is still there: somebody may have removed a pin, taken a
//! program off, unmounted the file system ([`Finding`]). What can be put back is put back.

mod roster;

use std::fmt;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use metrics::{counter, describe_counter};
use pve_imds_transport::bpf::{AttachError, Datapath, Pins, Program, Reason, Swap};
use pve_imds_transport::{Change, Devices, Interface, Seat};
use tokio::sync::{mpsc as reports, oneshot};
use tokio::time::Instant;

use self::roster::{Roster, Work};
use crate::steps::{Step, passed};

/// How often the worker looks at what is attached. Names only, so a thousand interfaces cost about a millisecond.
const LOOK: Duration = Duration::from_millis(500);

/// So many interfaces a look are also asked whether their links live, in turn: a link can be detached by force and leave
/// its pin. All four thousand are round in half a minute.
const CLOSER: usize = 64;

/// Pins of nobody's are swept when they are seen, but not more often: they may be alive and somebody's work.
const SWEEP: Duration = Duration::from_secs(30);

/// The two programs of a guest's interface.
const GUARDS: [Program; 2] = [Program::Steer, Program::Shield];

/// What the worker is asked for.
enum Job {
    /// Steer this interface to this seat, and shield it.
    Guard(Interface, Seat),
    /// This interface has its guard and its seat already.
    Adopt(Interface, Seat),
    /// The interface is gone.
    Release(Interface, Seat),
    /// An interface that had no seat is gone; somebody else may have pinned something for it.
    Bury(Interface),
    /// Bring the counters' metrics up to date.
    Count(oneshot::Sender<()>),
    /// Look at everything now, and say what was wrong.
    Look(oneshot::Sender<Vec<Finding>>),
    /// The daemon ends.
    End,
}

/// What became of a job.
#[derive(Debug)]
pub enum Report {
    /// The interface is guarded and served.
    Guarded(Interface, Swap),
    /// It is not; it will be tried again.
    Failed(Interface, String),
    /// Nobody is sent to this seat any more.
    Released(Seat),
}

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

/// Gives jobs to the worker.
#[derive(Clone, Debug)]
pub struct Guard(mpsc::Sender<Job>);

impl Guard {
    /// Starts the worker. The datapath and its pins are its alone from now on.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        datapath: Datapath,
        pins: Pins,
        devices: Devices,
    ) -> io::Result<(Self, reports::UnboundedReceiver<Report>, JoinHandle<()>)> {
        let (jobs, inbox) = mpsc::channel();
        let (outbox, reports) = reports::unbounded_channel();
        let now = Instant::now();
        let worker = Worker {
            datapath,
            pins,
            devices,
            outbox,
            roster: Roster::default(),
            counted: Vec::new(),
            next_look: now + LOOK,
            next_sweep: now,
            closer: 0,
            said: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("guard".into()).spawn(move || worker.run(&inbox))?;
        Ok((Self(jobs), reports, thread))
    }

    /// An interface appeared, or is to be guarded once more.
    pub fn guard(&self, interface: Interface, seat: Seat) {
        self.give(Job::Guard(interface, seat));
    }

    /// An interface was guarded before the worker began.
    pub fn adopt(&self, interface: Interface, seat: Seat) {
        self.give(Job::Adopt(interface, seat));
    }

    /// An interface vanished.
    pub fn release(&self, interface: Interface, seat: Seat) {
        self.give(Job::Release(interface, seat));
    }

    /// An interface without a seat vanished.
    pub fn bury(&self, interface: Interface) {
        self.give(Job::Bury(interface));
    }

    /// Waits until the kernel's counters are in the metrics. `false`: the worker is gone.
    pub async fn count(&self) -> bool {
        let (done, counted) = oneshot::channel();
        self.give(Job::Count(done));
        counted.await.is_ok()
    }

    /// Has everything looked at. `None`: the worker is gone.
    pub async fn look(&self) -> Option<Vec<Finding>> {
        let (done, found) = oneshot::channel();
        self.give(Job::Look(done));
        found.await.ok()
    }

    /// Ends the worker after what it is doing. Pinned links stay.
    pub fn end(&self) {
        self.give(Job::End);
    }

    fn give(&self, job: Job) {
        // What a worker that is gone cannot do, `count` tells.
        let _ = self.0.send(job);
    }
}

struct Worker {
    datapath: Datapath,
    pins: Pins,
    devices: Devices,
    outbox: reports::UnboundedSender<Report>,
    roster: Roster,
    /// What the metrics have of the kernel's counters.
    counted: Vec<u64>,
    next_look: Instant,
    next_sweep: Instant,
    /// Where the closer look goes on.
    closer: usize,
    /// What the log has heard of last.
    said: Vec<Finding>,
}

impl Worker {
    fn run(mut self, inbox: &mpsc::Receiver<Job>) {
        self.work_until_end(inbox);
        self.count();
    }

    fn work_until_end(&mut self, inbox: &mpsc::Receiver<Job>) {
        loop {
            // Everything asked for so far is looked at before the next slow piece of work, and then one piece is done:
            // neither can starve the other.
            loop {
                match inbox.try_recv() {
                    Ok(Job::End) | Err(mpsc::TryRecvError::Disconnected) => return,
                    Ok(job) => self.take(job),
                    Err(mpsc::TryRecvError::Empty) => break,
                }
            }
            let now = Instant::now();
            if now >= self.next_look {
                self.look();
            }
            if let Some(work) = self.roster.next(now) {
                self.work(work);
                continue;
            }
            let due = self.roster.next_due().map_or(self.next_look, |due| due.min(self.next_look));
            match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Job::End) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Ok(job) => self.take(job),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Guard(interface, seat) => self.roster.seat(interface, seat),
            Job::Adopt(interface, seat) => self.roster.adopt(interface, seat),
            Job::Release(interface, seat) => {
                if let Err(error) = self.datapath.release(interface.index, seat.slot) {
                    complain(&interface, &chain(&error));
                }
                self.roster.gone(interface, seat, Instant::now());
                let _ = self.outbox.send(Report::Released(seat));
            }
            Job::Bury(interface) => {
                if !self.roster.is_known(interface.index) {
                    self.forget(&interface);
                }
            }
            Job::Count(done) => {
                self.count();
                let _ = done.send(());
            }
            Job::Look(done) => {
                let _ = done.send(self.look());
            }
            Job::End => {}
        }
    }

    fn work(&mut self, work: Work) {
        let (interface, seat) = match work {
            Work::Forget(interface) => return self.forget(&interface),
            Work::Attach(interface, seat) => (interface, seat),
        };
        let report = match guard(&mut self.datapath, &self.pins, &interface, seat) {
            Ok(swap) => {
                self.roster.guarded(interface.index);
                passed(Step::GuestGuarded);
                Report::Guarded(interface, swap)
            }
            Err(error) => {
                self.roster.failed(interface.index, Instant::now());
                Report::Failed(interface, error)
            }
        };
        let _ = self.outbox.send(report);
    }

    fn forget(&self, interface: &Interface) {
        if let Err(error) = self.pins.forget(interface.index) {
            complain(interface, &chain(&error));
        }
    }

    /// Looks at what is attached, puts back what can be, and tells the log what it has not heard yet.
    fn look(&mut self) -> Vec<Finding> {
        self.next_look = Instant::now() + LOOK;
        let found = self.find();
        for finding in found.iter().filter(|finding| !self.said.contains(finding)) {
            tracing::warn!(%finding, "the guard was tampered with");
        }
        self.said.clone_from(&found);
        found
    }

    fn find(&mut self) -> Vec<Finding> {
        let census = match self.pins.census() {
            Ok(census) => census,
            Err(error) => return vec![Finding::NoPins(chain(&error))],
        };
        let mut found = Vec::new();
        for (program, ifindex) in [(Program::Return, self.devices.a.index), (Program::Funnel, self.devices.b.index)] {
            if !self.pins.is_alive(program, ifindex) {
                let put_back = self.put_back(program);
                if put_back.is_ok() {
                    counter!(MENDS, "what" => "program").increment(1);
                }
                found.push(Finding::Off(program, put_back.err().map(|error| chain(&error))));
            }
        }
        let pinned = |index| GUARDS.iter().all(|program| census.contains(&(*program, index)));
        let alive = |index| GUARDS.iter().all(|program| self.pins.is_alive(*program, index));
        let mut guarded: Vec<&Interface> = self.roster.all_guarded().collect();
        guarded.sort_unstable_by_key(|interface| interface.index);
        let start = if self.closer < guarded.len() { self.closer } else { 0 };
        self.closer = start + CLOSER;
        let bare = |(at, interface): &(usize, &&Interface)| {
            !pinned(interface.index) || ((start..start + CLOSER).contains(at) && !alive(interface.index))
        };
        // Of an interface that has just gone we shall hear.
        let naked = guarded.iter().enumerate().filter(bare).filter(|(_, interface)| interface.is_there());
        let naked: Vec<u32> = naked.map(|(_, interface)| interface.index).collect();
        for index in &naked {
            counter!(MENDS, "what" => "guard").increment(1);
            self.roster.naked(*index);
        }
        if !naked.is_empty() {
            found.push(Finding::Naked(naked.len()));
        }
        let strangers = census.iter().any(|(_, index)| *index != 0 && !self.roster.is_known(*index));
        if strangers && Instant::now() >= self.next_sweep {
            self.next_sweep = Instant::now() + SWEEP;
            // Only what is defunct: an interface that is none of ours may have been guarded by hand.
            if let Err(error) = self.pins.sweep(|_| true) {
                tracing::warn!(error = chain(&error), "pins of vanished interfaces cannot be swept");
            }
        }
        found
    }

    fn put_back(&mut self, program: Program) -> Result<Swap, AttachError> {
        match program {
            Program::Funnel => self.datapath.attach_funnel(&self.pins, &self.devices.b.name),
            _ => self.datapath.attach_return(&self.pins, &self.devices.a.name),
        }
    }

    /// What the programs have counted since the last time is added to the metrics: a load begins at nothing, the
    /// metrics go on.
    fn count(&mut self) {
        let counters = self.datapath.counters();
        self.counted.resize(counters.len(), 0);
        for ((reason, frames), counted) in counters.into_iter().zip(&mut self.counted) {
            counter!(FRAMES, "reason" => Reason::word(reason)).increment(frames.saturating_sub(*counted));
            *counted = frames;
        }
    }
}

fn complain(interface: &Interface, error: &str) {
    tracing::warn!(tap = %interface.name, error, "cannot tidy up after a vanished interface");
}

/// Seats and guards one interface: assigned first, so that its first steered frame finds its seat.
///
/// # Errors
/// Why not, in one line.
pub fn guard(datapath: &mut Datapath, pins: &Pins, interface: &Interface, seat: Seat) -> Result<Swap, String> {
    datapath.assign(interface.index, seat.slot, seat.generation).map_err(|error| chain(&error))?;
    datapath.guard(pins, &interface.name, interface.index).map_err(|error| chain(&error))
}

/// An error and its causes in one line, each once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

const FRAMES: &str = "pve_imds_guard_frames_total";
pub(super) const MENDS: &str = "pve_imds_datapath_mends_total";

/// Describes the metrics of this room. Call once after the recorder is installed.
pub fn describe() {
    describe_counter!(FRAMES, "Frames to or from a metadata address by what the kernel programs decided, since start");
    describe_counter!(MENDS, "What somebody had changed or taken away and was put right, by what it was");
    for what in Change::ALL.iter().map(|change| change.word()).chain(["program", "guard"]) {
        counter!(MENDS, "what" => what).absolute(0);
    }
}
