//! `taps`: the guests' interfaces of this node.

use std::io::{Write, stderr, stdout};
use std::path::Path;
use std::sync::Arc;

use pve_imds_model::chain;
use pve_imds_model::exclude::Rule;
use pve_imds_model::pools::PoolId;
use pve_imds_model::request::{Directory, Link, UnknownCaller};
use pve_imds_model::site::Site;
use pve_imds_model::sources::origins;
use pve_imds_model::tap::TapName;
use pve_imds_model::vm::Vm;
use pve_imds_transport::Interface;
use pve_imds_transport::bpf::{PinError, Pinned, Pins, Program, Stray};
use serde_json::{Value, json};

use super::rights::Deed;
use super::{interfaces, inventory, sources};
use crate::app;
use crate::app::admission::Admission;
use crate::app::claim::Holder;
use crate::app::guests::Accept;
use crate::cli::Taps;
use crate::config::{Checked, Kinds};

/// One interface of a guest.
struct Row {
    interface: Interface,
    tap: TapName,
    /// Its kind may be a guest's. Of others only those are shown that are guarded: their guests get silence.
    accepted: bool,
    guard: Guard,
    excluded: Option<Rule>,
    vm: Result<Arc<Vm>, UnknownCaller>,
    pool: Option<PoolId>,
    warnings: usize,
}

pub(super) fn run(checked: &Checked, holder: &Holder, taps: &Taps) -> anyhow::Result<()> {
    let pin_dir = holder.says().map_or(&checked.pin_dir, |says| &says.pin_dir);
    // A daemon of another version may know other words.
    let says = holder.says().and_then(|says| Kinds::read(says.accept_kinds.iter().map(String::as_str)).ok());
    let kinds = says.as_ref().unwrap_or(&checked.accept_kinds);
    let accept = Accept { kinds: kinds.clone() };
    let inventory = inventory(checked)?;
    let admission = Admission::new(inventory.clone(), checked.exclude.clone());
    let site = app::settings(checked, &inventory).site();
    if let Err(lacking) = Deed::Taps.allowed() {
        writeln!(stderr(), "guards that are pinned elsewhere are not seen: {lacking}")?;
    }
    let guards = guards(pin_dir);
    let mut left_alone = Vec::new();
    let mut rows = Vec::new();
    for interface in interfaces()? {
        let Some(tap) = TapName::parse(&interface.name) else { continue };
        let guard = Guard::of(interface.index, &guards);
        let accepted = accept.tap(&interface).is_some();
        if !accepted {
            left_alone.push((interface.name.clone(), interface.kind.clone(), guard));
            if matches!(guard, Guard::Open | Guard::Unknown) {
                continue;
            }
        }
        let link = Link { tap, index: interface.index, since: 0 };
        let vm = inventory.find(link);
        let record = inventory.vm(tap.vmid);
        let warnings = record.as_ref().map_or(0, |record| record.warnings.len() + record.vm.notes.remarks.len());
        let pool = record.and_then(|record| record.pool);
        rows.push(Row { interface, tap, accepted, guard, excluded: admission.rule(link), vm, pool, warnings });
    }
    if let Err(error) = &guards {
        writeln!(stderr(), "whether they are guarded is unknown: {}", chain(error))?;
    }
    for (name, kind, guard) in left_alone {
        let what = match guard {
            Guard::Open => "left alone".to_owned(),
            Guard::Unknown => "not served".to_owned(),
            Guard::Guarded | Guard::Half(_) | Guard::Unpinned => format!("not served, and {}", guard.word()),
        };
        writeln!(stderr(), "{name}: {what}: a {kind}, and datapath.accept_kinds is {kinds}")?;
    }
    let mut out = stdout().lock();
    if taps.json {
        let rows: Vec<_> = rows.iter().map(|row| row.json(&site)).collect();
        writeln!(out, "{:#}", json!(rows))?;
        return Ok(());
    }
    writeln!(
        out,
        "{:<16} {:>6} {:>10} {:>4} {:<24} {:<9} {:<9} VM",
        "INTERFACE", "INDEX", "VMID", "NIC", "GUARD", "USER-DATA", "NETWORK"
    )?;
    for row in rows {
        let (name, index, vmid, nic) = (&row.interface.name, row.interface.index, row.tap.vmid.get(), row.tap.nic);
        let (user_data, network) = row.sources(&site);
        let (guard, vm) = (row.guard(), row.vm());
        writeln!(out, "{name:<16} {index:>6} {vmid:>10} {nic:>4} {guard:<24} {user_data:<9} {network:<9} {vm}")?;
    }
    Ok(())
}

