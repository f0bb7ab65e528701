//! What keeps a set from us, each with the word that guests and operators get and with what mends it.

use std::time::Duration;

use pve_imds_model::fault::Outcome;

use super::credentials::{BadAuthority, BadToken};
use super::{MAX_BODY, TOTAL};

/// Why there is no set.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The token's file cannot be used.
    #[error("secrets.token_file: {0}")]
    Token(#[from] BadToken),
    /// The store does not let this node read the set.
    #[error("the secret store denies this node the set (HTTP {0})")]
    Denied(u16),
    /// There is no such set.
    #[error("the secret store has no such set: {0}")]
    Missing(#[from] Missing),
    /// The store cannot be asked, or does not say.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why there is no set where one was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Nothing was ever put there, or there is no such engine.
    #[error("nothing is there")]
    Never,
    /// Its latest version was deleted.
    #[error("its latest version was deleted")]
    Deleted,
}

/// Why the store could not be asked, or what is wrong with its answer. Nothing of an answer is repeated.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The file of certificates that vouch for it.
    #[error("secrets.ca_file: {0}")]
    Authority(#[from] BadAuthority),
    /// There is no connection to it.
    #[error("the secret store cannot be reached: {0}")]
    Unreachable(String),
    /// No connection in time.
    #[error("the secret store cannot be reached within {0:?}")]
    Silent(Duration),
    /// No answer in time.
    #[error("no whole answer of the secret store within {TOTAL:?}")]
    TooLate,
    /// The connection broke in the middle of an answer.
    #[error("the secret store's answer broke off")]
    BrokeOff,
    /// It sends us elsewhere.
    #[error("the secret store redirects elsewhere (HTTP {0}), and redirects are not followed")]
    Redirected(u16),
    /// Another status.
    #[error("the secret store answers HTTP {0}")]
    Status(u16),
    /// A body that is too large.
    #[error("the secret store's answer is larger than {} KiB", MAX_BODY >> 10)]
    TooLarge,
    /// No KV version 2 engine answers so.
    #[error("the secret store's answer is not that of a KV version 2 engine")]
    NoSet,
    /// The path cannot be sent as it was built.
    #[error("the path of the set is none of a URL")]
    Path,
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls,
    /// A fault of ours.
    #[error("the attempt to fetch it fell over")]
    Broke,
}

impl From<Failure> for std::sync::Arc<FetchError> {
    fn from(failure: Failure) -> Self {
        Self::new(failure.into())
    }
}

impl FetchError {
    /// The word for it.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Token(_) => Outcome::TokenUnreadable,
            Self::Denied(_) => Outcome::SecretDenied,
            Self::Missing(_) => Outcome::SetMissing,
            Self::Failed(_) => Outcome::SecretFetchFailed,
        }
    }

    /// What mends it.
    #[must_use]
    pub fn mend(&self) -> &'static str {
        match self {
            Self::Token(bad) => bad.mend(),
            Self::Denied(_) => {
                "give the token's role a policy with `read` on this path; is the token expired, or of another namespace?"
            }
            Self::Missing(Missing::Never) => {
                "put it there (bao kv put); is secrets.path_template right, with the engine's data/?"
            }
            Self::Missing(Missing::Deleted) => "bring it back (bao kv undelete), or put it there again (bao kv put)",
            Self::Failed(Failure::Authority(bad)) => bad.mend(),
            Self::Failed(Failure::Unreachable(_) | Failure::Silent(_)) => {
                "is secrets.address right, the store running and reachable from this node, and its certificate vouched for by \
                 secrets.ca_file?"
            }
            Self::Failed(Failure::TooLate | Failure::BrokeOff) => {
                "see the store's own log, and what is between it and this node"
            }
            Self::Failed(Failure::Redirected(_)) => "say the address that answers itself (secrets.address)",
            Self::Failed(Failure::Status(503)) => "unseal the store (bao status)",
            Self::Failed(Failure::Status(429 | 472 | 473)) => {
                "this is a standby; say the active one's address (secrets.address)"
            }
            Self::Failed(Failure::Status(_)) => {
                "see the store's own log; are secrets.address and secrets.namespace right?"
            }
            Self::Failed(Failure::TooLarge) => "split the set",
            Self::Failed(Failure::NoSet) => {
                "is secrets.address a store's, and secrets.path_template that of a KV version 2 engine?"
            }
            Self::Failed(Failure::Path | Failure::Tls | Failure::Broke) => "report it as a fault of pve-imds",
        }
    }

    /// Whether it says that nobody's set could be had, and not only this one.
    pub(super) fn is_an_outage(&self) -> bool {
        match self {
            Self::Token(_) => true,
            Self::Denied(_) | Self::Missing(_) => false,
            Self::Failed(failure) => match failure {
                Failure::Authority(_)
                | Failure::Unreachable(_)
                | Failure::Silent(_)
                | Failure::TooLate
                | Failure::Redirected(_)
                | Failure::Tls => true,
                Failure::Status(status) => *status >= 429,
                Failure::BrokeOff | Failure::TooLarge | Failure::NoSet | Failure::Path | Failure::Broke => false,
            },
        }
    }
}
