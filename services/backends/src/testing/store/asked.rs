//! What the store was asked.
//!
//! The clock is the system's: sockets do not stand still with tokio's.

#![expect(clippy::disallowed_types, reason = "the store has real sockets, and so it has real time")]

use std::fmt;
use std::time::Instant;

/// One question, as it came.
#[derive(Clone, PartialEq, Eq)]
pub struct Asked {
    /// `GET`, mostly.
    pub method: String,
    /// Path and query as they were sent.
    pub target: String,
    /// `X-Vault-Token`
    pub token: Option<String>,
    /// `X-Vault-Namespace`
    pub namespace: Option<String>,
    /// Whether it bore `X-Vault-Request: true`.
    pub is_request: bool,
    /// When all of it had come.
    pub when: Instant,
}

impl Asked {
    pub(super) fn now(method: &str, target: &str) -> Self {
        let (method, target) = (method.to_owned(), target.to_owned());
        Self { method, target, token: None, namespace: None, is_request: false, when: Instant::now() }
    }
}

/// Without the token.
impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked")
            .field("method", &self.method)
            .field("target", &self.target)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
