//! The daemon: built, run, drained.
//!
//! In comes a checked configuration; out comes service until a signal. [`daemon`] has its life, [`session`] the
//! order in which it begins to serve, [`stack`] what happens to a request, [`control`] what root may ask, [`guests`] who has a seat, [`admission`] who
//! has none, [`guard`] the kernel
//! programs' thread.

pub mod admission;
pub mod claim;
pub mod control;
mod daemon;
pub mod guard;
pub mod guests;
mod health;
mod listener;
mod management;
mod publication;
mod ring;
mod session;
pub mod stack;
mod systemd;

use std::path::PathBuf;
use std::sync::Arc;

use pve_imds_datasources::backends::clock::Clock;
use pve_imds_datasources::backends::openbao::{self, OpenBao};
use pve_imds_datasources::backends::pve::{self as backend, Inventory};
use pve_imds_datasources::backends::secrets::Secrets;
use pve_imds_datasources::{Passwords, Router, Settings};
use pve_imds_middleware::guard::GuardSettings;
use pve_imds_observability::Metrics;

use self::daemon::Daemon;
use self::stack::{Answers, Rules};
use crate::config::{Checked, SecretStore};

/// Describes every metric of the daemon. Call once after the recorder is installed.
pub fn describe() {
    pve_imds_transport::describe();
    pve_imds_middleware::telemetry::describe();
    backend::describe_metrics();
    openbao::describe();
    pve_imds_datasources::describe();
    daemon::describe();
    guard::describe();
    guests::describe();
}

/// The inventory's settings.
#[must_use]
pub fn inventory(checked: &Checked) -> backend::Settings {
    backend::Settings {
        dir: PathBuf::from(&checked.pve_dir),
        node: checked.node_name.clone(),
        signing: checked.signing.clone(),
        serving: checked.publication.is_some(),
        ..backend::Settings::default()
    }
}

/// What this configuration serves.
#[must_use]
pub fn settings(checked: &Checked, inventory: &Arc<Inventory>) -> Settings {
    Settings {
        nocloud_enabled: checked.nocloud_enabled,
        cloudinit_enabled: checked.cloudinit_enabled,
        node: checked.node_name.clone(),
        resolver: inventory.resolver().clone(),
        inventory: Some(Arc::clone(inventory)),
        vendor: Arc::clone(&checked.vendor),
        passwords: Passwords::default(),
        keys: inventory.keys().clone(),
        clock: Clock::default(),
        token_keys: inventory.token_keys().clone(),
        token_rules: Arc::clone(&checked.token_rules),
        secrets: checked.secrets.as_ref().map(|SecretStore { settings, rules }| {
            Secrets::new(Arc::clone(inventory), OpenBao::new(settings.clone()), rules.clone())
        }),
    }
}

/// The router of this configuration. Guests tell it their passwords.
#[must_use]
pub fn router(checked: &Checked, inventory: &Arc<Inventory>, passwords: &Passwords) -> Router {
    Router::new(Settings { passwords: passwords.clone(), ..settings(checked, inventory) })
}

/// What guests may ask in this configuration.
#[must_use]
pub fn rules(checked: &Checked) -> Rules {
    let guard = GuardSettings { allowed_hosts: checked.allowed_hosts.clone(), ..GuardSettings::default() };
    Rules { guard, ..Rules::default() }
}

/// Serves what `router` makes of the configuration, the inventory and what guests say to every guest until `stop`.
///
/// # Errors
/// The daemon cannot start.
pub async fn serve<R: Answers>(
    checked: Checked,
    metrics: Metrics,
    rules: Rules,
    router: impl FnOnce(&Checked, &Arc<Inventory>, &Passwords) -> R,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut daemon = Daemon::start(&checked, rules, router).await?;
    daemon.open_management(&checked, metrics).await;
    daemon.open_publication(&checked).await;
    daemon.open_control();
    daemon.announce(&checked);
    let outcome = daemon.run(stop).await;
    daemon.drain().await;
    outcome
}
