//! What a token says, to whoever checks it, and that nothing else is taken for one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Value, json};

use super::{Verifier, ask, audited, jose, kid, of, parts, python, serving_two, start, stranger, token};
use crate::world::Node;

const LISTEN: &str = "127.0.0.1:8444";
const VAULT: &str = "https://vault.example.com";

#[test]
fn two_libraries_read_in_a_token_whose_it_is() {
    let issuer = format!("https://{LISTEN}");
    let mut node = Node::new();
    node.tree.put_identity("pve1").unwrap();
    node.tree.put_file("user.cfg", "pool:shop::101::\npool:shop/test::102::\n").unwrap();
    let more = format!("jwks: {{listen: '{LISTEN}'}}\njwtsvid: {{issuer: '{issuer}'}}\n");
    let (node, guests) = start(node, &more, |vmid| format!("tags: web;only-{vmid}\n"));
    let trusted = Node::dir().join("root.pem");
    fs::copy(of(&node.tree, "pve1", "pve-ssl.pem"), &trusted).unwrap();
    let strange = stranger();
    let strange = of(&strange, "pve1", "pve-ssl.pem");
    let keys = format!("https://{LISTEN}/.well-known/jwks.json");

    let mut tokens = Vec::new();
    for (guest, pool) in guests.iter().zip(["shop", "shop/test"]) {
        let vmid = guest.vmid;
        let mut inside = Verifier::inside(guest, VAULT);
        let mut outside = Verifier::new(&node.namespace, &keys, VAULT, Some(&trusted));
        for (body, audience) in [
            (format!("audience={VAULT}"), json!(VAULT)),
            (format!("audience={VAULT}&audience=b%26c+d"), json!([VAULT, "b&c d"])),
            (json!({"audience": VAULT}).to_string(), json!(VAULT)),
            (json!({"audience": ["ü", VAULT]}).to_string(), json!(["ü", VAULT])),
        ] {
            let token = token(guest, &body);
            let claims = inside.verify(&token).unwrap();
            let begin = claims["iat"].as_u64().unwrap();
            let expected = json!({
                "sub": format!("spiffe://pve1/{vmid}"), "aud": audience, "iss": issuer,
                "iat": begin, "nbf": begin, "exp": begin + 300, "jti": claims["jti"],
                "name": format!("vm{vmid}"), "hostname": format!("vm{vmid}"),
                "uuid": format!("00000000-0000-4000-8000-{vmid:012}"),
                "meta": {
                    "pve:vmid": vmid.to_string(), "pve:node": "pve1", "pve:pool": pool,
                    "web": "", format!("only-{vmid}"): "",
                },
            });
            assert_eq!(claims, expected);
            assert_eq!(jose(guest, &[&token]), [Some(claims.clone())], "jose reads the same");
            assert_eq!(outside.verify(&token), Ok(claims), "over TLS the same");
            tokens.push(token);
        }
        let last = tokens.last().unwrap();
        let refusal = Verifier::inside(guest, "https://other.example.com").verify(last).unwrap_err();
        assert!(refusal.starts_with("InvalidAudienceError"), "{refusal}");
        let refusal = Verifier::new(&node.namespace, &keys, VAULT, Some(&strange)).verify(last).unwrap_err();
        assert!(refusal.contains("CERTIFICATE_VERIFY_FAILED"), "{refusal}");
    }
    let names: BTreeSet<_> = tokens.iter().map(|token| super::decoded(parts(token)[1])["jti"].to_string()).collect();
    assert_eq!(names.len(), tokens.len(), "no two tokens have one name");
    assert_eq!(ask(&guests[0], "aud=x"), Some((400, "bad_request\n".to_owned())));
    audited(&node, &tokens);
}

#[test]
fn a_thousand_forgeries_are_refused_by_both() {
    let (node, [guest, other]) = serving_two("");
    let [mine, theirs] = [&guest, &other].map(|guest| token(guest, &format!("audience={VAULT}")));
    let strange = stranger();
    let [key, certificate] = ["pve-ssl.key", "pve-ssl.pem"].map(|file| of(&node.tree, "pve1", file));
    let mut forge = python(&node.namespace, "forge.py");
    forge.arg(key).arg(of(&strange, "pve1", "pve-ssl.key")).arg(certificate).args([&mine, &theirs]);
    let output = forge.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let forgeries: Vec<(&str, String)> = text
        .lines()
        .map(|line| line.split_once('\t').unwrap())
        .map(|(what, token)| (what, serde_json::from_str(token).unwrap()))
        .collect();
    assert!(forgeries.len() >= 1000, "{}", forgeries.len());

    let mut verifier = Verifier::inside(&guest, VAULT);
    let control = verifier.verify(&mine).unwrap();
    let mut reasons = BTreeMap::<String, u32>::new();
    for (what, forgery) in &forgeries {
        let refusal = verifier.verify(forgery).expect_err(what);
        *reasons.entry(refusal.split(':').next().unwrap().to_owned()).or_default() += 1;
        let expected = match *what {
            "expired" => "ExpiredSignatureError",
            "not yet" => "ImmatureSignatureError",
            "another key, our kid" => "InvalidSignatureError",
            _ => "",
        };
        assert!(refusal.starts_with(expected), "{what}: {refusal}");
    }
    println!("{} forgeries: {reasons:?}", forgeries.len());
    assert_eq!(verifier.verify(&mine).as_ref(), Ok(&control));

    let all: Vec<&str> = forgeries.iter().map(|(_, forgery)| forgery.as_str()).chain([mine.as_str()]).collect();
    let mut read = jose(&guest, &all);
    assert_eq!(read.pop().unwrap().as_ref(), Some(&control));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let good = |claims: &Value| claims["nbf"].as_u64() <= Some(now) && Some(now) < claims["exp"].as_u64();
    assert!(good(&control));
    for ((what, forgery), payload) in forgeries.iter().zip(read) {
        match *what {
            // The signature is good, and whoever uses `jose` has to look at the times.
            "expired" | "not yet" => assert!(payload.is_some_and(|claims| !good(&claims)), "{what}: {forgery}"),
            // It passes over what is behind the third part, and reads the token that is before that.
            "a part too many" => assert!(payload.is_none_or(|claims| claims == control), "{what}: {forgery}"),
            _ => assert_eq!(payload, None, "{what}: {forgery}"),
        }
    }
    assert_eq!(kid(&mine), kid(&theirs));
}
