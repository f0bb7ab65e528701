//! One session: our devices, one load of the kernel programs, one socket, and everyone's seats on them.
//!
//! A start, a restart, an upgrade, a downgrade and a rebuild are one thing, [`Session::open`]: the next epoch; devices;
//! programs with new maps; socket; then the links of every interface that is pinned already, then `return`, and `funnel`
//! last. Until then steered frames fall into an empty map and never into another guest's stack. Interfaces that were
//! never guarded come after that, newest first.
//!
//! In comes what outlives a session ([`Base`]); out come the word that something is lost ([`Broken`]) and, in the
//! kernel, pins that stay when the session goes: guests get silence then, and nobody else's answer.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use metrics::counter;
use pve_imds_model::chain;
use pve_imds_model::tap::TapName;
use pve_imds_transport::bpf::{AttachError, Bucket, Datapath, Epoch, Lock, Pins, Program, Swap};
use pve_imds_transport::{Devices, Interface, LinkEvent, Links, Loss, Pair, Xsk};
use tokio::sync::mpsc;

use super::admission::Admission;
use super::guard::{self, Guard, MENDS, Report};
use super::guests::{Accept, Guests, Place};
use super::ring::Ring;
use super::stack::{Answers, Node};
use super::systemd;
use crate::steps::{Step, passed};

/// How long answers under way may take when the daemon stops.
const DRAIN: Duration = Duration::from_secs(2);

/// What outlives a session.
pub(super) struct Base<R> {
    pub(super) device_prefix: String,
    pub(super) accept: Accept,
    pub(super) admission: Admission,
    pub(super) bucket: Bucket,
    pub(super) node: Node,
    pub(super) router: R,
    pub(super) pins: Pins,
    /// Held for as long as we serve.
    pub(super) lock: Lock,
    pub(super) links: Links,
    /// An epoch that is on record and has not been given to any program that a guest's frame meets. A session that does
    /// not get that far leaves it to the next: there are only 32, and none must come back while an old one is about.
    pub(super) fresh: Option<Epoch>,
}

impl<R> Base<R> {
    fn epoch(&mut self) -> anyhow::Result<Epoch> {
        if let Some(epoch) = self.fresh {
            return Ok(epoch);
        }
        let epoch = self.lock.next_epoch()?;
        passed(Step::EpochRecorded);
        Ok(*self.fresh.insert(epoch))
    }
}

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// Our devices are not ours any more.
    #[error("our devices are {}", .0.word())]
    Devices(Loss),
    /// The AF_XDP socket failed.
    #[error("the AF_XDP socket failed: {0}")]
    Socket(#[source] io::Error),
    /// The ring's thread died.
    #[error("the ring's thread ended")]
    Ring,
    /// The guard's thread died.
    #[error("the guard's thread ended")]
    Guard,
}

const SOCKET: &str = "socket";
const RING: &str = "ring";
const GUARD: &str = "guard";

impl Broken {
    /// The words there are.
    pub(super) fn words() -> impl Iterator<Item = &'static str> {
        Loss::ALL.iter().map(|loss| loss.word()).chain([SOCKET, RING, GUARD])
    }

    /// The word for it in logs and metrics.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Devices(loss) => loss.word(),
            Self::Socket(_) => SOCKET,
            Self::Ring => RING,
            Self::Guard => GUARD,
        }
    }
}

/// Everything that serves.
pub(super) struct Session<R> {
    pub(super) guests: Guests<R>,
    pub(super) guard: Guard,
    pub(super) reports: mpsc::UnboundedReceiver<Report>,
    worker: JoinHandle<()>,
    pub(super) ring: Ring,
    pub(super) devices: Devices,
    pub(super) epoch: Epoch,
}

impl<R: Answers> Session<R> {
    /// Begins to serve. When this returns, every interface that was guarded before is served again, and those that were
    /// not are on the guard's list.
    pub(super) async fn open(base: &mut Base<R>) -> anyhow::Result<Self> {
        let epoch = base.epoch()?;
        let devices = Devices::ensure(&base.device_prefix).await?;
        base.links.watch(&devices.indexes());
        passed(Step::DevicesMade);
        let mut datapath = Datapath::load(devices.a.index, epoch, Xsk::RING, base.bucket)?;
        passed(Step::ProgramsLoaded);
        let ring = Ring::start(devices.b.index, epoch, datapath.credit()?)
            .with_context(|| format!("cannot bind an AF_XDP socket to {}", devices.b.name))?;
        passed(Step::SocketBound);
        datapath.set_socket(ring.socket.as_fd())?;
        passed(Step::SocketInMap);

        base.fresh = None;
        let mut guests = Guests::new(
            base.accept.clone(),
            base.admission.clone(),
            base.node.clone(),
            base.router.clone(),
            ring.guests.clone(),
        );
        let unguarded = seat_present(&mut guests, &mut datapath, &base.pins, base.links.present())?;
        passed(Step::GuestsSeated);
        or_discard(datapath.attach_return(&base.pins, &devices.a.name), &devices).await?;
        passed(Step::ReturnAttached);
        or_discard(datapath.attach_funnel(&base.pins, &devices.b.name), &devices).await?;
        passed(Step::FunnelAttached);
        devices.raise().await?;
        passed(Step::DevicesRaised);

        let (guard, reports, worker) =
            Guard::start(datapath, base.pins.clone(), devices.clone()).context("cannot start the guard's thread")?;
        passed(Step::GuardStarted);
        for seated in guests.seated() {
            match unguarded.contains(&seated.interface.index) {
                true => guard.guard(seated.interface.clone(), seated.seat),
                false => guard.adopt(seated.interface.clone(), seated.seat),
            }
        }
        guests.left_out().for_each(|interface| guard.open(interface.clone(), None));
        Ok(Self { guests, guard, reports, worker, ring, devices, epoch })
    }

