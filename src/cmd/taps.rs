//! `taps`: the guests' interfaces of this node.

use std::collections::HashSet;
use std::io::{Write, stdout};

use pve_imds_model::request::{Directory, Link};
use pve_imds_transport::bpf::{Pins, Program};
use serde_json::json;

use super::{interfaces, inventory};
use crate::app::guests::Accept;
use crate::cli::Taps;
use crate::config::Checked;

pub(super) fn run(checked: &Checked, taps: &Taps) -> anyhow::Result<()> {
    let interfaces = interfaces()?;
    let accept = Accept { kinds: checked.accept_kinds.clone() };
    let inventory = inventory(checked)?;
    let guarded = guarded(checked);
    let rows: Vec<_> = interfaces
        .iter()
        .filter_map(|interface| Some((interface, accept.tap(interface)?)))
        .map(|(interface, tap)| {
            let found = inventory.find(Link { tap, index: interface.index });
            let (name, problem) = match &found {
                Ok(vm) => (vm.hostname(), None),
                Err(unknown) => (String::new(), Some(unknown.reason())),
            };
            let guard = match &guarded {
                None => "unknown",
                Some(guarded) if guarded.contains(&interface.index) => "guarded",
                Some(_) => "open",
            };
            (interface, tap, name, guard, problem)
        })
        .collect();
    let mut out = stdout().lock();
    if taps.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(interface, tap, name, guard, problem)| {
                json!({"interface": interface.name, "index": interface.index, "kind": interface.kind, "vmid": tap.vmid,
                       "nic": tap.nic, "name": name, "guard": guard, "problem": problem})
            })
            .collect();
        writeln!(out, "{:#}", json!(rows))?;
        return Ok(());
    }
    writeln!(out, "{:<16} {:>6} {:>10} {:>4} {:<8} VM", "INTERFACE", "INDEX", "VMID", "NIC", "GUARD")?;
    for (interface, tap, name, guard, problem) in rows {
        let vm = problem.map_or(name, |problem| format!("({problem})"));
        let (index, vmid, nic) = (interface.index, tap.vmid.get(), tap.nic);
        writeln!(out, "{:<16} {index:>6} {vmid:>10} {nic:>4} {guard:<8} {vm}", interface.name)?;
    }
    Ok(())
}

/// Interfaces with both programs; `None` without a look at the pins.
fn guarded(checked: &Checked) -> Option<HashSet<u32>> {
    let pins = Pins::open(&checked.pin_dir).and_then(|pins| pins.list()).ok()?;
    let with = |program| -> HashSet<u32> {
        pins.iter().filter(|pin| pin.program == program && !pin.defunct).map(|pin| pin.ifindex).collect()
    };
    Some(&with(Program::Steer) & &with(Program::Shield))
}
