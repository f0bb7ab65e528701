//! How a look gets on, for whoever waits for it.
//!
//! In comes what is about to be read; out comes a number that grows with every configuration, so that a slow tree can be
//! told from a hung one, and the name of what a hung one hangs at. Pure.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use pve_imds_model::vm::VmId;

/// Shared by the thread that reads and the one that waits.
#[derive(Debug, Default)]
pub(super) struct Progress {
    files: AtomicU64,
    at: Mutex<Cow<'static, str>>,
}

impl Progress {
    /// A file of the whole cluster is read next.
    pub(super) fn reads(&self, name: &'static str) {
        self.set(name.into());
    }

    /// A VM's configuration is read next.
    pub(super) fn reads_config(&self, vmid: VmId) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.set(format!("{vmid}.conf").into());
    }

    fn set(&self, name: Cow<'static, str>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    /// Configurations that were begun.
    pub(super) fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// The file that was begun last.
    pub(super) fn at(&self) -> Cow<'static, str> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
