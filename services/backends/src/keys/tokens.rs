//! The keys of identity tokens that are in force: one that signs, and the set that signatures are checked with.
//!
//! In come keys, whenever one has changed; out go the signing key and the bytes of the set (RFC 7517 §5), which were written
//! once and cost a request nothing.

use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use openssl::sha::sha256;
use serde_json::json;

use super::{PublicKey, SigningKey};

/// A JWK Set, as it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySet {
    bytes: Bytes,
    tag: Arc<str>,
    count: usize,
}

impl KeySet {
    /// That of these keys, in this order, each once.
    #[must_use]
    pub fn of<'a>(keys: impl IntoIterator<Item = &'a PublicKey>) -> Self {
        let mut seen: Vec<&PublicKey> = Vec::new();
        for key in keys {
            if !seen.contains(&key) {
                seen.push(key);
            }
        }
        let keys: Vec<_> = seen.into_iter().map(PublicKey::jwk).collect();
        let (count, bytes) = (keys.len(), Bytes::from(json!({ "keys": keys }).to_string()));
        Self { tag: BASE64_URL_SAFE_NO_PAD.encode(sha256(&bytes)).into(), bytes, count }
    }

    /// The document.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// A name for these bytes and no others: letters, digits, `-` and `_`.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Nothing can be checked with it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// No key.
impl Default for KeySet {
    fn default() -> Self {
        Self::of([])
    }
}

/// What is in force. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TokenKeys(Arc<ArcSwap<InForce>>);

#[derive(Debug, Default)]
struct InForce {
    signing: Option<Arc<SigningKey>>,
    set: KeySet,
    cluster: Option<Arc<str>>,
    doubts: Arc<[Arc<str>]>,
}

impl TokenKeys {
    /// The key that signs; there may be none.
    #[must_use]
    pub fn signing(&self) -> Option<Arc<SigningKey>> {
        self.0.load().signing.clone()
    }

    /// Every key that a token may have been signed with which is still good.
    #[must_use]
    pub fn set(&self) -> KeySet {
        self.0.load().set.clone()
    }

    /// The cluster's name, whose trust domain a token may be of. A lone node has none.
    #[must_use]
    pub fn cluster(&self) -> Option<Arc<str>> {
        self.0.load().cluster.clone()
    }

    /// From now on these.
    pub fn put(&self, signing: Option<Arc<SigningKey>>, set: KeySet, cluster: Option<Arc<str>>) {
        let doubts = self.doubts();
        self.0.store(Arc::new(InForce { signing, set, cluster, doubts }));
    }

    /// Why a node's key may be missing from the set: a line for each file that cannot be used, which names it.
    #[must_use]
    pub fn doubts(&self) -> Arc<[Arc<str>]> {
        Arc::clone(&self.0.load().doubts)
    }

    /// From now on these are doubted.
    pub(crate) fn doubt(&self, doubts: Arc<[Arc<str>]>) {
        let InForce { signing, set, cluster, .. } = &**self.0.load();
        let (signing, set, cluster) = (signing.clone(), set.clone(), cluster.clone());
        self.0.store(Arc::new(InForce { signing, set, cluster, doubts }));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::rsa_key_pem;

    #[test]
    fn the_set_names_each_key_once_and_no_private_part() {
        let [one, other] = [(), ()].map(|()| SigningKey::read(&rsa_key_pem(2048).unwrap()).unwrap());
        let set = KeySet::of([one.public(), other.public(), one.public()]);
        let set: Value = serde_json::from_slice(&set.bytes()).unwrap();
        let keys = set["keys"].as_array().unwrap();
        assert_eq!(keys.len(), 2);
        for (key, signing) in keys.iter().zip([&one, &other]) {
            let members: Vec<_> = key.as_object().unwrap().keys().collect();
            assert_eq!(members, ["use", "kty", "kid", "alg", "n", "e"]);
            assert_eq!(key["kid"], **signing.public().kid());
        }
        assert_eq!(KeySet::default().bytes(), r#"{"keys":[]}"#);
    }

    #[test]
    fn a_tag_is_of_the_bytes() {
        let key = SigningKey::read(&rsa_key_pem(2048).unwrap()).unwrap();
        let set = KeySet::of([key.public()]);
        assert!(KeySet::default().is_empty() && !set.is_empty());
        assert_eq!(set.tag(), KeySet::of([key.public(), key.public()]).tag());
        assert_ne!(set.tag(), KeySet::default().tag());
        assert!(set.tag().bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
    }

    #[test]
    fn clones_share_what_is_in_force() {
        let keys = TokenKeys::default();
        let shared = keys.clone();
        let signing = Arc::new(SigningKey::read(&rsa_key_pem(2048).unwrap()).unwrap());
        keys.put(Some(Arc::clone(&signing)), KeySet::of([signing.public()]), Some("prod".into()));
        assert_eq!(shared.signing().unwrap().public(), signing.public());
        assert_eq!((shared.set(), shared.cluster().as_deref()), (KeySet::of([signing.public()]), Some("prod")));
    }
}
