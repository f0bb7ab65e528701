//! What a guest's connections hold, for tests that watch the bounds.

use std::fmt;
use std::sync::Arc;

use crate::stream::{Shared, TapStream};

/// Looks at the stack of one guest.
#[derive(Clone)]
pub struct Probe(Arc<Shared>);

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Connections of the guest, whatever their stage.
    pub connections: usize,
    /// Those of them whose handshake is not done.
    pub half_open: usize,
    /// Bytes of buffers that all guests' connections hold.
    pub buffers: usize,
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").finish_non_exhaustive()
    }
}

impl Probe {
    /// Of the guest whose stream this is.
    #[must_use]
    pub fn of(stream: &TapStream) -> Self {
        Self(stream.shared().clone())
    }

    /// Looks.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        self.0.lock().holdings()
    }
}
