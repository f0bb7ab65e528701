//! The daemon's life: it starts, follows its interfaces, begins a new session when one is lost, and stops.
//!
//! What a session is and in which order it begins stands in [`session`](super::session). This is what goes on when one
//! ends: a device that somebody removed, a socket that failed, a thread that died cost a new session and no restart.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use metrics::{counter, describe_counter};
use pve_imds_datasources::Passwords;
use pve_imds_datasources::backends::pve::{Inventory, Watcher};
use pve_imds_model::chain;
use pve_imds_observability::Metrics;
use pve_imds_transport::bpf::{Lock, LockError, Pins};
use pve_imds_transport::{Backoff, Devices, Links};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::admission::Admission;
use super::claim::{Claim, Refused, Says};
use super::control::{Control, Known};
use super::guests::Accept;
use super::health::Health;
use super::listener::{self, Address};
use super::publication::{self, Shown};
use super::session::{Base, Broken, Session};
use super::stack::{Answers, Node, Rules};
use super::{management, systemd};
use crate::config::Checked;
use crate::steps::{Step, passed};

/// How often our devices are glanced at although nothing was heard of them: not everything about them is told.
const TEND: Duration = Duration::from_millis(500);

/// How long a start waits for a daemon that is ending: as long as that drains, and half as long again.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Between two attempts to get the lock: a lock that becomes free is no event that a runtime hears of.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Everything that runs.
pub(super) struct Daemon<R> {
    base: Base<R>,
    /// `None` while a new one is being tried for.
    session: Option<Session<R>>,
    health: watch::Sender<Health>,
    /// Of the inventory.
    changes: watch::Receiver<u64>,
    /// Ends with us.
    watcher: Watcher,
    known: Known,
    /// `None`: it could not be had. Goes before the claim it stands beside.
    control: Option<Control>,
    /// Held for as long as we serve.
    claim: Claim,
}

impl<R: Answers> Daemon<R> {
    /// Starts to serve.
    pub(super) async fn start(
        checked: &Checked,
        rules: Rules,
        router: impl FnOnce(&Checked, &Arc<Inventory>, &Passwords) -> R,
    ) -> anyhow::Result<Self> {
        let pins = Pins::open(&checked.pin_dir)?;
        let (lock, claim) = take_right(&pins, checked).await?;
        passed(Step::LockTaken);
        let (inventory, watcher) = Inventory::open(super::inventory(checked)).context("cannot start the inventory")?;
        passed(Step::InventoryOpen);
        let admission = Admission::new(inventory.clone(), checked.exclude.clone());
        let changes = admission.changes();
        let links = Links::open().await.context("cannot list network interfaces")?;
        passed(Step::LinksListed);
        let known = Known { inventory: inventory.clone(), passwords: Passwords::default() };
        let mut base = Base {
            device_prefix: checked.device_prefix.clone(),
            accept: Accept { kinds: checked.accept_kinds.clone() },
            admission,
            bucket: rules.bucket,
            router: router(checked, &inventory, &known.passwords),
            node: Node::new(inventory, rules, checked.emulation),
            pins,
            lock,
            links,
            fresh: None,
        };
        let session = Session::open(&mut base).await?;
        let health = watch::Sender::new(Health::of(&session, &base.admission));
        Ok(Self { base, session: Some(session), health, changes, watcher, known, control: None, claim })
    }

    /// Opens the node's side, if the configuration has one. Whoever waits for us to be ready finds it open, unless it
    /// cannot be had now: guests do not wait for that.
    pub(super) async fn open_management(&self, checked: &Checked, metrics: Metrics) {
        let Some(at) = checked.management else { return };
        let address = Address { option: management::OPTION, at };
        let health = self.health.subscribe();
        let open = move |listener: TcpListener| {
            tracing::info!(bound = %listener.local_addr().unwrap_or(at), "metrics and health");
            passed(Step::ManagementOpen);
            management::serve(listener, metrics, health)
        };
        open_at(address, open).await;
    }

    /// Opens the outside, if the configuration has one; the same goes for it.
    pub(super) async fn open_publication(&self, checked: &Checked) {
        let Some(at) = checked.publication else { return };
        let address = Address { option: publication::OPTION, at };
        let inventory = &self.known.inventory;
        let shown = Shown {
            tokens: inventory.token_keys().clone(),
            serving: inventory.serving_keys().clone(),
            issuer: checked.token_rules.issuer.clone(),
        };
        let open = move |listener: TcpListener| {
            tracing::info!(bound = %listener.local_addr().unwrap_or(at), "the key set for those who verify");
            publication::serve(listener, shown)
        };
        open_at(address, open).await;
    }

    /// Opens what root asks on. Guests are served without it.
    pub(super) fn open_control(&mut self) {
        match Control::open(&self.claim, self.known.clone()) {
            Ok(control) => self.control = Some(control),
            Err(error) => tracing::error!(
                path = %self.claim.socket().display(), %error,
                "root cannot be answered on this socket; guests are served, and `pve-imds password` hears nothing until \
                 what is in the way is removed and the daemon restarted"
            ),
        }
    }

    /// Tells systemd and the log.
    pub(super) fn announce(&self, checked: &Checked) {
        tokio::spawn(systemd::watchdog());
        let Some(session) = &self.session else { return };
        let guests = session.guests.count();
        systemd::ready(guests);
        tracing::info!(guests, epoch = session.epoch.number(), node = checked.node_name, "serving");
        passed(Step::Ready);
    }