/// Of an interface that is guarded and no guest's any more.
const NOT_ACCEPTED: &str = "its kind is not accepted";

/// What is known of the guard: what is pinned and what else of ours runs.
type Guards = Result<(Vec<Pinned>, Vec<Stray>), PinError>;

fn guards(dir: &Path) -> Guards {
    let pins = Pins::open(dir)?;
    // Not everyone may look for those; who may not has been told.
    Ok((pins.list()?, pins.strays().unwrap_or_default()))
}

impl Row {
    fn json(&self, site: &Site) -> Value {
        let mut json = json!({
            "interface": self.interface.name, "index": self.interface.index, "kind": self.interface.kind,
            "vmid": self.tap.vmid, "nic": self.tap.nic,
            "name": self.vm.as_ref().map(|vm| vm.hostname()).unwrap_or_default(),
            "guard": self.word(), "missing": self.guard.missing().map(Program::word),
            "excluded": self.excluded.as_ref().map(ToString::to_string),
            "problem": self.problem(), "warnings": self.warnings,
        });
        json["imds"] = self.served().map_or(Value::Null, |vm| sources::ours(vm, self.pool.as_ref(), site));
        json
    }

    /// The VM whose answers come through here.
    fn served(&self) -> Option<&Vm> {
        self.vm.as_deref().ok().filter(|_| self.accepted)
    }

    /// Why there is none.
    fn problem(&self) -> Option<String> {
        match &self.vm {
            _ if !self.accepted => Some(NOT_ACCEPTED.to_owned()),
            Ok(_) => None,
            Err(unknown) => Some(unknown.to_string()),
        }
    }

    /// That an excluded interface is open is no fault, and so it is not called that.
    fn word(&self) -> &'static str {
        match (self.guard, &self.excluded) {
            (Guard::Open, Some(_)) => "excluded",
            (guard, _) => guard.word(),
        }
    }

    fn guard(&self) -> String {
        match (self.guard, &self.excluded) {
            (Guard::Open, Some(rule)) => format!("excluded ({rule})"),
            // Until a daemon opens it.
            (guard, Some(rule)) => format!("{}, excluded ({rule})", guard.word()),
            (guard, None) => match guard.missing() {
                Some(program) => format!("{} (no {program})", guard.word()),
                None => guard.word().to_owned(),
            },
        }
    }

    fn sources(&self, site: &Site) -> (&'static str, &'static str) {
        self.served().map_or(("-", "-"), |vm| {
            let [user_data, _, network, _] = origins(vm, self.pool.as_ref(), site);
            (user_data.source.word(), network.source.word())
        })
    }

    fn vm(&self) -> String {
        let vm = match &self.vm {
            Err(unknown) => return format!("({unknown})"),
            Ok(vm) => vm,
        };
        let policy = match &vm.notes.policy {
            _ if !self.accepted => Some(format!("{NOT_ACCEPTED}: not served")),
            Some(Err(_)) => Some("its policy cannot be read: not served".to_owned()),
            Some(Ok(policy)) if !policy.enabled => Some("its policy: not served".to_owned()),
            Some(Ok(_)) | None => None,
        };
        let warnings = match self.warnings {
            0 => None,
            1 => Some("1 warning".to_owned()),
            count => Some(format!("{count} warnings")),
        };
        let remarks: Vec<String> = policy.into_iter().chain(warnings).collect();
        if remarks.is_empty() { vm.hostname() } else { format!("{} ({})", vm.hostname(), remarks.join("; ")) }
    }
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
