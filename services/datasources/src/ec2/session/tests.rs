//! What a token is good for. The table of answers is in tests/memory/tokens.rs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use pve_imds_backends::keys::SealingKey;
use pve_imds_backends::testing::key_pem;
use pve_imds_model::conf;
use pve_imds_model::request::Emulation;
use pve_imds_model::site::Site;
use pve_imds_model::vm::VmId;

use super::*;
use crate::entry::Entered;

const UUID: &str = "smbios1: uuid=2c8c7c76-a26c-4eb7-b04c-bf52bc095b81\n";

fn vm(number: u32, config: &str) -> Arc<Vm> {
    Arc::new(conf::parse(VmId::new(number).unwrap(), config.as_bytes()).vm)
}

fn keys(nodes: &[&str]) -> NodeKeys {
    let keys = NodeKeys::default();
    let key = || Arc::new(SealingKey::derive(&key_pem().unwrap()).unwrap());
    keys.set(nodes.iter().map(|node| (Arc::from(*node), key())).collect::<BTreeMap<_, _>>());
    keys
}

fn at(now: u64) -> Clock {
    Clock::new(move || now)
}

fn token(vm: &Arc<Vm>, node: &str, keys: &NodeKeys) -> Vec<u8> {
    let (site, emulation) = (Site::default(), Emulation::Auto);
    let entered = Entered::default();
    let subject =
        Subject { vm, link: None, nic: None, pool: None, node, site, emulation, entered: &entered, rendered: None };
    seal(&subject, &Pass::new(vm, Ttl::parse("60").unwrap(), 1000), keys).unwrap().into_bytes()
}

fn show(token: &[u8], vm: &Arc<Vm>, keys: &NodeKeys, now: u64) -> Result<(), Unfit> {
    let mut headers = HeaderMap::new();
    headers.insert(TOKEN, HeaderValue::from_bytes(token).unwrap());
    let (said, verdict) = judge(&headers, vm, keys, &at(now));
    assert_eq!(said == TokenUse::Valid, verdict.is_ok());
    let why = |fault: Fault| *std::error::Error::source(&fault).unwrap().downcast_ref().unwrap();
    verdict.map_err(why)
}

#[test]
fn it_is_good_for_one_vm_on_every_node_until_its_end() {
    let (own, keys) = (vm(106, UUID), keys(&["pve1", "pve2"]));
    let own_token = token(&own, "pve1", &keys);
    for (vm, now, expected) in [
        (&own, 1000, Ok(())),
        (&own, 1059, Ok(())),
        (&own, 1060, Err(Unfit::Expired)),
        (&vm(107, UUID), 1000, Err(Unfit::Foreign)),
        (&vm(106, "name: x\n"), 1000, Err(Unfit::Foreign)),
    ] {
        assert_eq!(show(&own_token, vm, &keys, now), expected, "{} {now}", vm.vmid);
    }
    // What the node it came from says is not what a guest can say: the name is under the seal.
    let mut said = Envelope::parse(&own_token).unwrap();
    "pve2".clone_into(&mut said.node);
    assert_eq!(show(said.token().unwrap().as_bytes(), &own, &keys, 1000), Err(Unfit::Altered));
    "pve3".clone_into(&mut said.node);
    assert_eq!(show(said.token().unwrap().as_bytes(), &own, &keys, 1000), Err(Unfit::UnknownNode));
}

#[test]
fn a_node_opens_what_another_has_sealed_until_that_ones_key_is_another() {
    let (vm, shared) = (vm(106, UUID), keys(&["a", "b"]));
    let sealed_by_a = token(&vm, "a", &shared);
    let map = |nodes: &[&str], of: &NodeKeys| -> BTreeMap<Arc<str>, _> {
        nodes.iter().map(|node| (Arc::from(*node), of.of(node).unwrap())).collect()
    };
    // Node b, which has read both files.
    let on_b = NodeKeys::default();
    on_b.set(map(&["a", "b"], &shared));
    assert_eq!(show(&sealed_by_a, &vm, &on_b, 1000), Ok(()));
    // The file of a is another one.
    on_b.set(map(&["b"], &shared).into_iter().chain(map(&["a"], &keys(&["a"]))).collect());
    assert_eq!(show(&sealed_by_a, &vm, &on_b, 1000), Err(Unfit::Altered));
    assert_eq!(show(&token(&vm, "b", &on_b), &vm, &on_b, 1000), Ok(()));
    // It is gone.
    on_b.set(map(&["b"], &shared));
    assert_eq!(show(&sealed_by_a, &vm, &on_b, 1000), Err(Unfit::UnknownNode));
}

static SEALED: LazyLock<(Arc<Vm>, NodeKeys, Vec<u8>)> = LazyLock::new(|| {
    let (vm, keys) = (vm(106, UUID), keys(&["pve1"]));
    let token = token(&vm, "pve1", &keys);
    (vm, keys, token)
});

/// Bytes that a header may have (RFC 9110 §5.5).
fn may_stand(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

#[test]
fn no_byte_of_a_token_may_be_another() {
    let (vm, keys, token) = &*SEALED;
    assert_eq!(show(token, vm, keys, 1000), Ok(()));
    for at in 0..token.len() {
        for byte in (0..=255).filter(|byte| may_stand(*byte) && *byte != token[at]) {
            let mut changed = token.clone();
            changed[at] = byte;
            assert!(show(&changed, vm, keys, 1000).is_err(), "{at}: {byte:#x}");
        }
        assert!(show(&token[..at], vm, keys, 1000).is_err(), "its first {at}");
        assert!(show(&token[at + 1..], vm, keys, 1000).is_err(), "without its first {}", at + 1);
    }
    for more in [&b"A"[..], b"=", b"==", b" ", b"AAAA"] {
        assert!(show(&[token, more].concat(), vm, keys, 1000).is_err());
        assert!(show(&[more, token].concat(), vm, keys, 1000).is_err());
    }
}

proptest! {
    #[test]
    fn nothing_that_is_made_up_is_good(bytes in proptest::collection::vec(any::<u8>().prop_filter("", |b| may_stand(*b)), 0..300)) {
        let (vm, keys, _) = &*SEALED;
        prop_assert!(show(&bytes, vm, keys, 1000).is_err());
    }

    #[test]
    fn nothing_that_is_sealed_by_nobody_is_good(sealed: Vec<u8>) {
        let (vm, keys, _) = &*SEALED;
        let token = Envelope { node: "pve1".into(), sealed }.token().unwrap();
        prop_assert!(show(token.as_bytes(), vm, keys, 1000).is_err());
    }

    #[test]
    fn a_token_is_good_for_nobody_else(number in 100u32..200, digit in 0u8..16) {
        let (own, keys, token) = &*SEALED;
        let other = vm(number, &format!("smbios1: uuid=2c8c7c76-a26c-4eb7-b04c-bf52bc095b8{digit:x}\n"));
        let expected = if (number, digit) == (106, 1) { Ok(()) } else { Err(Unfit::Foreign) };
        prop_assert_eq!(show(token, &other, keys, 1000), expected);
        prop_assert_eq!(show(token, own, keys, 1000), Ok(()));
    }
}
