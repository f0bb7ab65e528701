//! What each command does, one file each.

mod config;
mod doctor;
mod guard;
mod inspect;
mod jwks;
mod password;
mod rights;
mod serve;
mod sources;
mod status;
mod taps;
mod view;

use std::fmt::Display;
use std::io::{Write, stderr};
use std::path::Path;

use anyhow::Context;
use pve_imds_datasources::backends::pve::{Inventory, Settings};
use pve_imds_model::conf::Warning;
use pve_imds_model::request::UnknownCaller;
use pve_imds_model::vm::{Vm, VmId};
use pve_imds_transport::bpf::Pins;
use pve_imds_transport::{Interface, Links};

use crate::app;
use crate::app::claim::Holder;
use crate::cli::{Cli, Command, ConfigCommand, GuardCommand};
use crate::config::{Checked, Loaded, load};

use self::rights::Deed;

/// The arguments cannot be meant.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub String);

/// Does it.
///
/// # Errors
/// What went wrong; [`Usage`] and configuration errors are the user's to mend.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let load = || load(cli.config.as_deref());
    match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => serve::run(load()?.whole()?),
        Command::Config(ConfigCommand::Check) => config::check(&load()?.whole()?),
        Command::Config(ConfigCommand::Show) => config::show(&load()?.whole()?),
        Command::View(view) => view::run(&in_part(load()?)?, &view),
        Command::Doctor(doctor) => doctor::run(&in_part(load()?)?, &doctor),
        Command::Inspect(inspect) => inspect::run(load(), &inspect),
        Command::Jwks => jwks::run(&load()?.checked),
        Command::Password(password) => password::run(vmid(&password.vmid)?),
        Command::Taps(taps) => taps::run(&in_part(load()?)?, &holder()?, &taps),
        Command::Guard(GuardCommand::Attach { config, .. }) if cli.config.is_some() || config.is_some() => {
            let instead = "leave --config out, and say --pin-dir and --accept-kinds where they are not the usual ones";
            Err(Usage(format!("guard attach reads no configuration: {instead}")).into())
        }
        Command::Guard(GuardCommand::Attach { name, all: _, accept_kinds, pins, config: _ }) => {
            guard::attach(name.as_deref(), &accept_kinds, &pins)
        }
        Command::Guard(GuardCommand::Status { json, pins }) => {
            let holder = holder()?;
            let pins = Pins::open(&guard::dir(&pins, &holder, load)?)?;
            Deed::Status.allowed()?;
            status::run(&pins, &holder, json)
        }
        Command::Guard(GuardCommand::Remove { pins }) => {
            let holder = holder()?;
            let dir = guard::dir(&pins, &holder, load)?;
            Deed::Remove.allowed()?;
            guard::remove(&pins, &holder, &dir)
        }
    }
}

/// The configuration, for those who only look: what of the vendor data cannot be used is said and left out.
fn in_part(loaded: Loaded) -> anyhow::Result<Checked> {
    let (unusable, checked) = loaded.in_part();
    for what in unusable {
        writeln!(stderr(), "warning: {what}; it is left out here, and a daemon does not start with it")?;
    }
    Ok(checked)
}

/// A VMID from the command line.
fn vmid(text: &str) -> Result<VmId, Usage> {
    VmId::parse(text).ok_or_else(|| Usage(format!("{text} is no VMID; VMIDs are 100 to 999999999")))
}

/// Every interface of this namespace, the oldest first.
fn interfaces() -> anyhow::Result<Vec<Interface>> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let present = runtime.block_on(async { anyhow::Ok(Links::open().await?.present()) });
    present.context("cannot list network interfaces")
}

/// Who serves here. What of that cannot be known is said, and is no reason to do nothing.
fn holder() -> anyhow::Result<Holder> {
    let asked = Holder::ask();
    let unknown = match &asked {
        Ok(Holder::Hidden) => Some("only root is told".to_owned()),
        Ok(Holder::Daemon(None)) => Some("a daemon that has not yet said it".to_owned()),
        Ok(Holder::Nobody | Holder::Daemon(Some(_))) => None,
        Err(why) => Some(why.to_string()),
    };
    if let Some(why) = unknown {
        writeln!(stderr(), "who serves here, and where it has its pins, is not known: {why}")?;
    }
    Ok(asked.unwrap_or(Holder::Nobody))
}

/// The inventory as it is now. Nothing follows it: a command reads once.
fn inventory(checked: &Checked) -> anyhow::Result<std::sync::Arc<Inventory>> {
    // An empty one is named where it is read.
    _ = checked.tree()?;
    let settings = Settings { events: false, serving: false, ..app::inventory(checked) };
    let (inventory, _watcher) = Inventory::open(settings).context("cannot read the VMs' configurations")?;
    Ok(inventory)
}

/// What in a configuration and in its Notes could not be used, each with the file and the line.
fn warnings(file: &impl Display, warnings: &[Warning], vm: &Vm) -> Vec<String> {
    let lines = warnings.iter().map(|warning| format!("{file}: {warning}"));
    let remarks = vm.notes.remarks.iter().map(|remark| format!("{file}: Notes, {remark}"));
    lines.chain(remarks).collect()
}

/// Why a VM was not found, with the mend.
fn no_such_vm(vmid: VmId, dir: &Path, inventory: &Inventory) -> anyhow::Error {
    let dir = dir.display();
    match inventory.why_unknown(vmid) {
        UnknownCaller::NoList => {
            anyhow::anyhow!(
                "VM {vmid}: {dir} cannot be read (pve_dir); is pve-cluster running? It takes root to read it"
            )
        }
        UnknownCaller::NoConfig => anyhow::anyhow!("VM {vmid}: no configuration under {dir} (pve_dir)"),
        why => anyhow::anyhow!("VM {vmid}: {why}; whoever runs this must be able to read it"),
    }
}
