//! `guard attach` and `guard remove`: the pinned kernel programs, with or without a daemon.
//!
//! Where the pins are is said by argument or variable, else by the daemon that serves here. Where none does, `remove` asks
//! the configuration and does without one that is broken; `attach` reads none: it is there for the time in which one is.

use std::collections::BTreeSet;
use std::io::{Write, stderr, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use pve_imds_model::chain;
use pve_imds_model::tap::TapName;
use pve_imds_observability::say_error;
use pve_imds_transport::Interface;
use pve_imds_transport::bpf::{Held, Idle, LockError, PinError, Pinned, Pins, Program, Stray, removal};

use super::Usage;
use super::rights::Deed;
use crate::app::claim::Holder;
use crate::app::guests::Accept;
use crate::cli::PinDir;
use crate::config::{Config, ConfigError, Kinds, Loaded};

/// Guards one interface, or all of these kinds. Goes on after a failure, and fails in the end.
pub(super) fn attach(name: Option<&str>, accept_kinds: &str, pins: &PinDir) -> anyhow::Result<()> {
    if let Some(name) = name.filter(|name| TapName::parse(name).is_none()) {
        // On an uplink or a bridge the guard would keep the node itself from speaking of the address.
        let why = "is no guest's interface; those are called tap, VMID, i, NIC (tap106i0)";
        return Err(Usage(format!("{name:?} {why}")).into());
    }
    let dir = match named(pins)? {
        Some(dir) => dir,
        None => super::holder()?.says().map_or_else(default_dir, |says| says.pin_dir.clone()),
    };
    let mut present = super::interfaces()?;
    match name {
        Some(name) => present.retain(|interface| interface.name == name),
        None => {
            // Only here: the guard of one interface shall not fail for a variable that is none of its business.
            let kinds = Kinds::spelled(accept_kinds)
                .map_err(|why| Usage(format!("--accept-kinds (PVE_IMDS_DATAPATH_ACCEPT_KINDS) {why}")))?;
            let accept = Accept { kinds: kinds.clone() };
            present.retain(|interface| TapName::parse(&interface.name).is_some());
            let (accepted, left_alone): (Vec<_>, Vec<_>) =
                present.into_iter().partition(|interface| accept.tap(interface).is_some());
            present = accepted;
            for Interface { name, kind, .. } in left_alone {
                writeln!(stderr(), "{name}: left alone: a {kind}, and --accept-kinds is {kinds}")?;
            }
            if present.is_empty() {
                writeln!(stdout(), "there is no interface of a VM here, of kind {kinds}")?;
            }
        }
    }
    if let Some(name) = name.filter(|_| present.is_empty()) {
        bail!("there is no interface {name}; see `ip link`");
    }
    Deed::Attach.allowed()?;
    let pins = Pins::open(&dir)?;
    let mut idle = match &present[..] {
        [one] => Idle::for_one(&pins, one.index)?,
        all => Idle::load(u32::try_from(all.len()).unwrap_or(u32::MAX))?,
    };
    let mut failed = 0;
    // The newest first: its guest is just starting.
    for interface in present.iter().rev() {
        match idle.guard(&pins, &interface.name, interface.index) {
            Ok(Held::Attached) => writeln!(stdout(), "{}: attached", interface.name)?,
            Ok(Held::Pinned) => writeln!(stdout(), "{}: was guarded, and is pinned now", interface.name)?,
            Ok(Held::Already) => writeln!(stdout(), "{}: already guarded", interface.name)?,
            // Between the list and its turn it may have gone, and then there is nothing to guard.
            Err(_) if name.is_none() && !interface.is_there() => {}
            Err(error) => {
                failed += 1;
                let said = format!("{}: not guarded: {}", interface.name, chain(&error));
                if !say_error(&said) {
                    writeln!(stderr(), "{said}")?;
                }
            }
        }
    }
    match failed {
        0 => Ok(()),
        1 if name.is_some() => bail!("the interface is open"),
        _ => bail!("{failed} of {} interfaces are open", present.len()),
    }
}

/// Takes every guard off.
pub(super) fn remove(pins: &PinDir, holder: &Holder, dir: &Path) -> anyhow::Result<()> {
    let serves = |pid| anyhow::anyhow!("pve-imds serves (pid {pid}); stop it first: systemctl stop pve-imds");
    // Of this network namespace, wherever its pins are.
    if let Some(pid) = holder.pid() {
        return Err(serves(pid));
    }
    let still = "some programs are still attached";
    let pins = match Pins::open(dir) {
        Ok(pins) => pins,
        // Nobody said that they are there: so they may be elsewhere, and what runs here is found without.
        Err(PinError::Missing { .. } | PinError::NotBpf { .. }) if pins.pin_dir.is_none() => {
            writeln!(stderr(), "nothing is pinned in {}; looking at what runs on the interfaces here", dir.display())?;
            return say_removed(&[], &Pins::detach_all().context(still)?);
        }
        Err(error) => return Err(error.into()),
    };
    // Held until all are gone, so that no daemon starts to pin in between. The lock files stay: whoever waits for one
    // would wait for a file that nobody else finds any more.
    let _lock = match pins.lock() {
        Err(LockError::Held { pid, .. }) => return Err(serves(pid)),
        other => other?,
    };
    name_foreign(&pins)?;
    let pinned = pins.list()?;
    if pins.are_elsewhere()? {
        return Err(PinError::Elsewhere { dir: dir.to_owned() }.into());
    }
    say_removed(&pinned, &pins.remove_all().context(still)?)
}

/// What was pinned and what else was there, all of it off now.
fn say_removed(pinned: &[Pinned], strays: &[Stray]) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    let pins = pinned.iter().filter(|pin| !pin.defunct).map(|pin| (pin.program, pin.ifindex, pin.name.as_deref()));
    let strays = strays.iter().map(|stray| (stray.program, stray.ifindex, stray.name.as_deref()));
    let links: BTreeSet<_> = pins.chain(strays).collect();
    for (_, index, name) in links.iter().filter(|(program, ..)| *program == Program::Steer) {
        writeln!(out, "{} (index {index}): open", name.unwrap_or("-"))?;
    }
    match links.len() {
        0 => writeln!(out, "nothing was guarded")?,
        count => writeln!(out, "removed {count} links; nothing guards the metadata address now")?,
    }
    if let Some((.., Some(device))) = links.iter().find(|(program, ..)| *program == Program::Return) {
        writeln!(out, "our devices stay; to remove them: ip link del {device}")?;
    }
    Ok(())
}

