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

/// Between two attempts on an interface that could not be guarded.
const RETRY: Duration = Duration::from_secs(1);

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
        let worker = Worker { datapath, pins, outbox, waiting: VecDeque::new() };
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
    waiting: VecDeque<(Interface, Seat)>,
}

impl Worker {
    fn run(mut self, inbox: &mpsc::Receiver<Job>) {
        let mut failed = Vec::new();
        loop {
            // Everything asked for so far is looked at before the next slow attachment.
            let job = match (self.waiting.is_empty(), failed.is_empty()) {
                (false, _) => inbox.try_recv().map_err(|error| error == mpsc::TryRecvError::Disconnected),
                (true, false) => {
                    inbox.recv_timeout(RETRY).map_err(|error| error == mpsc::RecvTimeoutError::Disconnected)
                }
                (true, true) => inbox.recv().map_err(|_| true),
            };
            match job {
                Ok(Job::Guard(interface, seat)) => self.waiting.push_front((interface, seat)),
                Ok(Job::Release(interface, seat)) => {
                    failed.retain(|(other, _): &(Interface, Seat)| *other != interface);
                    self.waiting.retain(|(other, _)| *other != interface);
                    self.release(&interface, seat);
                }
                Ok(Job::Count(done)) => {
                    publish(&self.datapath);
                    let _ = done.send(());
                }
                Ok(Job::End) | Err(true) => return,
                Err(false) => match self.waiting.pop_front() {
                    Some((interface, seat)) => {
                        if !self.attach(&interface, seat) {
                            failed.push((interface, seat));
                        }
                    }
                    None => self.waiting.extend(failed.drain(..)),
                },
            }
        }
    }

    /// `false`: try again.
    fn attach(&mut self, interface: &Interface, seat: Seat) -> bool {
        let guarded = guard(&mut self.datapath, &self.pins, interface, seat);
        let (report, done) = match guarded {
            Ok(swap) => (Report::Guarded(interface.clone(), swap), true),
            Err(error) => (Report::Failed(interface.clone(), error), false),
        };
        let _ = self.outbox.send(report);
        done
    }

    fn release(&mut self, interface: &Interface, seat: Seat) {
        let released = self.datapath.release(interface.index, seat.slot).map_err(|error| error.to_string());
        let forgotten = self.pins.forget(interface.index).map_err(|error| error.to_string());
        for error in [released.err(), forgotten.err()].into_iter().flatten() {
            tracing::warn!(tap = %interface.name, error, "cannot tidy up after a vanished interface");
        }
        let _ = self.outbox.send(Report::Released(seat));
    }
}

/// Seats and guards one interface: assigned first, so that its first steered frame finds its seat.
///
/// # Errors
/// Why not, in one line.
pub fn guard(datapath: &mut Datapath, pins: &Pins, interface: &Interface, seat: Seat) -> Result<Swap, String> {
    datapath.assign(interface.index, seat.slot, seat.generation).map_err(|error| chain(&error))?;
    datapath.guard(pins, &interface.name, interface.index).map_err(|error| chain(&error))
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
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
