//! The order in which the daemon starts, follows its interfaces and stops.
//!
//! Start, restart, upgrade and downgrade are one thing: lock; programs with new maps and the next epoch; socket; then the
//! links of every interface that is pinned already, then `return`, and `funnel` last. Until then steered frames fall into
//! an empty map and never into another guest's stack. Interfaces that were never guarded come after that, newest first.
//! What is pinned stays when the daemon goes: guests get silence then, and nobody else's answer.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::pin::pin;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use pve_imds_datasources::backends::pve::{Inventory, Watcher};
use pve_imds_observability::Metrics;
use pve_imds_transport::bpf::{Datapath, Epoch, Lock, LockError, Pins, Program};
use pve_imds_transport::{Devices, Interface, LinkEvent, Links, Seat, Xsk};
use tokio::sync::mpsc;

use super::guard::{self, Guard, Report};
use super::guests::{Accept, Guests};
use super::ring::Ring;
use super::stack::{Answers, Node, Rules};
use super::{management, systemd};
use crate::config::Checked;

/// How long answers under way may take when the daemon stops.
const DRAIN: Duration = Duration::from_secs(2);

/// Everything that runs.
pub(super) struct Daemon<R> {
    guests: Guests<R>,
    guard: Guard,
    reports: mpsc::UnboundedReceiver<Report>,
    worker: JoinHandle<()>,
    ring: Ring,
    links: Links,
    devices: Devices,
    epoch: Epoch,
    /// Held for as long as we serve.
    _lock: Lock,
    /// Ends with us.
    _watcher: Watcher,
}

impl<R: Answers> Daemon<R> {
    /// Starts to serve. When this returns, every interface that was guarded before is served again, and those that were
    /// not are on the guard's list.
    pub(super) async fn start(checked: &Checked, rules: Rules, router: R) -> anyhow::Result<Self> {
        let pins = Pins::open(&checked.pin_dir)?;
        let mut lock = take_lock(&pins).await?;
        let epoch = lock.next_epoch()?;
        let (inventory, watcher) = Inventory::open(super::inventory(checked)).context("cannot start the inventory")?;
        let mut links = Links::open().await.context("cannot list network interfaces")?;
        let devices = Devices::ensure(&checked.device_prefix).await?;
        let mut datapath = Datapath::load(devices.a.index, epoch, Xsk::RING)?;
        let ring = Ring::start(devices.b.index, epoch, datapath.credit()?)
            .with_context(|| format!("cannot bind an AF_XDP socket to {}", devices.b.name))?;
        datapath.set_socket(ring.socket.as_fd())?;

        let node = Node::new(inventory, rules, checked.emulation);
        let accept = Accept { kinds: checked.accept_kinds.clone() };
        let mut guests = Guests::new(accept, node, router, ring.guests.clone());
        let unguarded = seat_present(&mut guests, &mut datapath, &pins, links.present())?;
        datapath.attach_return(&pins, &devices.a.name)?;
        datapath.attach_funnel(&pins, &devices.b.name)?;
        devices.raise().await?;

        let (guard, reports, worker) = Guard::start(datapath, pins).context("cannot start the guard's thread")?;
        unguarded.into_iter().for_each(|(interface, seat)| guard.guard(interface, seat));
        Ok(Self { guests, guard, reports, worker, ring, links, devices, epoch, _lock: lock, _watcher: watcher })
    }

    /// Opens the node's side, if the configuration has one.
    pub(super) async fn open_management(&self, checked: &Checked, metrics: Metrics) -> anyhow::Result<()> {
        let Some(address) = checked.management else { return Ok(()) };
        let (bound, management) = management::bind(address, metrics, self.guard.clone())
            .await
            .with_context(|| format!("cannot listen on {address} (management.listen)"))?;
        tracing::info!(%bound, "metrics and health");
        tokio::spawn(management);
        Ok(())
    }

    /// Tells systemd and the log.
    pub(super) fn announce(&self, checked: &Checked) {
        tokio::spawn(systemd::watchdog());
        systemd::ready(self.guests.count());
        let guests = self.guests.count();
        tracing::info!(guests, epoch = self.epoch.number(), node = checked.node_name, "serving");
    }

    /// Follows the interfaces until `stop`, or until something we stand on is gone.
    pub(super) async fn run(&mut self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                event = self.links.next() => self.follow(event.context("cannot follow network interfaces")?)?,
                Some(report) = self.reports.recv() => self.guests.reported(report),
                end = &mut self.ring.ended => match end {
                    Ok(Err(error)) => return Err(anyhow::Error::new(error).context("the AF_XDP socket is gone")),
                    _ => anyhow::bail!("the ring's thread ended"),
                },
                () = &mut stop => return Ok(()),
            }
        }
    }

    fn follow(&mut self, event: LinkEvent) -> anyhow::Result<()> {
        match event {
            LinkEvent::Appeared(interface) => {
                if let Some(seat) = self.guests.appeared(&interface) {
                    self.guard.guard(interface, seat);
                    systemd::guests(self.guests.count());
                }
            }
            LinkEvent::Vanished(interface) if self.devices.include(interface.index) => {
                anyhow::bail!("{} is gone; a restart makes it anew", interface.name);
            }
            LinkEvent::Vanished(interface) => {
                if let Some(seat) = self.guests.vanished(&interface) {
                    self.guard.release(interface, seat);
                    systemd::guests(self.guests.count());
                }
            }
        }
        Ok(())
    }

    /// Lets answers under way finish, then ends every thread. Pins stay.
    pub(super) async fn drain(self) {
        systemd::stopping();
        let guests = self.guests;
        tracing::info!(connections = guests.connections(), "stopping; guarded interfaces stay guarded");
        guests.drain();
        let drained = tokio::time::timeout(DRAIN, async {
            while guests.connections() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        if drained.await.is_err() {
            tracing::warn!(connections = guests.connections(), "answers under way were cut off");
        }
        drop(guests);
        self.ring.stop();
        self.guard.end();
        if self.worker.join().is_err() {
            tracing::error!("the guard's thread panicked");
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
) -> anyhow::Result<Vec<(Interface, Seat)>> {
    let alive: HashSet<u32> = present.iter().map(|interface| interface.index).collect();
    pins.sweep(|index| alive.contains(&index))?;
    let steered = pins.list()?.into_iter().filter(|pin| pin.program == Program::Steer && !pin.defunct);
    let pinned: HashSet<u32> = steered.map(|pin| pin.ifindex).collect();
    let mut unguarded = Vec::new();
    for interface in present {
        let Some(seat) = guests.appeared(&interface) else { continue };
        if !pinned.contains(&interface.index) {
            unguarded.push((interface, seat));
            continue;
        }
        match guard::guard(datapath, pins, &interface, seat) {
            Ok(swap) => guests.reported(Report::Guarded(interface, swap)),
            // Its old programs drop meanwhile.
            Err(error) => {
                guests.reported(Report::Failed(interface.clone(), error));
                unguarded.push((interface, seat));
            }
        }
    }
    Ok(unguarded)
}

/// The lock. A command that looks at the guard holds it for a moment; a daemon holds it for good.
async fn take_lock(pins: &Pins) -> Result<Lock, LockError> {
    for _ in 0..3 {
        match pins.lock() {
            Err(LockError::Held { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
            other => return other,
        }
    }
    pins.lock()
}
