use std::fs;

use serde_json::Value;

use super::known::MAX_NODES;
use super::*;
use crate::testing::{certificate_pem, key_pem, rsa_key_pem};

const KEY: &str = "pve-ssl.key";
const CERTIFICATE: &str = "pve-ssl.pem";

fn keyring(own: &str) -> (Keyring, NodeKeys, TokenKeys) {
    let (keys, tokens) = (NodeKeys::default(), TokenKeys::default());
    (Keyring::new(own, Signing::default(), keys.clone(), tokens.clone()), keys, tokens)
}

/// What is said of a node's files.
fn said(news: &FileNews) -> String {
    match news {
        FileNews::Read(node) => format!("read {node}"),
        FileNews::Unreadable(node, _) => format!("unreadable {node}"),
        FileNews::Gone(node) => format!("gone {node}"),
    }
}

/// What is said of keys that seal.
fn sealing(news: &[News]) -> Vec<String> {
    let word = |news: &News| match news {
        News::Of(NodeFile::Key, news) => Some(said(news)),
        News::Lacking(_) => Some("lacking".to_owned()),
        News::Of(NodeFile::Certificate, _) | News::Signs(_) | News::CannotSign(_) => None,
    };
    news.iter().filter_map(word).collect()
}

/// What is said of tokens.
fn signing(news: &[News]) -> Vec<String> {
    let word = |news: &News| match news {
        News::Of(NodeFile::Certificate, news) => Some(said(news)),
        News::Signs(_) => Some("signs".to_owned()),
        News::CannotSign(_) => Some("cannot sign".to_owned()),
        News::Of(NodeFile::Key, _) | News::Lacking(_) => None,
    };
    news.iter().filter_map(word).collect()
}

/// What becomes of a node's directory.
enum Deed {
    Key,
    Half,
    Remove,
    RemoveNode,
    Nothing,
}

#[test]
fn keys_come_change_and_go() {
    use Deed::{Half, Key, Nothing, Remove, RemoveNode};
    let tree = tempfile::tempdir().unwrap();
    let (mut keyring, keys, _) = keyring("a");
    let mut now = Instant::now();
    for (at, (node, deed, expected, known)) in [
        ("a", Nothing, &["lacking"][..], ""),
        ("a", Nothing, &[], ""),
        ("a", Key, &["read a"], "a"),
        ("a", Nothing, &[], "a"),
        ("b", Half, &["unreadable b"], "a"),
        ("b", Nothing, &[], "a"),
        ("b", Key, &["read b"], "ab"),
        ("b", Key, &["read b"], "ab"),
        ("b", Half, &["unreadable b"], "ab"),
        ("b", Remove, &[], "ab"),
        ("b", Nothing, &["gone b"], "a"),
        ("b", Nothing, &[], "a"),
        ("b", Key, &["read b"], "ab"),
        ("b", RemoveNode, &["gone b"], "a"),
        ("no name", Key, &[], "a"),
        ("a", Remove, &[], "a"),
        ("a", Key, &["read a"], "a"),
        ("a", Half, &["unreadable a"], "a"),
        ("a", RemoveNode, &["gone a", "lacking"], ""),
        ("a", Half, &["unreadable a"], ""),
        ("a", Key, &["read a"], "a"),
    ]
    .into_iter()
    .enumerate()
    {
        let dir = tree.path().join("nodes").join(node);
        let write = |bytes: &[u8]| {
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(KEY), bytes).unwrap();
        };
        match deed {
            Key => write(&key_pem().unwrap()),
            Half => write(&key_pem().unwrap()[..90]),
            Remove => fs::remove_file(dir.join(KEY)).unwrap(),
            RemoveNode => fs::remove_dir_all(&dir).unwrap(),
            Nothing => {}
        }
        let early = keyring.look(tree.path(), now);
        assert!(at == 0 || early.is_empty(), "row {at}: not yet");
        now += KEEP;
        let found = if at == 0 { early } else { keyring.look(tree.path(), now) };
        assert_eq!(sealing(&found), expected, "row {at}");
        let nodes: String = ["a", "b", "no name"].into_iter().filter(|node| keys.of(node).is_some()).collect();
        assert_eq!(nodes, known, "row {at}");
    }
    // The mount is gone.
    fs::remove_dir_all(tree.path().join("nodes")).unwrap();
    for _ in 0..3 {
        now += KEEP;
        assert_eq!(sealing(&keyring.look(tree.path(), now)), [""; 0]);
    }
    assert!(keys.of("a").is_some());
}

