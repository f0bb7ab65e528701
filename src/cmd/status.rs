//! `guard status`: what is pinned, on whom, and what it dropped; and what of ours runs without a pin here.
//!
//! Pins are found by path, interfaces by name, and the two need not belong together: the pins of a daemon in another
//! network namespace can be seen from here, its interfaces cannot. Their indexes are then not looked up.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Write, stdout};
use std::path::PathBuf;

use pve_imds_transport::bpf::{Mode, Pinned, Pins, Program, Stray};
use serde_json::json;

use crate::app::claim::Holder;

pub(super) fn run(pins: &Pins, holder: &Holder, json: bool) -> anyhow::Result<()> {
    let daemon = match holder.pid() {
        // Also where these pins are not its own: then that has been said.
        Some(pid) => Some(pid),
        None => pins.holder()?,
    };
    super::guard::name_foreign(pins)?;
    let pinned = pins.list()?;
    let elsewhere = daemon.and_then(in_another_namespace).unwrap_or_else(|| pins.are_elsewhere().unwrap_or(false));
    let mut interfaces = by_interface(&pinned, elsewhere);
    if !elsewhere {
        add_strays(&mut interfaces, pins.strays()?);
    }
    let mut out = stdout().lock();
    if json {
        let rows: Vec<_> = interfaces
            .iter()
            .map(|((index, name), found)| {
                json!({"interface": name, "index": index, "programs": found.programs(), "mode": found.mode.map(Mode::word),
                       "drops": found.drops, "state": found.state()})
            })
            .collect();
        writeln!(out, "{:#}", json!({"daemon": daemon, "elsewhere": elsewhere, "interfaces": rows}))?;
        return Ok(());
    }
    match daemon {
        Some(pid) => writeln!(out, "pve-imds serves (pid {pid})")?,
        None if interfaces.is_empty() => writeln!(out, "nobody serves and nothing is guarded")?,
        None => writeln!(out, "nobody serves: guarded guests get silence")?,
    }
    if elsewhere {
        writeln!(out, "these interfaces are in another network namespace: indexes are of there, names not known here")?;
    }
    writeln!(out, "{:<16} {:>6} {:<16} {:<6} {:>8} STATE", "INTERFACE", "INDEX", "PROGRAMS", "MODE", "DROPS")?;
    let kept = daemon.is_none() && interfaces.values().any(|found| found.mode == Some(Mode::Serve));
    for ((index, name), found) in interfaces {
        let (name, mode) = (name.as_deref().unwrap_or("-"), found.mode.map_or("-", Mode::word));
        let drops = found.drops.map_or_else(|| "-".to_owned(), |drops| drops.to_string());
        let (programs, state) = (found.programs().join(","), found.state());
        writeln!(out, "{name:<16} {index:>6} {programs:<16} {mode:<6} {drops:>8} {state}")?;
    }
    if kept {
        writeln!(out, "nobody serves now: mode serve is what the last daemon left, and the next one takes it over")?;
    }
    Ok(())
}

/// Whether the daemon lives in another network namespace than we. `None`: it cannot be told.
fn in_another_namespace(pid: u32) -> Option<bool> {
    let of = |process: &str| -> Option<PathBuf> { fs::read_link(format!("/proc/{process}/ns/net")).ok() };
    Some(of("self")? != of(&pid.to_string())?)
}

/// What is pinned on one interface.
#[derive(Debug, Default)]
struct Found {
    programs: Vec<Program>,
    /// What `steer` does with frames that are ours.
    mode: Option<Mode>,
    drops: Option<u64>,
    defunct: bool,
    /// Some of these programs run without a pin of ours.
    stray: bool,
}

impl Found {
    fn programs(&self) -> Vec<&'static str> {
        self.programs.iter().map(|program| program.word()).collect()
    }

    /// One program is there twice, which only one that is pinned and one that is not can be.
    fn is_doubled(&self) -> bool {
        self.programs.iter().any(|program| self.programs.iter().filter(|other| *other == program).count() > 1)
    }

    fn state(&self) -> &'static str {
        let has = |program| self.programs.contains(&program);
        match (self.stray, self.defunct, has(Program::Steer), has(Program::Shield)) {
            (true, ..) if self.is_doubled() => "doubled",
            (true, ..) => "unpinned",
            (false, true, _, _) => "defunct",
            (false, false, true, true) => "guarded",
            (false, false, false, false) => "ours",
            (false, false, _, _) => "half guarded",
        }
    }
}

/// What runs here and is pinned elsewhere, or nowhere.
fn add_strays(interfaces: &mut Interfaces, strays: Vec<Stray>) {
    for stray in strays {
        let found = interfaces.entry((stray.ifindex, stray.name)).or_default();
        found.programs.push(stray.program);
        found.stray = true;
    }
}

/// By index and name.
type Interfaces = BTreeMap<(u32, Option<String>), Found>;

fn by_interface(pins: &[Pinned], elsewhere: bool) -> Interfaces {
    let mut interfaces = Interfaces::new();
    for pin in pins {
        let name = pin.name.clone().filter(|_| !elsewhere);
        let found = interfaces.entry((pin.ifindex, name)).or_default();
        found.programs.push(pin.program);
        // From here an interface of another namespace looks gone; whether it is, only there is known.
        found.defunct |= pin.defunct && !elsewhere;
        if pin.program == Program::Steer {
            found.mode = Some(pin.mode);
        }
        if let Some(drops) = pin.drops {
            found.drops = Some(found.drops.unwrap_or(0) + drops);
        }
    }
    interfaces
}
