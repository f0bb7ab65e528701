//! The guard's worker: one thread that attaches, assigns and removes kernel programs.
//!
//! Attaching takes the kernel about 15 ms a link, under a lock of its own; on a thread of their own those waits hold up
//! no request. In come jobs; out come reports. Removals go first (a vanished interface must not keep a seat), then the
//! newest interface: that is the one whose guest is just starting. A failed attachment leaves the old link dropping and
//! is tried again.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use metrics::{counter, describe_counter};
use pve_imds_transport::bpf::{Datapath, Pins, Reason, Swap};
use pve_imds_transport::{Interface, Seat};
use tokio::sync::{mpsc as reports, oneshot};
use tokio::time::Instant;

/// Before the second attempt on an interface that could not be guarded; doubled each time.
const FIRST_RETRY: Duration = Duration::from_millis(10);

/// The longest time between two attempts.
const RETRY: Duration = Duration::from_secs(1);

/// How long the pins of an interface that is gone stay, in case it was only renamed.
const MOURNING: Duration = Duration::from_millis(200);

/// What the worker is asked for.
enum Job {
    /// Steer this interface to this seat, and shield it.
    Guard(Interface, Seat),
    /// The interface is gone.
    Release(Interface, Seat),
    /// Bring the counters' metrics up to date.
    Count(oneshot::Sender<()>),
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
    ) -> io::Result<(Self, reports::UnboundedReceiver<Report>, JoinHandle<()>)> {
        let (jobs, inbox) = mpsc::channel();
        let (outbox, reports) = reports::unbounded_channel();
        let worker = Worker { datapath, pins, outbox, waiting: VecDeque::new(), failed: Vec::new(), gone: Vec::new() };
        let thread = std::thread::Builder::new().name("guard".into()).spawn(move || worker.run(&inbox))?;
        Ok((Self(jobs), reports, thread))
    }

    /// An interface appeared.
    pub fn guard(&self, interface: Interface, seat: Seat) {
        self.give(Job::Guard(interface, seat));
    }

    /// An interface vanished.
    pub fn release(&self, interface: Interface, seat: Seat) {
        self.give(Job::Release(interface, seat));
    }

    /// Waits until the kernel's counters are in the metrics. `false`: the worker is gone.
    pub async fn count(&self) -> bool {
        let (done, counted) = oneshot::channel();
        self.give(Job::Count(done));
        counted.await.is_ok()
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
    outbox: reports::UnboundedSender<Report>,
    /// Interfaces still to be guarded, newest first.
    waiting: VecDeque<Attachment>,
    /// Interfaces that could not be guarded, and when to try again.
    failed: Vec<(Instant, Attachment)>,
    /// Interfaces that are gone, and when to take their pins away.
    gone: Vec<(Instant, Interface)>,
}

/// An interface to be guarded.
struct Attachment {
    interface: Interface,
    seat: Seat,
    /// How long to wait should it fail.
    patience: Duration,
}

impl Worker {
    fn run(mut self, inbox: &mpsc::Receiver<Job>) {
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
            if self.work() {
                continue;
            }
            let due = self.failed.iter().map(|(due, _)| due).chain(self.gone.iter().map(|(due, _)| due)).min();
            let job = match due {
                Some(due) => inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => inbox.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(Job::End) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Ok(job) => self.take(job),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Guard(interface, seat) => {
                // A rename is a death and a birth of one index: its pins stay and are swapped, so the guard never opens.
                self.gone.retain(|(_, other)| other.index != interface.index);
                self.waiting.push_front(Attachment { interface, seat, patience: FIRST_RETRY });
            }
            Job::Release(interface, seat) => {
                self.failed.retain(|(_, other)| other.interface != interface);
                self.waiting.retain(|other| other.interface != interface);
                self.release(interface, seat);
            }
            Job::Count(done) => {
                publish(&self.datapath);
                let _ = done.send(());
            }
            Job::End => {}
        }
    }

    /// One piece of work, if any is due.
    fn work(&mut self) -> bool {
        let now = Instant::now();
        if let Some(at) = self.gone.iter().position(|(due, _)| *due <= now) {
            let (_, interface) = self.gone.swap_remove(at);
            if let Err(error) = self.pins.forget(interface.index) {
                complain(&interface, &chain(&error));
            }
            return true;
        }
        if let Some(at) = self.failed.iter().position(|(due, _)| *due <= now) {
            let (_, again) = self.failed.swap_remove(at);
            self.waiting.push_back(again);
        }
        let Some(next) = self.waiting.pop_front() else { return false };
        self.attach(next);
        true
    }

    fn attach(&mut self, next: Attachment) {
        let Attachment { interface, seat, patience } = next;
        let report = match guard(&mut self.datapath, &self.pins, &interface, seat) {
            Ok(swap) => Report::Guarded(interface, swap),
            Err(error) => {
                let again = Attachment { interface: interface.clone(), seat, patience: (patience * 2).min(RETRY) };
                self.failed.push((Instant::now() + patience, again));
                Report::Failed(interface, error)
            }
        };
        let _ = self.outbox.send(report);
    }

    fn release(&mut self, interface: Interface, seat: Seat) {
        if let Err(error) = self.datapath.release(interface.index, seat.slot) {
            complain(&interface, &chain(&error));
        }
        self.gone.push((Instant::now() + MOURNING, interface));
        let _ = self.outbox.send(Report::Released(seat));
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

/// Describes the metrics of this room. Call once after the recorder is installed.
pub fn describe() {
    describe_counter!(FRAMES, "Frames to or from a metadata address by what the kernel programs decided, since start");
}

fn publish(datapath: &Datapath) {
    for (reason, frames) in datapath.counters() {
        counter!(FRAMES, "reason" => Reason::word(reason)).absolute(frames);
    }
}
