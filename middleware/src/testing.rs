//! For this room's own tests: a log that is a string, and an interface.
#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use pve_imds_model::request::Link;
use pve_imds_model::tap::TapName;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::EnvFilter;

/// Interface 7, NIC 0 of VM 106.
pub(crate) fn link() -> Link {
    Link { tap: TapName::parse("tap106i0").unwrap(), index: 7, since: 0 }
}

/// What was logged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Logs this thread's events from `level` upwards, while the guard lives.
    pub(crate) fn install(&self, level: &str) -> DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(level))
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
