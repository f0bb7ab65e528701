//! The daemon: built, run, drained.
//!
//! In comes a checked configuration; out comes service until a signal. Start, restart, upgrade and downgrade are one
//! order (design §4): lock, programs with new maps and the next epoch, socket, then the links of every interface that
//! is pinned already, then `return`, and `funnel` last; until then steered frames fall into an empty map and never into
//! another guest's stack. Interfaces that were never guarded come after that, newest first. What is pinned stays when
//! the daemon goes: guests get silence then, and nobody else's answer.

pub mod guard;
pub mod guests;
mod management;
mod ring;
pub mod stack;
mod systemd;

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use pve_imds_datasources::backends::pve as backend;
use pve_imds_datasources::{Router, Settings};
use pve_imds_middleware::guard::GuardSettings;
use pve_imds_observability::Metrics;
use pve_imds_transport::bpf::{Datapath, Lock, LockError, Pins, Program};
use pve_imds_transport::{Devices, LinkEvent, Links};

use self::guard::{Guard, Report};
use self::guests::{Accept, Guests};
use self::ring::Ring;
use self::stack::{Answers, Node, Rules};
use crate::config::Checked;

/// How long answers under way may take when the daemon stops.
const DRAIN: Duration = Duration::from_secs(2);

/// Describes every metric of the daemon. Call once after the recorder is installed.
pub fn describe() {
    pve_imds_transport::describe();
    pve_imds_middleware::telemetry::describe();
    backend::describe_metrics();
    guard::describe();
    guests::describe();
}

/// The inventory's settings.
#[must_use]
pub fn inventory(checked: &Checked) -> backend::Settings {
    backend::Settings {
        dir: PathBuf::from(&checked.pve_dir),
        node: checked.node_name.clone(),
        ..backend::Settings::default()
    }
}

/// The router of this configuration.
#[must_use]
pub fn router(checked: &Checked) -> Router {
    Router::new(Settings { nocloud_enabled: checked.nocloud_enabled })
}

/// What guests may ask in this configuration.
#[must_use]
pub fn rules(checked: &Checked) -> Rules {
    let guard = GuardSettings { allowed_hosts: checked.allowed_hosts.clone(), ..GuardSettings::default() };
    Rules { guard, ..Rules::default() }
}

/// Serves `router` to every guest until `stop`.
///
/// # Errors
/// The daemon cannot start, or something it stands on is gone.
pub async fn serve<R: Answers>(
    checked: Checked,
    metrics: Metrics,
    rules: Rules,
    router: R,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let pins = Pins::open(&checked.pin_dir)?;
    let mut lock = take_lock(&pins).await?;
    let epoch = lock.next_epoch()?;
    let (inventory, _watcher) = backend::Inventory::open(inventory(&checked)).context("cannot start the inventory")?;
    let mut links = Links::open().await.context("cannot list network interfaces")?;
    let devices = Devices::ensure(&checked.device_prefix).await?;
    let mut datapath = Datapath::load(devices.a.index, epoch)?;
    let mut ring = Ring::start(devices.b.index, epoch)
        .with_context(|| format!("cannot bind an AF_XDP socket to {}", devices.b.name))?;
    datapath.set_socket(ring.socket.as_fd())?;

    let node = Node::new(inventory, rules, checked.emulation);
    let accept = Accept { kinds: checked.accept_kinds.clone() };
    let mut guests = Guests::new(accept, node, router, ring.guests.clone());
    let present = links.present();
    let alive: HashSet<u32> = present.iter().map(|interface| interface.index).collect();
    pins.sweep(|index| alive.contains(&index))?;
    let pinned: HashSet<u32> = pins
        .list()?
        .iter()
        .filter(|pin| pin.program == Program::Steer && !pin.defunct)
        .map(|pin| pin.ifindex)
        .collect();
    let mut unguarded = Vec::new();
    for interface in present {
        let Some(seat) = guests.appeared(&interface) else { continue };
        if !pinned.contains(&interface.index) {
            unguarded.push((interface, seat));
            continue;
        }
        match guard::guard(&mut datapath, &pins, &interface, seat) {
            Ok(swap) => guests.reported(Report::Guarded(interface, swap)),
            // Its old programs drop meanwhile.
            Err(error) => {
                guests.reported(Report::Failed(interface.clone(), error));
                unguarded.push((interface, seat));
            }
        }
    }
    datapath.attach_return(&pins, &devices.a.name)?;
    datapath.attach_funnel(&pins, &devices.b.name)?;
    devices.raise().await?;

    let (guard, mut reports, worker) = Guard::start(datapath, pins).context("cannot start the guard's thread")?;
    for (interface, seat) in unguarded {
        guard.guard(interface, seat);
    }
    if let Some(address) = checked.management {
        let (bound, management) = management::bind(address, metrics, guard.clone())
            .await
            .with_context(|| format!("cannot listen on {address} (management.listen)"))?;
        tracing::info!(%bound, "metrics and health");
        tokio::spawn(management);
    }
    tokio::spawn(systemd::watchdog());
    systemd::ready(guests.count());
    tracing::info!(guests = guests.count(), epoch = epoch.number(), node = checked.node_name, "serving");

    let mut stop = pin!(stop);
    let outcome = loop {
        tokio::select! {
            event = links.next() => match event.context("cannot follow network interfaces")? {
                LinkEvent::Appeared(interface) => {
                    if let Some(seat) = guests.appeared(&interface) {
                        guard.guard(interface, seat);
                        systemd::guests(guests.count());
                    }
                }
                LinkEvent::Vanished(interface) if [devices.a.index, devices.b.index].contains(&interface.index) => {
                    break Err(anyhow::anyhow!("{} is gone; a restart makes it anew", interface.name));
                }
                LinkEvent::Vanished(interface) => {
                    if let Some(seat) = guests.vanished(&interface) {
                        guard.release(interface, seat);
                        systemd::guests(guests.count());
                    }
                }
            },
            Some(report) = reports.recv() => guests.reported(report),
            end = &mut ring.ended => match end {
                Ok(Err(error)) => break Err(anyhow::Error::new(error).context("the AF_XDP socket is gone")),
                _ => break Err(anyhow::anyhow!("the ring's thread ended")),
            },
            () = &mut stop => break Ok(()),
        }
    };
    systemd::stopping();
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
    ring.stop();
    guard.end();
    if worker.join().is_err() {
        tracing::error!("the guard's thread panicked");
    }
    outcome
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