    /// Follows the interfaces until `stop`.
    ///
    /// # Errors
    /// Something died that cannot be begun anew.
    pub(super) async fn run(&mut self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let mut stop = pin!(stop);
        let mut beat = tokio::time::interval(TEND);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // `None` only once we were asked to stop in the middle of a rebuild.
        while let Some(session) = &mut self.session {
            let lost = tokio::select! {
                event = self.base.links.next() => session.follow(event).await,
                report = session.reports.recv() => match report {
                    Some(report) => {
                        session.reported(report);
                        None
                    }
                    None => Some(Broken::Guard),
                },
                Ok(()) = self.changes.changed() => {
                    session.review();
                    self.known.review();
                    None
                }
                end = &mut session.ring.ended => match end {
                    Ok(Err(error)) => Some(Broken::Socket(error)),
                    _ => Some(Broken::Ring),
                },
                _ = beat.tick() => {
                    anyhow::ensure!(self.watcher.is_alive(), "the inventory's thread ended; a restart follows the VMs again");
                    session.glance().await
                }
                () = &mut stop => return Ok(()),
            };
            if let Some(lost) = lost {
                tokio::select! {
                    () = self.begin_anew(lost) => beat.reset_immediately(),
                    () = &mut stop => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// A new session in the place of a lost one, however often that must be tried. Guests get silence meanwhile.
    async fn begin_anew(&mut self, lost: Broken) {
        let begun = Instant::now();
        let Some(session) = self.session.take() else { return };
        passed(Step::RebuildBegun);
        self.health.send_replace(Health::rebuilding(lost.word()));
        // Its ring and its thread end before anything else, so that nobody acts on what is gone.
        let (lost, left) = session.abort(lost).await;
        let reason = lost.word();
        self.health.send_replace(Health::rebuilding(reason));
        tracing::warn!(reason, %lost, "the datapath is lost; rebuilding it");
        systemd::rebuilding();
        let mut backoff = Backoff::default();
        let mut said = String::new();
        for attempt in 1.. {
            match self.open_instead_of(left.as_ref()).await {
                Ok(session) => {
                    let guests = session.guests.count();
                    self.health.send_replace(Health::of(&session, &self.base.admission));
                    self.session = Some(session);
                    systemd::guests(guests);
                    counter!(REBUILDS, "reason" => reason).increment(1);
                    let took = begun.elapsed();
                    tracing::warn!(reason, attempt, guests, ?took, "the datapath is rebuilt");
                    passed(Step::RebuildDone);
                    return;
                }
                Err(error) => {
                    counter!(FAILURES).increment(1);
                    let error = chain(error.as_ref());
                    if said != error {
                        tracing::error!(reason, attempt, error, "the datapath cannot be rebuilt; trying again");
                        said.clone_from(&error);
                    }
                    self.health.send_replace(Health::failing(reason, error));
                    tokio::time::sleep(backoff.wait()).await;
                }
            }
        }
    }

    async fn open_instead_of(&mut self, left: Option<&Devices>) -> anyhow::Result<Session<R>> {
        if let Some(devices) = left {
            devices.discard().await?;
            passed(Step::DevicesDiscarded);
        }
        Session::open(&mut self.base).await
    }

    /// Lets answers under way finish, then ends every thread. Pins stay.
    pub(super) async fn drain(self) {
        systemd::stopping();
        passed(Step::Stopping);
        let Some(session) = self.session else { return };
        let connections = session.guests.connections();
        tracing::info!(connections, "stopping; guarded interfaces stay guarded");
        session.drain().await;
    }
}

/// Opens what listens there, now or, in the background, when it can be had.
async fn open_at<F: Future<Output = Infallible> + Send + 'static>(
    address: Address,
    open: impl FnOnce(TcpListener) -> F + Send + 'static,
) {
    match listener::bind(address).await {
        Ok(listener) => drop(tokio::spawn(open(listener))),
        Err(refused) => drop(tokio::spawn(async { open(refused.insist().await).await })),
    }
}

/// The right to serve: from these pins, and in this network namespace. A daemon that was told to stop lets its last
/// answers out first; one that was not holds its right for good.
async fn take_right(pins: &Pins, checked: &Checked) -> anyhow::Result<(Lock, Claim)> {
    let says =
        Says { pid: std::process::id(), pin_dir: checked.pin_dir.clone(), accept_kinds: checked.accept_kinds.words() };
    let begun = Instant::now();
    loop {
        let held = match pins.lock() {
            Ok(lock) => match Claim::take(&says) {
                Ok(claim) => return Ok((lock, claim)),
                Err(held @ Refused::Held(_)) => anyhow::Error::from(held),
                Err(other) => return Err(other.into()),
            },
            Err(held @ LockError::Held { .. }) => held.into(),
            Err(other) => return Err(other.into()),
        };
        anyhow::ensure!(begun.elapsed() < LAST_WORDS, held);
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

const REBUILDS: &str = "pve_imds_datapath_rebuilds_total";
const FAILURES: &str = "pve_imds_datapath_rebuild_failures_total";

/// Describes the metrics of this room. Call once after the recorder is installed.
pub(super) fn describe() {
    describe_counter!(REBUILDS, "Datapath sessions (devices, programs, socket) that were begun anew, by what was lost");
    describe_counter!(
        FAILURES,
        "Attempts to begin a datapath session anew that failed; guests get silence meanwhile and the log says why"
    );
    for reason in Broken::words() {
        counter!(REBUILDS, "reason" => reason).absolute(0);
    }
    counter!(FAILURES).absolute(0);
}
