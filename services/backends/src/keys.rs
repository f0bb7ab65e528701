//! The nodes' keys: what seals, what signs, what others check signatures with and what TLS is spoken with.
//!
//! In come the bytes of PEM files; out go a [`SealingKey`] that was derived for one purpose, a [`SigningKey`] and its
//! [`PublicKey`], and a [`ServingKey`] that TLS is spoken with. [`NodeKeys`], [`TokenKeys`] and [`ServingKeys`] hold those
//! that are in force: whoever keeps the inventory reads the files, a request only looks here. Refused: to show a private
//! key to anybody, and to ask a terminal for a passphrase.

mod sealing;
mod serving;
mod signer;
mod signing;
mod tokens;

use openssl::pkey::PKey;
use zeroize::Zeroizing;

pub use sealing::{CannotSeal, NodeKeys, SealingKey};
pub use serving::{BadPair, ServingKey, ServingKeys};
pub use signer::{Signer, Unsigned};
pub use signing::{CannotSign, PublicKey, SigningKey};
pub use tokens::{KeySet, TokenKeys};

/// Why a file gives no key. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// Half a file, a certificate, a key that is locked with a passphrase.
    #[error("it holds no private key that can be read")]
    NoKey,
    /// Half a file, a key.
    #[error("it holds no certificate that can be read")]
    NoCertificate,
    /// OpenSSL cannot derive from it.
    #[error("no key can be derived from it")]
    Underivable,
    /// A key of another kind: tokens are signed with RSA (`RS256`, RFC 7518 §3.3) and nothing else.
    #[error("its key is not an RSA key")]
    NotRsa,
    /// An RSA key that RFC 7518 §3.3 does not allow for `RS256`.
    #[error("its RSA key has {0} bits; 2048 are the least")]
    Short(u32),
}

impl BadKey {
    /// The file is whole, and what it holds is of no use: nothing that was known before is still there.
    pub(crate) fn is_of_the_whole(self) -> bool {
        matches!(self, Self::NotRsa | Self::Short(_))
    }
}

/// The first private key of a PEM file, PKCS#1 or PKCS#8, of whatever kind, as the DER of PKCS#8: the same key in another
/// envelope is the same.
fn private_key(pem: &[u8]) -> Result<Zeroizing<Vec<u8>>, BadKey> {
    // A passphrase that nobody has: without one OpenSSL would ask for it.
    let key = PKey::private_key_from_pem_passphrase(pem, b"").map_err(|_| BadKey::NoKey)?;
    key.private_key_to_pkcs8().map(Zeroizing::new).map_err(|_| BadKey::NoKey)
}