/// Says what has the name of a pin and is none: it may be why an interface is open.
pub(super) fn name_foreign(pins: &Pins) -> anyhow::Result<()> {
    for path in pins.foreign()? {
        let shown = path.display();
        let removal = removal(&path);
        writeln!(stderr(), "{shown} has the name of a pin and is none of ours: remove it with `{removal}`")?;
    }
    Ok(())
}

/// Where the pins are that are meant: by argument or variable, else by the daemon that serves here, else by the
/// configuration. One that cannot be read is no reason not to look where they are by default.
pub(super) fn dir(
    pins: &PinDir,
    holder: &Holder,
    load: impl FnOnce() -> Result<Loaded, ConfigError>,
) -> anyhow::Result<PathBuf> {
    Ok(match (named(pins)?, holder.says()) {
        (Some(dir), Some(says)) if dir != says.pin_dir => {
            let (here, there) = (dir.display(), says.pin_dir.display());
            writeln!(stderr(), "the daemon that serves here has its pins in {there}; looking at {here} (--pin-dir)")?;
            dir
        }
        (Some(dir), _) => dir,
        (None, Some(says)) => says.pin_dir.clone(),
        (None, None) => match load() {
            Ok(loaded) => loaded.checked.pin_dir,
            Err(error) => {
                let dir = default_dir();
                let (why, shown) = (chain(&error).replace('\n', "; "), dir.display());
                writeln!(stderr(), "the configuration cannot be used ({why}); looking at {shown} (--pin-dir)")?;
                dir
            }
        },
    })
}

fn named(pins: &PinDir) -> Result<Option<PathBuf>, Usage> {
    match &pins.pin_dir {
        Some(dir) if !dir.is_absolute() => Err(Usage("--pin-dir must be an absolute path".to_owned())),
        dir => Ok(dir.clone()),
    }
}

fn default_dir() -> PathBuf {
    Path::new(&Config::default().datapath.pin_dir).to_owned()
}
