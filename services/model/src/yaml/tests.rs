// What is measured here is work, and no clock but the real one knows it.
#![allow(clippy::unwrap_used, clippy::disallowed_types)]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn kind(text: &[u8]) -> Result<(), Kind> {
    read::<Value>(text).map(drop).map_err(|error| error.kind)
}

#[test]
fn errors_have_a_kind_and_a_place_and_no_text() {
    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Hop {
        #[serde(rename = "hop")]
        _hop: u8,
    }
    for (text, expected) in [
        (&b"hop: 3"[..], None),
        (b"hop: canary", Some(Kind::Shape)),
        (b"hop: 300", Some(Kind::Shape)),
        (b"canary: 1", Some(Kind::UnknownKey)),
        (b"- canary", Some(Kind::Shape)),
        (b"canary", Some(Kind::Shape)),
        (b"", Some(Kind::Syntax)),
        (b"hop: [canary", Some(Kind::Shape)),
        (b"hop: \"canary", Some(Kind::Syntax)),
        (b"hop: 1\n canary", Some(Kind::Shape)),
        (b"hop: 1\n- canary", Some(Kind::Syntax)),
        (b"hop: *canary", Some(Kind::Syntax)),
        (b"hop: 1\n---\nhop: 2", Some(Kind::SecondDocument)),
        (b"hop: 1\n...\n---\ncanary", Some(Kind::SecondDocument)),
        (b"hop: 1\n...\n", None),
        (b"hop: 1\nhop: 2", Some(Kind::Shape)),
        (b"hop: \xff", Some(Kind::NotUtf8)),
    ] {
        let got = read::<Hop>(text);
        assert_eq!(got.as_ref().err().map(|error| error.kind), expected, "{}", String::from_utf8_lossy(text));
        if let Err(error) = got {
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
    }
    for second in ["---\nhop: 4", "---\n# canary\nhop: 4", "--- canary"] {
        let error = read::<Hop>(format!("hop: 3\n\n{second}").as_bytes()).unwrap_err();
        let begins = 3 + u64::try_from(second.matches('\n').count()).unwrap();
        assert_eq!((error.kind, error.place.map(|(line, _)| line)), (Kind::SecondDocument, Some(begins)), "{second}");
        assert!(error.to_string().starts_with("a second document begins here; only one is allowed (line "), "{error}");
    }
    let error = read::<Hop>(b"hop: 3\n[").unwrap_err();
    assert_eq!(error.place.map(|(line, _)| line), Some(2));
    assert_eq!(error.to_string().split(" (").next(), Some("not YAML"));
}

#[test]
fn hostile_texts_are_refused_quickly() {
    let laughs = (1..10).fold("a0: &a0 [l, l, l, l, l, l, l, l, l]\n".to_owned(), |mut text, level| {
        let aliases = format!("*a{}, ", level - 1).repeat(9);
        text += &format!("a{level}: &a{level} [{aliases}]\n");
        text
    });
    let quadratic = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(40_000), "*a, ".repeat(5_000));
    let merges = (1..200).fold("m0: &m0 {k0: 1}\n".to_owned(), |mut text, level| {
        text += &format!("m{level}: &m{level} {{<<: [*m{0}, *m{0}], k{level}: 1}}\n", level - 1);
        text
    });
    let deep_blocks = (0..300).map(|depth| " ".repeat(depth) + "a:\n").collect::<String>();
    let (deep, much) = (Kind::TooDeep, Kind::TooMuch);
    for (name, text, expected) in [
        ("billion laughs", laughs, much),
        ("one alias many times", quadratic, much),
        ("merges of merges", merges, much),
        ("deep flow sequences", "[".repeat(MAX_BYTES), deep),
        ("deep flow sequences that end", "[".repeat(MAX_DEPTH + 1) + &"]".repeat(MAX_DEPTH + 1), deep),
        ("deep flow sequences on lines", "[\n".repeat(MAX_BYTES / 2), deep),
        ("deep flow mappings", "{a: ".repeat(MAX_BYTES / 4), deep),
        ("deep block sequences", "- ".repeat(MAX_BYTES / 2), deep),
        ("deep block mappings", deep_blocks, deep),
        ("deep keys", "? ".repeat(MAX_BYTES / 2), deep),
        ("anchors", "&a ".repeat(MAX_BYTES / 3), Kind::Syntax),
        ("many nodes", format!("[{}]", "a,".repeat(MAX_NODES)), much),
        ("too long", "#".repeat(MAX_BYTES + 1), much),
    ] {
        let start = Instant::now();
        assert_eq!(kind(text.as_bytes()), Err(expected), "{name}");
        let ignored = read::<serde::de::IgnoredAny>(text.as_bytes()).map_err(|error| error.kind);
        assert_eq!(ignored.map(drop), Err(expected), "{name}, not looked at");
        let kept = read_once::<Value>(text.as_bytes()).map_err(|error| error.kind);
        assert_eq!(kept.map(drop), Err(expected), "{name}, kept");
        assert!(start.elapsed() < Duration::from_secs(5), "{name}: {:?}", start.elapsed());
    }
}

#[test]
fn what_is_allowed_is_read_quickly() {
    let long = "key: a value\n".repeat(MAX_BYTES / 13);
    let nested = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
    for text in [long, nested, "#".repeat(MAX_BYTES), "- a\n".repeat(MAX_NODES - 1)] {
        let start = Instant::now();
        assert_eq!(kind(text.as_bytes()), Ok(()), "{}", &text[..20]);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}

#[test]
fn strings_are_always_quoted() {
    let value = json!({
        "version": 2,
        "mac": "52:54:00:12:34:56",
        "yes": "yes",
        "Upper": [],
        "list": ["a", {"b": "c", "d": {}}, ["e", null], true, 1.5],
        "nested": {"deeper": {"quote": "\"\\\n\u{1}\u{7f}\u{85}\u{feff}ü😀"}},
    });
    let expected = r#"version: 2
mac: "52:54:00:12:34:56"
"yes": "yes"
"Upper": []
list:
  - "a"
  - b: "c"
    d: {}
  - - "e"
    - null
  - true
  - 1.5
nested:
  deeper:
    quote: "\"\\\n\u0001\u007f\u0085\ufeffü\U0001f600"
"#;
    assert_eq!(write(&value).unwrap(), expected);
    assert_eq!(read::<Value>(expected.as_bytes()).unwrap(), value);
    assert_eq!(write(&json!({})).unwrap(), "{}\n");
    assert_eq!(write(&json!("a")).unwrap(), "\"a\"\n");
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|fields| fields.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_reads_back(value in values()) {
        let text = write(&value).unwrap();
        prop_assert_eq!(read::<Value>(text.as_bytes()), Ok(value), "{}", text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[-\\[\\]{}:,&*#!|>'\"%@?a \\n\\t]{0,200}") {
        let _ = kind(text.as_bytes());
    }
}
