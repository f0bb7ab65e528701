//! `taps`: the guests' interfaces of this node.

use std::io::{Write, stderr, stdout};
use std::path::Path;

use pve_imds_model::chain;
use pve_imds_model::request::{Directory, Link};
use pve_imds_model::tap::TapName;
use pve_imds_transport::Interface;
use pve_imds_transport::bpf::{PinError, Pinned, Pins, Program, Stray};
use serde_json::json;

use super::rights::Deed;
use super::{interfaces, inventory};
use crate::app::claim::Holder;
use crate::app::guests::Accept;
use crate::cli::Taps;
use crate::config::{Checked, Kinds};

pub(super) fn run(checked: &Checked, holder: &Holder, taps: &Taps) -> anyhow::Result<()> {
    let pin_dir = holder.says().map_or(&checked.pin_dir, |says| &says.pin_dir);
    // A daemon of another version may know other words.
    let says = holder.says().and_then(|says| Kinds::read(says.accept_kinds.iter().map(String::as_str)).ok());
    let kinds = says.as_ref().unwrap_or(&checked.accept_kinds);
    let interfaces = interfaces()?;
    let accept = Accept { kinds: kinds.clone() };
    let inventory = inventory(checked)?;
    if let Err(lacking) = Deed::Taps.allowed() {
        writeln!(stderr(), "guards that are pinned elsewhere are not seen: {lacking}")?;
    }
    let guards = guards(pin_dir);
    let mut left_alone = Vec::new();
    let mut rows = Vec::new();
    for interface in &interfaces {
        let Some(tap) = TapName::parse(&interface.name) else { continue };
        if accept.tap(interface).is_none() {
            left_alone.push(interface);
            continue;
        }
        let (name, problem) = match inventory.find(Link { tap, index: interface.index }) {
            Ok(vm) => (vm.hostname(), None),
            Err(unknown) => (String::new(), Some(unknown.to_string())),
        };
        rows.push((interface, tap, name, Guard::of(interface.index, &guards), problem));
    }
    if let Err(error) = &guards {
        writeln!(stderr(), "whether they are guarded is unknown: {}", chain(error))?;
    }
    for Interface { name, kind, .. } in left_alone {
        writeln!(stderr(), "{name}: left alone: a {kind}, and datapath.accept_kinds is {kinds}")?;
    }
    let mut out = stdout().lock();
    if taps.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(interface, tap, name, guard, problem)| {
                json!({"interface": interface.name, "index": interface.index, "kind": interface.kind, "vmid": tap.vmid,
                       "nic": tap.nic, "name": name, "guard": guard.word(), "missing": guard.missing().map(Program::word),
                       "problem": problem})
            })
            .collect();
        writeln!(out, "{:#}", json!(rows))?;
        return Ok(());
    }
    writeln!(out, "{:<16} {:>6} {:>10} {:>4} {:<24} VM", "INTERFACE", "INDEX", "VMID", "NIC", "GUARD")?;
    for (interface, tap, name, guard, problem) in rows {
        let vm = problem.map_or(name, |problem| format!("({problem})"));
        let guard = match guard.missing() {
            Some(program) => format!("{} (no {program})", guard.word()),
            None => guard.word().to_owned(),
        };
        let (index, vmid, nic) = (interface.index, tap.vmid.get(), tap.nic);
        writeln!(out, "{:<16} {index:>6} {vmid:>10} {nic:>4} {guard:<24} {vm}", interface.name)?;
    }
    Ok(())
}

/// What is known of the guard: what is pinned and what else of ours runs.
type Guards = Result<(Vec<Pinned>, Vec<Stray>), PinError>;

fn guards(dir: &Path) -> Guards {
    let pins = Pins::open(dir)?;
    // Not everyone may look for those; who may not has been told.
    Ok((pins.list()?, pins.strays().unwrap_or_default()))
}

/// What stands between an interface and whoever speaks as the metadata address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// The pins cannot be looked at.
    Unknown,
    Guarded,
    /// Only one program is on, and not this one.
    Half(Program),
    /// Both are on, and not both are pinned here.
    Unpinned,
    Open,
}

impl Guard {
    fn of(index: u32, guards: &Guards) -> Self {
        let Ok((pinned, strays)) = guards else { return Self::Unknown };
        let is_pinned =
            |program| pinned.iter().any(|pin| pin.ifindex == index && pin.program == program && !pin.defunct);
        let is_on = |program| {
            is_pinned(program) || strays.iter().any(|stray| stray.ifindex == index && stray.program == program)
        };
        match (is_on(Program::Steer), is_on(Program::Shield)) {
            (true, true) if is_pinned(Program::Steer) && is_pinned(Program::Shield) => Self::Guarded,
            (true, true) => Self::Unpinned,
            (true, false) => Self::Half(Program::Shield),
            (false, true) => Self::Half(Program::Steer),
            (false, false) => Self::Open,
        }
    }

    /// As `guard status` says it.
    fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Guarded => "guarded",
            Self::Half(_) => "half guarded",
            Self::Unpinned => "unpinned",
            Self::Open => "open",
        }
    }

    fn missing(self) -> Option<Program> {
        match self {
            Self::Half(program) => Some(program),
            _ => None,
        }
    }
}
