//! Signs beside the runtime, in turns.
//!
//! In come a key and what it shall sign; out goes a token. A signature takes a good part of a millisecond of a core, so
//! it has to wait for its turn ([`Turns`]). Refused: nothing; how many may wait is bounded where requests are.

use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::rand::rand_bytes;
use pve_imds_model::identity::Payload;
use uuid::Builder;

use super::{CannotSign, SigningKey};
use crate::turns::{GivenUp, Turns};

/// Signs. Clones have the same turns.
#[derive(Clone, Debug, Default)]
pub struct Signer(Turns);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum Unsigned {
    /// OpenSSL could not.
    #[error(transparent)]
    Cannot(#[from] CannotSign),
    /// Nobody signs any more.
    #[error(transparent)]
    GivenUp(#[from] GivenUp),
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
        Ok(self.0.run(move || key.sign(&payload)).await??)
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
