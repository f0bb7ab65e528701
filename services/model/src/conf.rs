//! `/etc/pve/nodes/<node>/qemu-server/<vmid>.conf`: bytes become a [`Vm`], as Proxmox's own non-strict loader reads them.
//!
//! In come a VMID and the file's bytes; out comes always a [`Vm`], with a [`Warning`] for each line that Proxmox would
//! drop or that does not do what it seems to. Refused is nothing as a whole: a bad line costs that line. Only the main section describes the running VM;
//! `[PENDING]`, snapshots and special sections are told by name and never leak into it.

mod doubt;
mod line;

use std::collections::BTreeSet;

use percent_encoding::percent_decode;

pub use self::doubt::Doubt;
use self::doubt::{Places, merged};
use self::line::{Header, Line};
use crate::notes::Notes;
pub use crate::options::BadOption;
pub use crate::property::BadProperty;
pub use crate::sshkeys::BadKey;
use crate::vm::{Vm, VmId, Weight};

/// How many warnings are kept of one file: enough to mend it by, little enough to log.
pub const MAX_WARNINGS: usize = 50;

/// What a configuration says.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The VM as its main section describes it.
    pub vm: Vm,
    /// The lines that were dropped or are doubted, in file order, the first [`MAX_WARNINGS`] of them.
    pub warnings: Vec<Warning>,
    /// The first line, from 1, that is no line of a configuration at all. Nothing that writes configurations, in any
    /// version of Proxmox, leaves one; and no bound on warnings hides it.
    pub stray_line: Option<usize>,
    ready: bool,
}

impl Parsed {
    /// Whether the configuration describes a VM already (or still). It does not while it is empty or holds nothing but
    /// Notes and a lock: Proxmox writes such a file first when it makes or clones a VM, and last when it destroys one.
    /// A lock beside other options means nothing here: guests run under locks.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }
}

/// A line that Proxmox drops, and so do we, or one that does not do what it seems to. Holds no value from the file: values
/// can be secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct Warning {
    /// Line of the file, from 1.
    pub line: usize,
    /// Byte of the line, from 1: where the value begins that cannot be used, else 1.
    pub column: usize,
    /// Why.
    pub reason: Reason,
}

/// Why a line was dropped, or what speaks against it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Neither `key: value` nor anything else a configuration holds.
    #[error("not a line of a configuration")]
    NotALine,
    /// A section nobody knows: skipped up to the next header.
    #[error("unknown section, skipped")]
    UnknownSection,
    /// A section that stood before: the later one replaces it.
    #[error("the section is there twice, the later one counts")]
    SectionTwice,
    /// `delete:` outside `[PENDING]`.
    #[error("`delete` belongs to the pending section")]
    MisplacedDelete,
    /// An option with this key (its first 40 characters) has no such value, or is no option.
    #[error("`{key}`: {why}")]
    Option {
        /// The key.
        key: String,
        /// What is wrong with it.
        why: BadOption,
    },
    /// The line counts, and does not do what it seems to.
    #[error("`{key}`: {why}")]
    Doubt {
        /// The key.
        key: String,
        /// What speaks against it.
        why: Doubt,
    },
}

impl Reason {
    /// Whether nothing of the line counts.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        !matches!(self, Self::Doubt { .. })
    }
}

/// Reads a configuration. Never fails and takes time in proportion to its length.
#[must_use]
pub fn parse(vmid: VmId, bytes: &[u8]) -> Parsed {
    let mut loader = Loader::new(vmid);
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        if let Err(reason) = loader.take(number, line) {
            if reason == Reason::NotALine {
                loader.stray_line.get_or_insert(number);
            }
            loader.warn(number, column(line, &reason), reason);
        }
    }
    loader.finish()
}

/// Where in its line the reason is. An option that nobody knows is wrong from its key on.
fn column(line: &[u8], reason: &Reason) -> usize {
    match (reason, Line::read(line)) {
        (Reason::Option { why: BadOption::Unknown, .. }, _) => 1,
        (Reason::Option { why: BadOption::Key(at, _), .. }, Line::Option(_, value)) => value_column(line, value) + at,
        (Reason::Option { .. }, Line::Option(_, value)) => value_column(line, value),
        _ => 1,
    }
}

/// Where in its line the value begins, which is a slice of it.
fn value_column(line: &[u8], value: &[u8]) -> usize {
    value.as_ptr().addr() - line.as_ptr().addr() + 1
}

/// Where the next line belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Main,
    Pending,
    /// Snapshots, special and unknown sections.
    Skipped,
}

