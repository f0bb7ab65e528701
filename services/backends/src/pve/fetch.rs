//! One VM's file: read, understood, and what can be seen of it.
//!
//! In comes where it is and what was known of the VM; out goes what it turned out to be, for [`judge`](super::verdict::judge).
//! Proxmox renames whole files into place, and every line of theirs is well-formed: what differs from that was left by an
//! editor, a shell or a fault, and is half of something. An ordinary edit is none of it, for each sign is something that no
//! version of Proxmox leaves, or takes away without being told to.

use std::panic;
use std::sync::Arc;

use pve_imds_model::vm::{Vm, VmId};
use pve_imds_model::{chain, conf};

use super::files::{self, Listed};
use super::inventory::{Digest, Record};
use super::outline::Outline;
use super::verdict::{Found, Sign};

/// A configuration that was not known yet.
pub(super) struct Fresh {
    pub(super) record: Record,
    /// The options of its main section.
    pub(super) outline: Outline,
    blank: bool,
    /// The last line has an end.
    ended: bool,
    stray_line: Option<usize>,
}

/// What was known before.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) record: &'a Record,
    pub(super) outline: &'a Outline,
    /// By what its file is known to be half, although it is believed.
    pub(super) flaw: Option<Sign>,
}

impl Fresh {
    /// Reads and parses a configuration. `None`: it is the one we know.
    pub(super) fn read(vmid: VmId, listed: &Listed, known: Option<Digest>) -> Result<Option<Self>, String> {
        let bytes = files::read(&listed.path(vmid)).map_err(|error| chain(&error))?;
        let digest = Digest::of(&bytes);
        if known == Some(digest) { Ok(None) } else { Self::of(vmid, listed, &bytes, digest).map(Some) }
    }

    /// Parses one, whose digest is known.
    pub(super) fn of(vmid: VmId, listed: &Listed, bytes: &[u8], digest: Digest) -> Result<Self, String> {
        // Whoever may edit one VM's Notes chooses these bytes; no choice may stop the others from being read.
        let parsed = panic::catch_unwind(|| conf::parse(vmid, bytes));
        let parsed = parsed.map_err(|_| String::from("the parser failed"))?;
        let record = Record {
            ready: parsed.is_ready(),
            warnings: parsed.warnings.into(),
            vm: Arc::new(parsed.vm),
            owner: Arc::clone(&listed.place.owner),
            path: listed.path(vmid).into(),
            digest,
            pool: None,
            stale: false,
        };
        Ok(Self {
            record,
            outline: Outline::of(options(bytes)),
            blank: bytes.trim_ascii().is_empty(),
            ended: bytes.ends_with(b"\n"),
            stray_line: parsed.stray_line,
        })
    }

    /// By what it is known to be half of something, whatever stood there before.
    pub(super) fn flaw(&self) -> Option<Sign> {
        match self {
            Self { blank: true, .. } => Some(Sign::Blank),
            Self { ended: false, .. } => Some(Sign::OpenLine),
            Self { stray_line: Some(line), .. } => Some(Sign::Damaged { line: *line }),
            // Under a lock a VM is being made, cloned or destroyed.
            Self { record, .. } if !record.ready && record.vm.lock.is_none() => Some(Sign::Bare),
            _ => None,
        }
    }

    /// What it is, after `before`.
    pub(super) fn found(&self, before: Option<Before<'_>>) -> Found {
        let Some(before) = before else { return self.flaw().map_or(Found::Content, Found::Half) };
        let (vm, known) = (&self.record.vm, &before.record.vm);
        match self.flaw() {
            // Who lives with such a line may go on editing the others.
            Some(Sign::Damaged { .. }) if matches!(before.flaw, Some(Sign::Damaged { .. })) => {}
            Some(sign) => return Found::Half(sign),
            None => {}
        }
        if self.record.ready && known.uuid.is_some() && vm.uuid.is_none() {
            Found::Half(Sign::NoUuid)
        } else if self.record.ready && self.outline.is_cut_from(before.outline) && says_less(vm, known) {
            Found::Half(Sign::Cut)
        } else {
            Found::Content
        }
    }
}

/// Whether the main section is another one, as far as it means something to us, and not by its Notes: Proxmox writes those
/// first, so what has others was edited and not cut.
fn says_less(vm: &Vm, known: &Vm) -> bool {
    let meant = |vm: &Vm| Vm {
        vmgenid: None,
        pending_keys: Vec::new(),
        snapshots: Vec::new(),
        special_sections: Vec::new(),
        ..vm.clone()
    };
    vm.description == known.description && meant(vm) != meant(known)
}

/// The lines of the main section that are neither blank nor of the Notes.
fn options(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = bytes.split(|byte| *byte == b'\n').take_while(|line| !line.starts_with(b"["));
    lines.filter(|line| !line.starts_with(b"#") && !line.trim_ascii().is_empty())
}