    /// What an event of the interfaces means.
    pub(super) async fn follow(&mut self, event: LinkEvent) -> Option<Broken> {
        match event {
            LinkEvent::Appeared(interface) => {
                if let Some(place) = self.guests.appeared(&interface) {
                    self.place(interface, place);
                }
            }
            LinkEvent::Vanished(interface) if self.devices.include(interface.index) => {
                return Some(Broken::Devices(Loss::Gone));
            }
            LinkEvent::Vanished(interface) => {
                if let Some(seat) = self.guests.vanished(&interface) {
                    self.guard.release(interface, seat);
                    systemd::guests(self.guests.count());
                } else if TapName::parse(&interface.name).is_some() {
                    self.guard.bury(interface);
                }
            }
            LinkEvent::Changed(_) => return self.tend().await,
            LinkEvent::Relisted => {
                // Swapping a link that lives takes microseconds; one whose interface was born again is made anew.
                for seated in self.guests.seated() {
                    self.guard.guard(seated.interface.clone(), seated.seat);
                }
                return self.tend().await;
            }
        }
        None
    }

    /// The inventory has changed: interfaces that are left out from now on lose seat and guard, those that are so no
    /// longer get them.
    pub(super) fn review(&mut self) {
        for (interface, place) in self.guests.review() {
            self.place(interface, place);
        }
    }

    /// What the guard's thread says.
    pub(super) fn reported(&mut self, report: Report) {
        if let Some((interface, place)) = self.guests.reported(report) {
            self.place(interface, place);
        }
    }

    fn place(&self, interface: Interface, place: Place) {
        match place {
            Place::Seat(seat) => self.guard.guard(interface, seat),
            Place::LeftOut(seat) => self.guard.open(interface, seat),
        }
        systemd::guests(self.guests.count());
    }

    /// Sees whether anything has become of our devices that no event tells.
    pub(super) async fn glance(&self) -> Option<Broken> {
        if self.devices.look_well() { None } else { self.tend().await }
    }

    /// Sees that our devices are as they must be.
    pub(super) async fn tend(&self) -> Option<Broken> {
        match self.devices.tend().await {
            Ok(Pair::Well) => None,
            Ok(Pair::Changed(changes)) => {
                for (device, change) in changes {
                    counter!(MENDS, "what" => change.word()).increment(1);
                    tracing::warn!(device = device.name, change = change.word(), "our device was changed; put right");
                }
                None
            }
            Ok(Pair::Lost(loss)) => Some(Broken::Devices(loss)),
            Err(error) => {
                tracing::error!(%error, "our devices cannot be put right; trying again");
                None
            }
        }
    }

    /// Lets answers under way finish, then ends every thread. Pins stay.
    pub(super) async fn drain(self) {
        let guests = self.guests;
        guests.drain();
        let drained = tokio::time::timeout(DRAIN, async {
            while guests.connections() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        if drained.await.is_err() {
            tracing::warn!(connections = guests.connections(), "answers under way were cut off");
        }
        passed(Step::Drained);
        drop(guests);
        self.ring.stop();
        passed(Step::RingEnded);
        end(&self.guard, self.worker);
    }

    /// Ends every thread now: connections stand on something that is gone. Returns what that was, which may be more than
    /// was noticed first, and the devices if it was they.
    pub(super) async fn abort(self, lost: Broken) -> (Broken, Option<Devices>) {
        self.ring.abort();
        passed(Step::RingAborted);
        end(&self.guard, self.worker);
        match (lost, self.devices.look().await) {
            (_, Ok(Pair::Lost(loss))) => (Broken::Devices(loss), Some(self.devices)),
            (lost @ Broken::Devices(_), _) => (lost, Some(self.devices)),
            (lost, _) => (lost, None),
        }
    }
}

fn end(guard: &Guard, worker: JoinHandle<()>) {
    guard.end();
    if worker.join().is_err() {
        tracing::error!("the guard's thread panicked");
    }
    passed(Step::GuardEnded);
}

/// Where an old program of ours is on our devices and out of reach, the next attempt finds none of these.
async fn or_discard(attached: Result<Swap, AttachError>, devices: &Devices) -> anyhow::Result<()> {
    match attached {
        Ok(_) => Ok(()),
        Err(error) => {
            if error.is_out_of_reach() {
                devices.discard().await?;
            }
            Err(error.into())
        }
    }
}

/// Seats every guest that is there, and guards at once those that were guarded before: swapping a pinned link takes
/// microseconds. The others, for which the kernel needs milliseconds, come back.
fn seat_present<R: Answers>(
    guests: &mut Guests<R>,
    datapath: &mut Datapath,
    pins: &Pins,
    present: Vec<Interface>,
) -> anyhow::Result<HashSet<u32>> {
    // Only what is defunct: an interface may have been born, and guarded by a command, since it was listed.
    if let Err(error) = pins.sweep(|_| true) {
        tracing::warn!(error = chain(&error), "pins of vanished interfaces cannot be swept");
    }
    let pinned = pins.census()?;
    let mut unguarded = HashSet::new();
    for interface in present {
        let Some(Place::Seat(seat)) = guests.appeared(&interface) else { continue };
        if !pinned.contains(&(Program::Steer, interface.index)) {
            unguarded.insert(interface.index);
            continue;
        }
        let _ = guests.reported(match guard::guard(datapath, pins, &interface, seat) {
            Ok(swap) => {
                passed(Step::GuestSwapped);
                Report::Guarded(interface, swap)
            }
            // Its old programs drop meanwhile.
            Err(error) => {
                unguarded.insert(interface.index);
                Report::Failed(interface, error)
            }
        });
    }
    Ok(unguarded)
}
