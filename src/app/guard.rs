//! The guard's worker: one thread that attaches, assigns and removes kernel programs, and sees that they stay.
//!
//! Attaching takes the kernel about 15 ms a link, under a lock of its own; on a thread of their own those waits hold up
//! no request. In come jobs; out come reports. Whose turn it is, [`roster`] says. A failed attachment leaves the old link
//! dropping and is tried again.
//!
//! Twice a second the worker looks whether what it attached is still there ([`watch`]).

mod roster;
mod watch;

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use metrics::{counter, describe_counter};
use pve_imds_model::chain;
use pve_imds_transport::bpf::{Datapath, Pins, Reason, Swap};
use pve_imds_transport::{Change, Devices, Interface, Seat};
use tokio::sync::{mpsc as reports, oneshot};
use tokio::time::Instant;

use self::roster::{Roster, Work};
pub use self::watch::Finding;
use self::watch::{Attached, Watch};
use crate::steps::{Step, passed};

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
    /// The interface is to have no guard, and has lost this seat; whoever pins something for it has it taken away again.
    Open(Interface, Option<Seat>),
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
    /// It is still not, and why has been said.
    FailedAgain(Interface),
    /// Nobody is sent to this seat any more.
    Released(Seat),
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
        let worker = Worker {
            attached: Attached { datapath, pins, devices },
            outbox,
            roster: Roster::default(),
            watch: Watch::new(Instant::now()),
            counted: Vec::new(),
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

    /// An interface is left out, and has lost this seat.
    pub fn open(&self, interface: Interface, seat: Option<Seat>) {
        self.give(Job::Open(interface, seat));
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
    attached: Attached,
    outbox: reports::UnboundedSender<Report>,
    roster: Roster,
    watch: Watch,
    /// What the metrics have of the kernel's counters.
    counted: Vec<u64>,
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
            if now >= self.watch.due() {
                self.look();
            }
            if let Some(work) = self.roster.next(now) {
                self.work(work);
                continue;
            }
            let due = self.roster.next_due().into_iter().fold(self.watch.due(), Instant::min);
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
                self.release(&interface, seat);
                self.roster.gone(interface, seat, Instant::now());
            }
            Job::Open(interface, seat) => {
                if let Some(seat) = seat {
                    self.release(&interface, seat);
                }
                self.roster.leave_open(interface);
                // Its pins are taken away with everyone else's, by the next look.
                self.watch.hurry();
            }
            Job::Bury(interface) => {
                self.roster.close(interface.index);
                if !self.roster.is_known(interface.index)
                    && let Err(error) = self.attached.pins.forget(interface.index)
                {
                    complain(&interface, &chain(&error));
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

    fn release(&mut self, interface: &Interface, seat: Seat) {
        if let Err(error) = self.attached.datapath.release(interface.index, seat.slot) {
            complain(interface, &chain(&error));
        }
        let _ = self.outbox.send(Report::Released(seat));
    }

    fn work(&mut self, work: Work) {
        let (interface, seat) = match work {
            Work::Forget(interface) => return self.forget(&interface),
            Work::Attach(interface, seat) => (interface, seat),
        };
        let report = match guard(&mut self.attached.datapath, &self.attached.pins, &interface, seat) {
            Ok(swap) => {
                self.roster.guarded(interface.index);
                passed(Step::GuestGuarded);
                Report::Guarded(interface, swap)
            }
            Err(error) if self.roster.failed(interface.index, &error, Instant::now()) => {
                Report::Failed(interface, error)
            }
            Err(_) => Report::FailedAgain(interface),
        };
        let _ = self.outbox.send(report);
    }

    fn forget(&mut self, interface: &Interface) {
        match self.attached.pins.forget(interface.index).map_err(|error| chain(&error)) {
            Ok(()) => self.roster.buried(interface.index),
            Err(error) if self.roster.failed(interface.index, &error, Instant::now()) => complain(interface, &error),
            Err(_) => {}
        }
    }

    fn look(&mut self) -> Vec<Finding> {
        self.watch.look(&mut self.attached, &mut self.roster)
    }

    /// What the programs have counted since the last time is added to the metrics: a load begins at nothing, the
    /// metrics go on.
    fn count(&mut self) {
        let counters = self.attached.datapath.counters();
        self.counted.resize(counters.len(), 0);
        for ((reason, frames), counted) in counters.into_iter().zip(&mut self.counted) {
            counter!(FRAMES, "reason" => Reason::word(reason)).increment(frames.saturating_sub(*counted));
            *counted = frames;
        }
    }
}

fn complain(interface: &Interface, error: &str) {
    let vmid = super::guests::vmid(interface);
    tracing::warn!(tap = %interface.name, vmid, error, "cannot tidy up after a vanished interface");
}

/// Seats and guards one interface: assigned first, so that its first steered frame finds its seat.
///
/// # Errors
/// Why not, in one line.
pub fn guard(datapath: &mut Datapath, pins: &Pins, interface: &Interface, seat: Seat) -> Result<Swap, String> {
    datapath.assign(interface.index, seat.slot, seat.generation).map_err(|error| chain(&error))?;
    datapath.guard(pins, &interface.name, interface.index).map_err(|error| chain(&error))
}

const FRAMES: &str = "pve_imds_guard_frames_total";
pub(super) const MENDS: &str = "pve_imds_datapath_mends_total";

/// Describes the metrics of this room. Call once after the recorder is installed.
pub fn describe() {
    describe_counter!(
        FRAMES,
        "Frames that concern a metadata address by what the kernel programs did; all but ..._redirected are drops"
    );
    describe_counter!(
        MENDS,
        "Things that somebody had changed on our devices or taken off an interface, put right, by what it was"
    );
    for reason in Reason::ALL {
        counter!(FRAMES, "reason" => reason.word()).absolute(0);
    }
    for what in Change::ALL.iter().map(|change| change.word()).chain(["program", "guard", "double"]) {
        counter!(MENDS, "what" => what).absolute(0);
    }
}
