//! Session tokens, as a guest shows them.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use http_body_util::Empty;
use pve_imds_datasources::backends::keys::{NodeKeys, SealingKey};
use pve_imds_datasources::backends::testing::key_pem;
use pve_imds_datasources::{Router, Settings};
use pve_imds_model::session::{Envelope, Pass};

use super::vms::{answer, own};

const ASKED: &str = "/latest/meta-data/instance-id";

/// Two texts are never one token, and of all texts only the one that was given out opens anything: neither the bytes
/// themselves nor that token, changed by them, are good for something.
pub fn token(bytes: &[u8]) {
    if let Some(envelope) = Envelope::parse(bytes) {
        assert_eq!(envelope.token().map(String::into_bytes).as_deref(), Some(bytes), "a token has one spelling");
    }
    if let Some(pass) = Pass::from_bytes(bytes) {
        assert_eq!(pass.to_bytes(), bytes, "and so has what is sealed in it");
    }
    show(bytes);
    let mut changed = TOKEN.to_vec();
    let (over, behind) = bytes.split_at(bytes.len().min(changed.len()));
    changed.iter_mut().zip(over).for_each(|(byte, mask)| *byte ^= mask);
    changed.extend_from_slice(behind);
    show(&changed);
}

/// It is good if it is ours, and otherwise 401.
fn show(token: &[u8]) {
    let Ok(token) = HeaderValue::from_bytes(token) else { return };
    let is_ours = token.as_bytes() == *TOKEN;
    let got = said(Method::GET, ASKED, ("x-aws-ec2-metadata-token", token));
    assert_eq!(got.map(|_| ()), if is_ours { Ok(()) } else { Err(401) });
}

/// One that is good for the VM that asks.
static TOKEN: LazyLock<Bytes> = LazyLock::new(|| {
    let seconds = ("x-aws-ec2-metadata-token-ttl-seconds", HeaderValue::from_static("21600"));
    said(Method::PUT, "/latest/api/token", seconds).unwrap()
});

fn said(method: Method, target: &str, (name, value): (&'static str, HeaderValue)) -> Result<Bytes, u16> {
    static ROUTER: LazyLock<Router> = LazyLock::new(|| {
        let keys = NodeKeys::default();
        let key = SealingKey::derive(&key_pem().unwrap()).unwrap();
        keys.set(BTreeMap::from([(Settings::default().node.into(), Arc::new(key))]));
        Router::new(Settings { keys, ..Settings::default() })
    });
    let mut request = Request::builder().method(method).uri(target).body(Empty::<Bytes>::new()).unwrap();
    request.headers_mut().insert(name, value);
    answer(&ROUTER, request, &own())
}
