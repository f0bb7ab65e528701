//! The nodes' private keys, as far as they seal what guests hold for us.
//!
//! In come the bytes of a PEM file; out goes a [`SealingKey`] that was derived from them for one purpose, so that what is
//! known here signs nothing and opens no TLS. [`NodeKeys`] has one for each node of the cluster: what one node has sealed
//! any other can open, after a migration too. Whoever keeps the inventory reads the files; a request only looks here.
//! Refused: to show a key to anybody (there is no `Debug`, and memory is wiped when one goes), and to ask a terminal for
//! a passphrase.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use openssl::error::ErrorStack;
use openssl::kdf::{HkdfMode, hkdf};
use openssl::md::Md;
use openssl::rand::rand_bytes;
use openssl::symm::{Cipher, decrypt_aead, encrypt_aead};
use zeroize::Zeroizing;

use super::BadKey;

/// What the key is for (RFC 5869 §3.2): another purpose is another key.
const PURPOSE: &[u8] = b"pve-imds EC2 session token, AES-256-GCM, 1";

/// Bytes of a nonce. Random ones collide: a thousand guests that ask for 200 tokens a second each, for a month, make one
/// such pair with a probability of 2^-19.
const NONCE: usize = 12;

/// Bytes of a tag, all there are.
const TAG: usize = 16;

/// AES-256's key, of one node. Wiped when dropped.
#[expect(missing_debug_implementations, reason = "nothing prints it")]
pub struct SealingKey(Zeroizing<[u8; 32]>);

/// OpenSSL could not seal.
#[derive(Debug, thiserror::Error)]
#[error("OpenSSL cannot seal")]
pub struct CannotSeal(#[source] ErrorStack);

impl SealingKey {
    /// Derives it (HKDF-SHA256, RFC 5869) from the first private key of a PEM file, PKCS#1 or PKCS#8, of whatever kind.
    /// The DER of PKCS#8 goes in, so that the same key in another envelope is the same.
    ///
    /// # Errors
    /// [`BadKey`]
    pub fn derive(pem: &[u8]) -> Result<Self, BadKey> {
        let der = super::private_key(pem)?;
        let mut derived = Zeroizing::new([0; 32]);
        let mode = HkdfMode::ExtractAndExpand;
        hkdf(Md::sha256(), &der, None, Some(PURPOSE), mode, None, &mut *derived).map_err(|_| BadKey::Underivable)?;
        Ok(Self(derived))
    }

    /// Nonce, cipher text and tag. `head` is covered too and goes beside it in the clear.
    ///
    /// # Errors
    /// OpenSSL has no randomness or no memory.
    pub fn seal(&self, head: &[u8], text: &[u8]) -> Result<Vec<u8>, CannotSeal> {
        let (mut nonce, mut tag) = ([0; NONCE], [0; TAG]);
        rand_bytes(&mut nonce).map_err(CannotSeal)?;
        let sealed = encrypt_aead(Cipher::aes_256_gcm(), &*self.0, Some(&nonce), head, text, &mut tag);
        Ok([&nonce[..], &sealed.map_err(CannotSeal)?, &tag].concat())
    }

    /// The text, if it was sealed with this key and this head and nobody has changed it.
    #[must_use]
    pub fn open(&self, head: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_at_checked(NONCE)?;
        let (text, tag) = rest.split_at_checked(rest.len().checked_sub(TAG)?)?;
        decrypt_aead(Cipher::aes_256_gcm(), &*self.0, Some(nonce), head, text, tag).ok()
    }
}

/// A key for each node whose file could be read. Clones share them.
#[derive(Clone, Default)]
pub struct NodeKeys(Arc<ArcSwap<BTreeMap<Arc<str>, Arc<SealingKey>>>>);

impl NodeKeys {
    /// That node's.
    #[must_use]
    pub fn of(&self, node: &str) -> Option<Arc<SealingKey>> {
        self.0.load().get(node).cloned()
    }

    /// These, and no others.
    pub fn set(&self, keys: BTreeMap<Arc<str>, Arc<SealingKey>>) {
        self.0.store(Arc::new(keys));
    }
}

/// Whose they are.
impl fmt::Debug for NodeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.load().keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use openssl::ec::{EcGroup, EcKey};
    use openssl::nid::Nid;
    use openssl::pkey::PKey;
    use openssl::rsa::Rsa;

    use super::*;
    use crate::testing::key_pem;

    #[test]
    fn the_same_key_in_another_envelope_is_the_same() {
        let rsa = Rsa::generate(2048).unwrap();
        let pkcs8 = PKey::from_rsa(rsa.clone()).unwrap().private_key_to_pem_pkcs8().unwrap();
        let pkcs1 = rsa.private_key_to_pem().unwrap();
        assert!(pkcs1.starts_with(b"-----BEGIN RSA PRIVATE KEY") && pkcs8.starts_with(b"-----BEGIN PRIVATE KEY"));
        let [one, other] = [&pkcs1, &pkcs8].map(|pem| SealingKey::derive(pem).unwrap());
        assert_eq!(one.0, other.0);
        assert_ne!(*one.0, [0; 32]);
        let behind = [&b"a line before\n"[..], &pkcs8, b"and one behind\n"].concat();
        assert_eq!(SealingKey::derive(&behind).unwrap().0, one.0);
    }

    #[test]
    fn what_is_no_key_is_none() {
        let pem = key_pem().unwrap();
        let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let key = PKey::from_ec_key(EcKey::generate(&curve).unwrap()).unwrap();
        let locked = key.private_key_to_pem_pkcs8_passphrase(Cipher::aes_256_cbc(), b"word").unwrap();
        for text in [&b""[..], b"x", &pem[..pem.len() / 2], &key.public_key_to_pem().unwrap(), &locked] {
            assert_eq!(SealingKey::derive(text).err(), Some(BadKey::NoKey), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn what_is_sealed_opens_as_it_was_and_not_otherwise() {
        let [key, other] = [(), ()].map(|()| SealingKey::derive(&key_pem().unwrap()).unwrap());
        let sealed = key.seal(b"head", b"text").unwrap();
        assert_eq!(key.open(b"head", &sealed).as_deref(), Some(&b"text"[..]));
        assert_ne!(sealed, key.seal(b"head", b"text").unwrap());
        assert_eq!(other.open(b"head", &sealed), None);
        assert_eq!(key.open(b"heal", &sealed), None);
        for at in 0..sealed.len() {
            assert_eq!(key.open(b"head", &sealed[..at]), None, "its first {at} bytes");
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(key.open(b"head", &changed), None, "byte {at}, bit {bit}");
            }
        }
        assert_eq!(key.open(b"head", &[&sealed[..], b"x"].concat()), None);
    }

    #[test]
    fn keys_are_told_by_their_nodes_and_not_shown() {
        let keys = NodeKeys::default();
        let shared = keys.clone();
        keys.set(BTreeMap::from([("pve1".into(), Arc::new(SealingKey::derive(&key_pem().unwrap()).unwrap()))]));
        assert!(shared.of("pve1").is_some() && shared.of("pve2").is_none());
        assert_eq!(format!("{shared:?}"), "{\"pve1\"}");
    }
}
