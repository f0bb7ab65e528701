//! `taps`: the guests' interfaces of this node.

use std::io::{Write, stdout};

use pve_imds_model::request::{Directory, Link};
use pve_imds_transport::bpf::{Pinned, Pins, Program};
use serde_json::json;

use super::{interfaces, inventory};
use crate::app::guests::Accept;
use crate::cli::Taps;
use crate::config::Checked;

pub(super) fn run(checked: &Checked, taps: &Taps) -> anyhow::Result<()> {
    let interfaces = interfaces()?;
    let accept = Accept { kinds: checked.accept_kinds.clone() };
    let inventory = inventory(checked)?;
    let pinned = Pins::open(&checked.pin_dir).and_then(|pins| pins.list()).ok();
    let rows: Vec<_> = interfaces
        .iter()
        .filter_map(|interface| Some((interface, accept.tap(interface)?)))
        .map(|(interface, tap)| {
            let found = inventory.find(Link { tap, index: interface.index });
            let (name, problem) = match &found {
                Ok(vm) => (vm.hostname(), None),
                Err(unknown) => (String::new(), Some(unknown.reason())),
            };
            (interface, tap, name, Guard::of(interface.index, pinned.as_deref()), problem)
        })
        .collect();
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

/// What stands between an interface and whoever speaks as the metadata address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// The pins cannot be looked at.
    Unknown,
    Guarded,
    /// Only one program is on, and not this one.
    Half(Program),
    Open,
}

impl Guard {
    fn of(index: u32, pinned: Option<&[Pinned]>) -> Self {
        let Some(pinned) = pinned else { return Self::Unknown };
        let has = |program| pinned.iter().any(|pin| pin.ifindex == index && pin.program == program && !pin.defunct);
        match (has(Program::Steer), has(Program::Shield)) {
            (true, true) => Self::Guarded,
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