#[test]
fn a_node_that_was_removed_from_the_cluster_opens_nothing() {
    let tree = tempfile::tempdir().unwrap();
    for node in ["a", "b"] {
        fs::create_dir_all(tree.path().join("nodes").join(node)).unwrap();
        fs::write(tree.path().join("nodes").join(node).join(KEY), key_pem().unwrap()).unwrap();
    }
    let (mut keyring, keys, _) = keyring("a");
    let mut now = Instant::now();
    let both = r#"{"nodename":"a","nodelist":{"a":{"id":1},"b":{"id":2}}}"#;
    for (members, expected, known) in [
        (None, &["read a", "read b"][..], "ab"),
        (Some(both), &[], "ab"),
        (Some(r#"{"nodename":"a","nodelist":{"a":{"id":1}}}"#), &["gone b"], "a"),
        // Half a file, and none while pmxcfs starts again.
        (Some(r#"{"nodename":"a","#), &[], "a"),
        (None, &[], "a"),
        (Some(both), &["read b"], "ab"),
        (Some(r#"{"nodename":"a","version":0}"#), &["gone b"], "a"),
    ] {
        match members {
            Some(text) => fs::write(tree.path().join(".members"), text).unwrap(),
            None => _ = fs::remove_file(tree.path().join(".members")),
        }
        let found = keyring.look(tree.path(), now);
        now += KEEP;
        assert_eq!(sealing(&found), expected, "{members:?}");
        let nodes: String = ["a", "b"].into_iter().filter(|node| keys.of(node).is_some()).collect();
        assert_eq!(nodes, known, "{members:?}");
    }
}

#[test]
fn there_are_not_more_than_a_cluster_has() {
    let tree = tempfile::tempdir().unwrap();
    let pem = key_pem().unwrap();
    for node in (0..=MAX_NODES).map(|number| format!("n{number:03}")) {
        let dir = tree.path().join("nodes").join(node);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(KEY), &pem).unwrap();
    }
    let (mut keyring, keys, _) = keyring("n256");
    assert_eq!(sealing(&keyring.look(tree.path(), Instant::now())).len(), MAX_NODES);
    assert!(keys.of("n256").is_some() && keys.of("n254").is_some() && keys.of("n255").is_none());
}

/// How many keys are in the set, and whether the one that signs is that of this file.
fn in_force(tokens: &TokenKeys, key: &[u8]) -> (usize, Option<bool>) {
    let set: Value = serde_json::from_slice(&tokens.set().bytes()).unwrap();
    let own = SigningKey::read(key).unwrap();
    let signs = tokens.signing().map(|signing| signing.public() == own.public());
    (set["keys"].as_array().unwrap().len(), signs)
}

#[test]
fn tokens_follow_what_becomes_of_keys_and_certificates() {
    let tree = tempfile::tempdir().unwrap();
    let (mut keyring, _, tokens) = keyring("a");
    let [one, two, other] = [(), (), ()].map(|()| rsa_key_pem(2048).unwrap());
    let curve = key_pem().unwrap();
    let [c1, c2, c3] = [&one, &two, &other].map(|key| certificate_pem(key).unwrap());
    let c4 = certificate_pem(&two).unwrap();
    let both = r#"{"nodename":"a","cluster":{"name":"prod"},"nodelist":{"a":{},"b":{}}}"#;
    let lone = r#"{"nodename":"a","cluster":{"name":"prod"},"nodelist":{"a":{}}}"#;
    let mut now = Instant::now();
    // What is written where, what is said, how many keys are in the set, and whether the one that signs is `one`, or `two`.
    for (row, (node, file, bytes, expected, count, signs)) in [
        ("b", CERTIFICATE, Some(&c3[..]), &["read b", "cannot sign"][..], 1, [None, None]),
        // Another reason is news.
        ("a", KEY, Some(&curve), &["cannot sign"], 1, [None, None]),
        ("a", KEY, Some(&one), &["signs"], 2, [Some(true), Some(false)]),
        ("a", CERTIFICATE, Some(&c1), &["read a"], 2, [Some(true), Some(false)]),
        // Half of one costs nothing.
        ("a", KEY, Some(&one[..200]), &[], 2, [Some(true), Some(false)]),
        ("b", CERTIFICATE, Some(&c3[..200]), &["unreadable b"], 2, [Some(true), Some(false)]),
        ("b", CERTIFICATE, Some(&c3), &[], 2, [Some(true), Some(false)]),
        // Another, which is shown before it signs; then what was is kept.
        ("a", KEY, Some(&two), &[], 3, [Some(true), Some(false)]),
        ("a", CERTIFICATE, Some(&c2), &["read a"], 3, [Some(true), Some(false)]),
        ("a", CERTIFICATE, Some(&c2), &[], 3, [Some(true), Some(false)]),
        ("a", CERTIFICATE, Some(&c2), &["signs"], 3, [Some(false), Some(true)]),
        // A renewed certificate is the same key.
        ("a", CERTIFICATE, Some(&c4), &["read a"], 3, [Some(false), Some(true)]),
        // A key of no use is no half.
        ("a", KEY, Some(&curve), &["cannot sign"], 3, [None, None]),
        ("a", KEY, Some(&two), &["signs"], 3, [Some(false), Some(true)]),
        ("a", KEY, None, &[], 3, [Some(false), Some(true)]),
        ("a", KEY, None, &["cannot sign"], 3, [None, None]),
        // Who verifies elsewhere needs the certificate, and we have the key.
        ("a", KEY, Some(&two), &["signs"], 3, [Some(false), Some(true)]),
        ("", ".members", Some(both.as_bytes()), &[], 3, [Some(false), Some(true)]),
        ("", ".members", Some(b"{"), &[], 3, [Some(false), Some(true)]),
        ("", ".members", Some(lone.as_bytes()), &["gone b"], 2, [Some(false), Some(true)]),
    ]
    .into_iter()
    .enumerate()
    {
        let dir = if node.is_empty() { tree.path().to_owned() } else { tree.path().join("nodes").join(node) };
        fs::create_dir_all(&dir).unwrap();
        match bytes {
            Some(bytes) => fs::write(dir.join(file), bytes).unwrap(),
            None => _ = fs::remove_file(dir.join(file)),
        }
        let found = keyring.look(tree.path(), now);
        now += KEEP;
        assert_eq!(signing(&found), expected, "row {row}");
        let signs = signs.map(|signs| (count, signs));
        assert_eq!([in_force(&tokens, &one), in_force(&tokens, &two)], signs, "row {row}");
    }
    assert_eq!(tokens.cluster().as_deref(), Some("prod"));
    // What is no tree now, as while pmxcfs starts, takes nothing away.
    fs::remove_dir_all(tree.path().join("nodes")).unwrap();
    now += KEEP;
    assert_eq!(signing(&keyring.look(tree.path(), now)), [""; 0]);
    assert_eq!(in_force(&tokens, &two), (2, Some(true)));
}

#[test]
fn keys_and_certificates_may_lie_elsewhere() {
    let (tree, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let key = rsa_key_pem(2048).unwrap();
    let path = elsewhere.path().join("signing.key");
    fs::write(&path, &key).unwrap();
    fs::create_dir_all(tree.path().join("nodes/a")).unwrap();
    fs::create_dir_all(elsewhere.path().join("c")).unwrap();
    fs::write(elsewhere.path().join("c").join(CERTIFICATE), certificate_pem(&rsa_key_pem(2048).unwrap()).unwrap())
        .unwrap();
    let tokens = TokenKeys::default();
    let places =
        Signing { private_key: Some(path), nodes_dir: Some(elsewhere.path().to_owned()), ..Signing::default() };
    let mut keyring = Keyring::new("a", places, NodeKeys::default(), tokens.clone());
    assert_eq!(signing(&keyring.look(tree.path(), Instant::now())), ["read c", "signs"]);
    assert_eq!(in_force(&tokens, &key), (2, Some(true)));
}

#[test]
fn whoever_misses_a_key_is_told_of_each_file() {
    let tree = tempfile::tempdir().unwrap();
    let nodes = tree.path().join("nodes");
    let (mut keyring, _, tokens) = keyring("a");
    let mut now = Instant::now();
    let mut doubts = |keyring: &mut Keyring| {
        keyring.look(tree.path(), now);
        now += KEEP;
        let files = tokens.doubts();
        files.iter().map(|line| line.replace(&*nodes.to_string_lossy(), "")).collect::<Vec<_>>()
    };
    let nothing = doubts(&mut keyring);
    assert!(nothing.len() == 2 && nothing[1] == "there is no /a/pve-ssl.key", "{nothing:?}");
    let key = rsa_key_pem(2048).unwrap();
    for node in ["a", "b", "c"] {
        fs::create_dir_all(nodes.join(node)).unwrap();
    }
    fs::write(nodes.join("a").join(KEY), &key).unwrap();
    fs::write(nodes.join("a").join(CERTIFICATE), certificate_pem(&key).unwrap()).unwrap();
    fs::write(nodes.join("b").join(CERTIFICATE), &key).unwrap();
    let expected = ["/b/pve-ssl.pem: it holds no certificate that can be read", "there is no /c/pve-ssl.pem"];
    assert_eq!(doubts(&mut keyring), expected);
    for node in ["b", "c"] {
        fs::write(nodes.join(node).join(CERTIFICATE), certificate_pem(&key).unwrap()).unwrap();
    }
    assert_eq!(doubts(&mut keyring), [""; 0]);
}
