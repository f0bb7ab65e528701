//! The key that signs a node's identity tokens, and the public keys that they are checked with.
//!
//! In come PEM files and claims; out go compact JWS (RFC 7515 §7.1) with `RS256` and JWKs (RFC 7517) whose `kid` is their
//! thumbprint (RFC 7638), so that a certificate that is renewed is the same key. Refused: keys that are not RSA or too short.
//!
//! No library of JOSE: the one that stands on OpenSSL brings eight crates, and another inflater for the Notes, for the
//! three lines of [`SigningKey::sign`] that are needed of it.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::pkey::{HasPublic, PKey, Private};
use openssl::rsa::Rsa;
use openssl::sha::sha256;
use openssl::sign::Signer;
use openssl::x509::X509;
use pve_imds_model::identity::Payload;
use serde_json::{Value, json};

use super::BadKey;

/// The least that RFC 7518 §3.3 allows.
const MIN_BITS: u32 = 2048;

/// What a signature is checked with. Equal keys have one `kid`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey {
    kid: Arc<str>,
    /// Modulus and exponent, as a JWK has them.
    n: String,
    e: String,
}

impl PublicKey {
    /// That of the first certificate of a PEM file. Whether it is still valid plays no part: Proxmox renews certificates and
    /// keeps keys, and what makes a key a node's is where the file lies.
    ///
    /// # Errors
    /// [`BadKey`]
    pub fn of_certificate(pem: &[u8]) -> Result<Self, BadKey> {
        let key = X509::from_pem(pem).and_then(|certificate| certificate.public_key());
        Self::of(&key.map_err(|_| BadKey::NoCertificate)?)
    }

    fn of<T: HasPublic>(key: &PKey<T>) -> Result<Self, BadKey> {
        fn encoded<T: HasPublic>(key: &Rsa<T>) -> (String, String) {
            let encode = |number: &openssl::bn::BigNumRef| BASE64_URL_SAFE_NO_PAD.encode(number.to_vec());
            (encode(key.n()), encode(key.e()))
        }
        let rsa = key.rsa().map_err(|_| BadKey::NotRsa)?;
        if key.bits() < MIN_BITS {
            return Err(BadKey::Short(key.bits()));
        }
        let (n, e) = encoded(&rsa);
        // RFC 7638 §3: these members in this order, nothing between them.
        let thumbprint = sha256(format!(r#"{{"e":"{e}","kty":"RSA","n":"{n}"}}"#).as_bytes());
        Ok(Self { kid: BASE64_URL_SAFE_NO_PAD.encode(thumbprint).into(), n, e })
    }

    /// Its name in tokens and in the set.
    #[must_use]
    pub fn kid(&self) -> &Arc<str> {
        &self.kid
    }

    /// As a member of the set.
    pub(super) fn jwk(&self) -> Value {
        json!({"use": "sig", "kty": "RSA", "kid": *self.kid, "alg": "RS256", "n": self.n, "e": self.e})
    }
}

/// A node's private key, as far as it signs tokens.
pub struct SigningKey {
    key: PKey<Private>,
    public: PublicKey,
}

/// OpenSSL could not sign.
#[derive(Debug, thiserror::Error)]
#[error("OpenSSL cannot sign")]
pub struct CannotSign(#[from] ErrorStack);

impl SigningKey {
    /// The first private key of a PEM file.
    ///
    /// # Errors
    /// [`BadKey`]
    pub fn read(pem: &[u8]) -> Result<Self, BadKey> {
        let der = super::private_key(pem)?;
        let key = PKey::private_key_from_pkcs8(&der).map_err(|_| BadKey::NoKey)?;
        let public = PublicKey::of(&key)?;
        Ok(Self { key, public })
    }

    /// What its signatures are checked with.
    #[must_use]
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// A token. Takes a good part of a millisecond of a core.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn sign(&self, payload: &Payload) -> Result<String, CannotSign> {
        let header = json!({"alg": "RS256", "kid": *self.public.kid, "typ": "JWT"}).to_string();
        let mut token = BASE64_URL_SAFE_NO_PAD.encode(header);
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(payload, &mut token);
        // RSASSA-PKCS1-v1_5 (RFC 7518 §3.3): what OpenSSL does with an RSA key unless told otherwise.
        let signature = Signer::new(MessageDigest::sha256(), &self.key)?.sign_oneshot_to_vec(token.as_bytes())?;
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }
}

/// Its name.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public.kid).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{certificate_pem, key_pem, rsa_key_pem};

    #[test]
    fn a_thumbprint_is_that_of_the_rfc() {
        // RFC 7638 §3.1.
        let n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMs\
                 tn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91C\
                 bOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";
        let number =
            |text: &str| openssl::bn::BigNum::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap();
        let key = Rsa::from_public_components(number(n), number("AQAB")).unwrap();
        let public = PublicKey::of(&PKey::from_rsa(key).unwrap()).unwrap();
        assert_eq!(&**public.kid(), "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
        assert_eq!((&*public.n, &*public.e), (n, "AQAB"));
    }

    #[test]
    fn a_key_and_its_certificate_are_one_and_a_renewed_certificate_too() {
        let key = rsa_key_pem(2048).unwrap();
        let signing = SigningKey::read(&key).unwrap();
        let certificates = [(), ()].map(|()| certificate_pem(&key).unwrap());
        assert_ne!(certificates[0], certificates[1]);
        for certificate in certificates {
            assert_eq!(PublicKey::of_certificate(&certificate).as_ref(), Ok(signing.public()));
        }
        assert_eq!(format!("{signing:?}"), format!("SigningKey({:?})", signing.public().kid()));
    }

    #[test]
    fn what_does_not_sign_is_told_apart() {
        let (rsa, short, curve) = (rsa_key_pem(2048).unwrap(), rsa_key_pem(1024).unwrap(), key_pem().unwrap());
        let certificate = certificate_pem(&rsa).unwrap();
        for (pem, key, of_certificate) in [
            (&rsa[..], Ok(()), Err(BadKey::NoCertificate)),
            (&certificate, Err(BadKey::NoKey), Ok(())),
            (&rsa[..rsa.len() / 2], Err(BadKey::NoKey), Err(BadKey::NoCertificate)),
            (&certificate[..certificate.len() / 2], Err(BadKey::NoKey), Err(BadKey::NoCertificate)),
            (b"", Err(BadKey::NoKey), Err(BadKey::NoCertificate)),
            (&short, Err(BadKey::Short(1024)), Err(BadKey::NoCertificate)),
            (&certificate_pem(&short).unwrap(), Err(BadKey::NoKey), Err(BadKey::Short(1024))),
            (&curve, Err(BadKey::NotRsa), Err(BadKey::NoCertificate)),
            (&certificate_pem(&curve).unwrap(), Err(BadKey::NoKey), Err(BadKey::NotRsa)),
        ] {
            assert_eq!(SigningKey::read(pem).map(drop), key);
            assert_eq!(PublicKey::of_certificate(pem).map(drop), of_certificate);
        }
    }
}
