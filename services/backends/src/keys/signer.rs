//! Signs beside the runtime, in turns.
//!
//! In come a key and what it shall sign; out goes a token. A signature takes a good part of a millisecond of a core: so
//! that guests who ask for many leave the others theirs, only half of the cores sign at a time, and whoever comes then waits
//! for his turn. Refused: nothing; how many may wait is bounded where requests are.

use std::sync::Arc;
use std::thread::available_parallelism;

use openssl::error::ErrorStack;
use openssl::rand::rand_bytes;
use pve_imds_model::identity::Payload;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use uuid::Builder;

use super::{CannotSign, SigningKey};

/// Signs. Clones have the same turns.
#[derive(Clone, Debug)]
pub struct Signer(Arc<Semaphore>);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum Unsigned {
    /// OpenSSL could not.
    #[error(transparent)]
    Cannot(#[from] CannotSign),
    /// The daemon ends, or whoever signed fell over.
    #[error("the signature was given up")]
    GivenUp,
}

impl Default for Signer {
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        Self(Arc::new(Semaphore::new((cores / 2).max(1))))
    }
}

impl Signer {
    /// A name that no other token has: a random UUID (RFC 9562 §5.4).
    ///
    /// # Errors
    /// OpenSSL has no randomness.
    pub fn name() -> Result<String, ErrorStack> {
        let mut bytes = [0; 16];
        rand_bytes(&mut bytes)?;
        Ok(Builder::from_random_bytes(bytes).into_uuid().to_string())
    }

    /// The token.
    ///
    /// # Errors
    /// [`Unsigned`]
    pub async fn sign(&self, key: Arc<SigningKey>, payload: Payload) -> Result<String, Unsigned> {
        // Goes along, because who waits may leave: the core is taken for as long as the signature takes.
        let turn = Arc::clone(&self.0).acquire_owned().await.map_err(|_| Unsigned::GivenUp)?;
        let signed = spawn_blocking(move || {
            let signed = key.sign(&payload);
            drop(turn);
            signed
        });
        Ok(signed.await.map_err(|_| Unsigned::GivenUp)??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_names_are_the_same() {
        let [one, other] = [(), ()].map(|()| Signer::name().unwrap());
        assert_ne!(one, other);
        assert_eq!((one.len(), one.as_bytes()[14]), (36, b'4'));
    }
}