struct Loader {
    section: Section,
    vm: Vm,
    /// Takes the values of `[PENDING]`, which must be checked to know their keys and are never used.
    pending: Vm,
    notes: Option<String>,
    main_keys: bool,
    pending_keys: BTreeSet<String>,
    snapshots: BTreeSet<String>,
    special_sections: BTreeSet<String>,
    places: Places,
    warnings: Vec<Warning>,
    stray_line: Option<usize>,
}

impl Loader {
    fn new(vmid: VmId) -> Self {
        Self {
            section: Section::Main,
            vm: Vm::new(vmid),
            pending: Vm::new(vmid),
            notes: None,
            main_keys: false,
            pending_keys: BTreeSet::new(),
            snapshots: BTreeSet::new(),
            special_sections: BTreeSet::new(),
            places: Places::default(),
            warnings: Vec::new(),
            stray_line: None,
        }
    }

    fn warn(&mut self, line: usize, column: usize, reason: Reason) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(Warning { line, column, reason });
        }
    }

    fn take(&mut self, number: usize, bytes: &[u8]) -> Result<(), Reason> {
        let line = Line::read(bytes);
        if let Line::Header(header) = line {
            return self.enter(header);
        }
        match (self.section, line) {
            (Section::Skipped, _) | (_, Line::Blank | Line::SnapshotState) => Ok(()),
            (Section::Main, Line::Notes(text)) => {
                let notes = self.notes.get_or_insert_default();
                notes.push_str(&percent_decode(text).decode_utf8_lossy());
                notes.push('\n');
                Ok(())
            }
            (Section::Main, Line::Description(text)) => {
                let notes = self.notes.get_or_insert_default();
                notes.push_str(&percent_decode(text).decode_utf8_lossy());
                Ok(())
            }
            (Section::Pending, Line::Notes(_) | Line::Description(_)) => self.pend("description"),
            (Section::Main, Line::Delete) => Err(Reason::MisplacedDelete),
            (Section::Pending, Line::Delete) => self.pend("delete"),
            (section, Line::Option(key, value)) => {
                let text = String::from_utf8_lossy(value);
                self.option(section, key, &text)?;
                if section == Section::Main {
                    for doubt in self.places.put(key, &text, (number, value_column(bytes, value))) {
                        self.warnings = merged(std::mem::take(&mut self.warnings), [doubt]);
                    }
                }
                Ok(())
            }
            (_, Line::Other | Line::Header(_)) => Err(Reason::NotALine),
        }
    }

    fn enter(&mut self, header: Header<'_>) -> Result<(), Reason> {
        self.section = Section::Skipped;
        let new = match header {
            Header::Pending => {
                // The first header ends the main section for good, so only another `[PENDING]` can have left keys.
                let new = self.pending_keys.is_empty();
                self.section = Section::Pending;
                self.pending_keys.clear();
                new
            }
            Header::Special(name) => self.special_sections.insert(name.to_owned()),
            Header::Snapshot(name) => self.snapshots.insert(name.to_owned()),
            Header::Unknown => return Err(Reason::UnknownSection),
        };
        if new { Ok(()) } else { Err(Reason::SectionTwice) }
    }

    fn pend(&mut self, key: &str) -> Result<(), Reason> {
        self.pending_keys.insert(key.to_owned());
        Ok(())
    }

    fn option(&mut self, section: Section, key: &str, value: &str) -> Result<(), Reason> {
        let vm = if section == Section::Main { &mut self.vm } else { &mut self.pending };
        crate::options::apply(vm, key, value)
            .map_err(|why| Reason::Option { key: key.chars().take(40).collect(), why })?;
        if section == Section::Pending {
            return self.pend(if key == "cdrom" { "ide2" } else { key });
        }
        self.main_keys |= !matches!(key, "lock" | "description");
        Ok(())
    }

    fn finish(mut self) -> Parsed {
        // Without a line of Notes, `description` may still have been set as an ordinary option (to a single blank).
        if let Some(notes) = self.notes {
            self.vm.description = Some(notes.trim_end().to_owned());
        }
        // The first NIC makes room for four, and most VMs have one.
        self.vm.nets.shrink_to_fit();
        self.vm.notes =
            self.vm.description.as_deref().map(|text| Notes::parse(text, &self.vm.nets)).unwrap_or_default();
        self.vm.weight = Weight::of(&self.vm);
        self.vm.pending_keys = self.pending_keys.into_iter().collect();
        self.vm.snapshots = self.snapshots.into_iter().collect();
        self.vm.special_sections = self.special_sections.into_iter().collect();
        let warnings = merged(self.warnings, self.places.doubts(&self.vm));
        Parsed { vm: self.vm, warnings, stray_line: self.stray_line, ready: self.main_keys }
    }
}

#[cfg(test)]
mod tests;
