//! What becomes of tokens while keys change: whoever has a good one is believed, by those who have kept the set as well.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Verifier, audited, kid, of, serving_two, stranger, token};
use crate::world::{Guest, Node, until_within};

/// Longer than a key is shown before it signs, several times.
const CHANGING: Duration = Duration::from_secs(20);

/// Asks and verifies until it is told to stop: what it was given, and what was refused.
fn ask_on(guest: &Guest, stop: &AtomicBool) -> (Vec<String>, Vec<String>) {
    let mut verifier = Verifier::inside(guest, "a");
    let (mut tokens, mut refused) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        match super::ask(guest, "audience=a") {
            Some((200, token)) => {
                refused.extend(verifier.verify(&token).err());
                tokens.push(token);
            }
            other => refused.push(format!("{other:?}")),
        }
        // Less than a VM's share.
        sleep(Duration::from_millis(130));
    }
    (tokens, refused)
}

/// Puts another key and its certificate in the place of those of before, byte by byte where they are, with a pause in the
/// midst of either.
fn replace(node: &Node, pause: Duration) {
    let other = stranger();
    let files = ["pve-ssl.key", "pve-ssl.pem"].map(|file| (of(&node.tree, "pve1", file), of(&other, "pve1", file)));
    for (file, new) in files {
        let bytes = fs::read(new).unwrap();
        fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        sleep(pause);
        fs::write(&file, bytes).unwrap();
    }
}

#[test]
fn while_keys_change_no_good_token_is_refused() {
    let (node, guests) = serving_two("");
    let stop = AtomicBool::new(false);
    let [first, second] = scope(|scope| {
        let asking = [&guests[0], &guests[1]].map(|guest| scope.spawn(|| ask_on(guest, &stop)));
        let begun = Instant::now();
        // Halves that no look sees and halves that each look sees.
        for pause in [0, 700, 0, 2500].into_iter().cycle() {
            if begun.elapsed() > CHANGING {
                break;
            }
            replace(&node, Duration::from_millis(pause));
            sleep(Duration::from_millis(2500));
        }
        stop.store(true, Ordering::Relaxed);
        asking.map(|thread| thread.join().unwrap())
    });
    let mut keys = BTreeMap::new();
    for (guest, (tokens, refused)) in guests.iter().zip([&first, &second]) {
        println!("guest {}: {} tokens", guest.vmid, tokens.len());
        assert!(refused.is_empty(), "guest {}: {refused:?}", guest.vmid);
        assert!(tokens.len() > 40, "guest {}: only {}", guest.vmid, tokens.len());
        keys.extend(tokens.iter().map(|token| (kid(token), token.clone())));
        audited(&node, tokens);
    }
    assert!(keys.len() >= 3, "only {} keys signed", keys.len());
    // All that is still good can be checked by somebody who comes only now.
    let mut late = Verifier::inside(&guests[0], "a");
    for token in keys.values() {
        late.verify(token).unwrap();
    }
}

/// From now on the cluster has these nodes.
fn members(node: &Node, names: &[&str]) {
    let nodes: serde_json::Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), json!({"id": 1}))).collect();
    let text = json!({
        "nodename": "pve1", "version": 1, "nodelist": nodes,
        "cluster": {"name": "prod", "version": 1, "nodes": names.len(), "quorate": 1},
    });
    let new = node.tree.path().join(".members.tmp");
    fs::write(&new, text.to_string()).unwrap();
    fs::rename(new, node.tree.path().join(".members")).unwrap();
}

/// A token of `pve2`'s, made by somebody who has its key.
fn signed_by_the_other(node: &Node, like: &str, kid: &str) -> String {
    let program = "import json, sys, jwt; key, claims, kid = sys.argv[1:]; \
                   print(jwt.encode(json.loads(claims), open(key).read(), 'RS256', {'kid': kid}))";
    let mut claims = super::decoded(super::parts(like)[1]);
    (claims["sub"], claims["meta"]["pve:node"]) = (json!("spiffe://pve2/103"), json!("pve2"));
    let mut command = Command::new("timeout");
    command.args(["30", "/usr/bin/python3", "-I", "-c", program]).arg(of(&node.tree, "pve2", "pve-ssl.key"));
    let output = command.args([claims.to_string(), kid.to_owned()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_node_that_is_removed_is_believed_no_more() {
    let (node, [guest, _other]) = serving_two("");
    members(&node, &["pve1", "pve2"]);
    node.tree.put_identity("pve2").unwrap();
    let mine = token(&guest, "audience=a");
    let known = || -> Vec<String> {
        let set: Value = serde_json::from_str(&guest.get("/.well-known/jwks.json")).unwrap();
        set["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
    };
    let patience = Duration::from_secs(10);
    let theirs = until_within(patience, "the other node's key is shown", || {
        known().into_iter().find(|name| *name != kid(&mine))
    });
    let foreign = signed_by_the_other(&node, &mine, &theirs);
    let mut old = Verifier::inside(&guest, "a");
    assert_eq!(old.verify(&foreign).unwrap()["sub"], "spiffe://pve2/103");

    // Its directory and its files stay, as Proxmox leaves them.
    members(&node, &["pve1"]);
    let begun = Instant::now();
    until_within(patience, "its key is gone", || (known() == [kid(&mine)]).then_some(()));
    println!("gone after {:?}", begun.elapsed());
    assert!(of(&node.tree, "pve2", "pve-ssl.pem").exists());
    let mut fresh = Verifier::inside(&guest, "a");
    let refusal = fresh.verify(&foreign).unwrap_err();
    assert!(refusal.contains("Unable to find a signing key"), "{refusal}");
    // Whoever has kept the set believes it for as long as he keeps that: hence an hour at most, as the manual says.
    assert!(old.verify(&foreign).is_ok());
    assert!(fresh.verify(&mine).is_ok() && old.verify(&mine).is_ok());
    // It stays gone, though its files are written again.
    node.tree.put_identity("pve2").unwrap();
    sleep(Duration::from_secs(4));
    assert_eq!(known(), [kid(&mine)]);
}
