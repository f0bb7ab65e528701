//! What a token says.
//!
//! In come a VM, its name for others, whom the token is for and when; out goes the claims set (RFC 7519 §4), which names
//! besides the registered claims those of the contract: what the VM is called, its UUID, and its facts and tags.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::audience::{Asked, Audience};
use super::subject::SpiffeId;
use crate::instance;
use crate::pools::PoolId;
use crate::vm::Vm;

/// For how long a token is good, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(u32);

impl Lifetime {
    /// An hour.
    pub const MAX: u32 = 3600;

    /// 1 to [`Lifetime::MAX`] seconds.
    #[must_use]
    pub fn new(seconds: u64) -> Option<Self> {
        let seconds = u32::try_from(seconds).ok()?;
        (1..=Self::MAX).contains(&seconds).then_some(Self(seconds))
    }

    /// The seconds.
    #[must_use]
    pub fn seconds(self) -> u32 {
        self.0
    }
}

/// Five minutes.
impl Default for Lifetime {
    fn default() -> Self {
        Self(300)
    }
}

/// A claims set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Claims<'a> {
    #[serde(serialize_with = "one_or_many")]
    aud: &'a [Audience],
    exp: u64,
    hostname: String,
    iat: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
    jti: &'a str,
    meta: BTreeMap<String, String>,
    name: String,
    nbf: u64,
    sub: &'a SpiffeId,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
}

impl<'a> Claims<'a> {
    /// Those of `vm`, which is in `pool` and runs on `node`, from `now` on (seconds since 1970). `jti` is one that no other
    /// token has.
    #[must_use]
    pub fn new(
        vm: &Vm,
        (node, pool): (&str, Option<&PoolId>),
        (sub, asked): (&'a SpiffeId, &'a Asked),
        (now, lifetime): (u64, Lifetime),
        (iss, jti): (Option<&'a str>, &'a str),
    ) -> Self {
        Self {
            aud: asked.audiences(),
            exp: now.saturating_add(lifetime.0.into()),
            hostname: vm.hostname(),
            iat: now,
            iss,
            jti,
            meta: instance::facts(vm, node, pool).into_iter().collect(),
            name: vm.hostname(),
            nbf: now,
            sub,
            uuid: vm.uuid.as_deref().map(str::to_ascii_lowercase),
        }
    }
}

impl Claims<'_> {
    /// As a token carries it.
    ///
    /// # Errors
    /// What it is made of cannot be written.
    pub fn payload(&self) -> Result<Payload, serde_json::Error> {
        serde_json::to_vec(self).map(Payload)
    }
}

/// A claims set in JSON, to be signed. It is no secret; a token that carries it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A single audience is a text of its own (RFC 7519 §4.1.3).
fn one_or_many<S: Serializer>(audiences: &[Audience], serializer: S) -> Result<S::Ok, S::Error> {
    match audiences {
        [one] => one.serialize(serializer),
        many => many.serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::super::subject::Template;
    use super::*;
    use crate::conf;
    use crate::vm::VmId;

    fn claims(config: &str, pool: Option<&str>, body: &str, iss: Option<&str>) -> Value {
        let vm = conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm;
        let pool = pool.and_then(PoolId::parse);
        let sub = SpiffeId::of("test-node", &Template::default(), &vm, "test-node", pool.as_ref()).unwrap();
        let asked = Asked::read(None, body.as_bytes()).unwrap();
        let when = (1_775_087_593, Lifetime::default());
        let claims = Claims::new(&vm, ("test-node", pool.as_ref()), (&sub, &asked), when, (iss, "6023722e"));
        serde_json::from_slice(claims.payload().unwrap().as_ref()).unwrap()
    }

    #[test]
    fn a_token_says_what_the_contract_says_and_when_it_begins() {
        let config = "name: test-host\ntags: another-tag;centos-stream-9\n\
                      smbios1: uuid=2C8C7C76-A26C-4EB7-B04C-BF52BC095B81\n";
        let expected = json!({
            "aud": "foo",
            "exp": 1_775_087_893,
            "hostname": "test-host",
            "iat": 1_775_087_593,
            "jti": "6023722e",
            "meta": {"another-tag": "", "centos-stream-9": "", "pve:node": "test-node", "pve:vmid": "106"},
            "name": "test-host",
            "nbf": 1_775_087_593,
            "sub": "spiffe://test-node/106",
            "uuid": "2c8c7c76-a26c-4eb7-b04c-bf52bc095b81",
        });
        assert_eq!(claims(config, None, "audience=foo", None), expected);
    }

    #[test]
    fn what_is_not_there_is_not_said() {
        let said = claims("cores: 1\n", Some("lab/a"), "audience=a&audience=b", Some("https://pve.example"));
        assert_eq!(said["aud"], json!(["a", "b"]));
        assert_eq!(said["iss"], "https://pve.example");
        assert_eq!(said["meta"]["pve:pool"], "lab/a");
        assert_eq!((said.get("uuid"), &said["name"]), (None, &json!("vm106")));
    }

    #[test]
    fn a_token_lasts_an_hour_at_most() {
        for (seconds, expected) in [(0, None), (1, Some(1)), (3600, Some(3600)), (3601, None), (u64::MAX, None)] {
            assert_eq!(Lifetime::new(seconds).map(Lifetime::seconds), expected);
        }
        assert_eq!(Lifetime::default().seconds(), 300);
    }
}
