//! `guard status` and `guard remove`: the pinned kernel programs, with or without a daemon.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, bail};
use pve_imds_transport::bpf::{LockError, Pinned, Pins, Program};
use serde_json::json;

use crate::config::Checked;

pub(super) fn status(checked: &Checked, json: bool) -> anyhow::Result<()> {
    let pins = Pins::open(&checked.pin_dir)?;
    let daemon = match pins.lock() {
        Ok(_) => None,
        Err(LockError::Held { pid, .. }) => Some(pid),
        Err(error) => return Err(error.into()),
    };
    let interfaces = by_interface(&pins.list()?);
    let mut out = stdout().lock();
    if json {
        let rows: Vec<_> = interfaces
            .iter()
            .map(|((index, name), found)| {
                json!({"interface": name, "index": index, "programs": found.programs(), "state": found.state()})
            })
            .collect();
        writeln!(out, "{:#}", json!({"daemon": daemon, "interfaces": rows}))?;
        return Ok(());
    }
    match daemon {
        Some(pid) => writeln!(out, "pve-imds serves (pid {pid})")?,
        None if interfaces.is_empty() => writeln!(out, "nobody serves and nothing is guarded")?,
        None => writeln!(out, "nobody serves: guarded guests get silence")?,
    }
    writeln!(out, "{:<16} {:>6} {:<16} STATE", "INTERFACE", "INDEX", "PROGRAMS")?;
    for ((index, name), found) in interfaces {
        let name = name.as_deref().unwrap_or("-");
        writeln!(out, "{name:<16} {index:>6} {:<16} {}", found.programs().join(","), found.state())?;
    }
    Ok(())
}

pub(super) fn remove(checked: &Checked) -> anyhow::Result<()> {
    let pins = Pins::open(&checked.pin_dir)?;
    // Held until all are gone, so that no daemon starts to pin in between.
    let _lock = match pins.lock() {
        Err(LockError::Held { pid, .. }) => {
            bail!("pve-imds serves (pid {pid}); stop it first: systemctl stop pve-imds")
        }
        other => other?,
    };
    let count = pins.list()?.len();
    pins.remove_all().context("some programs are still attached")?;
    match count {
        0 => writeln!(stdout(), "nothing was guarded")?,
        _ => writeln!(stdout(), "removed {count} links; nothing guards the metadata address now")?,
    }
    let device = format!("{}a", checked.device_prefix);
    if Path::new("/sys/class/net").join(&device).exists() {
        writeln!(stdout(), "our devices stay; to remove them: ip link del {device}")?;
    }
    Ok(())
}

/// What is pinned on one interface.
#[derive(Debug, Default)]
struct Found {
    programs: Vec<Program>,
    defunct: bool,
}

impl Found {
    fn programs(&self) -> Vec<&'static str> {
        self.programs.iter().map(|program| program.word()).collect()
    }

    fn state(&self) -> &'static str {
        let has = |program| self.programs.contains(&program);
        match (self.defunct, has(Program::Steer), has(Program::Shield)) {
            (true, _, _) => "defunct",
            (false, true, true) => "guarded",
            (false, false, false) => "ours",
            (false, _, _) => "half guarded",
        }
    }
}

fn by_interface(pins: &[Pinned]) -> BTreeMap<(u32, Option<String>), Found> {
    let mut interfaces = BTreeMap::<_, Found>::new();
    for pin in pins {
        let found = interfaces.entry((pin.ifindex, pin.name.clone())).or_default();
        found.programs.push(pin.program);
        found.defunct |= pin.defunct;
    }
    interfaces
}
