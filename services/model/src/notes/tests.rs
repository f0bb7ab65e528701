// What is measured here is work, and no clock but the real one knows it.
#![allow(clippy::disallowed_types)]

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::yaml::{Kind, YamlError};

fn parse(notes: &str) -> Notes {
    Notes::parse(notes, &[])
}

fn user_data(notes: &str) -> Option<Result<UserData, BlockError>> {
    parse(notes).user_data
}

fn plain(text: &str) -> UserData {
    UserData { secrets: None, text: text.as_bytes().to_vec() }
}

fn flawed<T>((line, column): (usize, usize), flaw: Flaw) -> Option<Result<T, BlockError>> {
    Some(Err(BlockError { line, column, flaw }))
}

#[test]
fn user_data_is_whole_or_an_error() {
    let long = "a".repeat(64);
    let too_long = format!("<!--#user-data secrets={long}a\nx\n-->");
    let long_enough = format!("<!--#user-data secrets={long}\nx\n-->");
    let worker = |text: &str| Some(Ok(UserData { secrets: SetName::parse("worker"), ..plain(text) }));
    for (notes, expected) in [
        ("", None),
        ("<!-- user-data -->", None),
        ("<!--#user-data\n#cloud-config\n-->", Some(Ok(plain("#cloud-config")))),
        ("Web\n\n<!--#user-data\n#cloud-config\na: -->\n-->\ntail", Some(Ok(plain("#cloud-config\na: -->")))),
        ("<!--#user-data\r\n#!/bin/sh\r\ntrue\r\n\r\n-->\r\n", Some(Ok(plain("#!/bin/sh\ntrue\n")))),
        ("<!--#user-data\na\rb\n-->", Some(Ok(plain("a\rb")))),
        ("<!--#user-data\n  indented\n\n-->", Some(Ok(plain("  indented\n")))),
        ("<!--#user-data\n-->", Some(Ok(plain("")))),
        ("<!--#user-data secrets=worker\nx\n-->", worker("x")),
        ("<!--#user-data \t secrets=worker \t\nx\n-->", worker("x")),
        ("<!--#user-data secrets=worker encoding=base64\nQUJD\n-->", worker("ABC")),
        (&long_enough, Some(Ok(UserData { secrets: SetName::parse(&long), ..plain("x") }))),
        ("<!--#user-data encoding=base64\nQU\nJD\n-->", Some(Ok(plain("ABC")))),
        ("<!--#user-data encoding=base64\nQUJDR\n-->", flawed((2, 5), Flaw::NotDecodable(Undecodable::Base64Cut))),
        ("<!--#user-data encoding=gzip+base64\nQUJD\n-->", flawed((1, 1), Flaw::NotDecodable(Undecodable::Gzip))),
        ("a\n<!--#user-data encoding=base64\nQUJD\n\n ü\n-->", flawed((5, 2), Flaw::NotDecodable(Undecodable::Base64))),
        ("<!--#user-data encoding=gzip+base64\nQU#\n-->", flawed((2, 3), Flaw::NotDecodable(Undecodable::Base64))),
        ("<!--#user-data encoding=gzip\nx\n-->", flawed((1, 16), Flaw::UnknownEncoding)),
        ("<!--#user-data encoding=\nx\n-->", flawed((1, 16), Flaw::UnknownEncoding)),
        ("<!--#user-data secrets=\nx\n-->", flawed((1, 16), Flaw::SetName)),
        ("<!--#user-data secrets=a/b\nx\n-->", flawed((1, 16), Flaw::SetName)),
        ("<!--#user-data secrets=\"a\"\nx\n-->", flawed((1, 16), Flaw::SetName)),
        ("<!--#user-data secrets=..\nx\n-->", flawed((1, 16), Flaw::SetName)),
        (&too_long, flawed((1, 16), Flaw::SetName)),
        ("<!--#user-data secret=a\nx\n-->", flawed((1, 16), Flaw::UnknownAttribute(AttributeName::of("secret=a")))),
        ("<!--#user-data Secrets=a\nx\n-->", flawed((1, 16), Flaw::UnknownAttribute(AttributeName::of("Secrets=a")))),
        ("<!--#user-data secrets\nx\n-->", flawed((1, 16), Flaw::UnknownAttribute(AttributeName::of("secrets")))),
        ("<!--#user-data secrets = a\nx\n-->", flawed((1, 16), Flaw::UnknownAttribute(AttributeName::of("secrets")))),
        (
            "<!--#user-data #cloud-config\nx\n-->",
            flawed((1, 16), Flaw::UnknownAttribute(AttributeName::of("#cloud-config"))),
        ),
        ("<!--#user-data -->", flawed((1, 16), Flaw::UnknownAttribute(AttributeName::of("-->")))),
        ("<!--#user-data secrets=a secrets=a\nx\n-->", flawed((1, 26), Flaw::AttributeTwice("secrets"))),
        ("<!--#user-data encoding=base64 encoding=base64\n\n-->", flawed((1, 32), Flaw::AttributeTwice("encoding"))),
        ("\n<!--#user-data\nx", flawed((2, 1), Flaw::Unclosed)),
        ("<!--#user-data\nx\n<!--#pxe\n-->", flawed((1, 1), Flaw::Unclosed)),
        ("<!--#user-data\nx\n-->\n<!--#user-data\nx\n-->", flawed((4, 1), Flaw::Twice { first: 1 })),
        ("<!--#user-data\nx\n<!--#user-data\nx\n-->", flawed((3, 1), Flaw::Twice { first: 1 })),
    ] {
        assert_eq!(user_data(notes), expected, "{notes:?}");
    }
}

#[test]
fn the_reason_names_the_attribute_or_says_what_there_is() {
    let there_is = "on the opening line; there is `encoding`, and `secrets` for user-data";
    for (notes, expected) in [
        ("<!--#user-data secret=web\n-->", format!("line 1, column 16: unknown attribute `secret` {there_is}")),
        ("<!--#user-data web\n-->", format!("line 1, column 16: unknown attribute {there_is}")),
        (
            "<!--#user-data encoding=zip\n-->",
            "line 1, column 16: unknown encoding; there are `base64` and `gzip+base64`".to_owned(),
        ),
    ] {
        assert_eq!(user_data(notes).unwrap().unwrap_err().to_string(), expected, "{notes:?}");
    }
}

#[test]
fn network_configuration_is_checked_and_knows_no_secrets() {
    let network = |notes: &str| parse(notes).network_config;
    let text = |text: &str| NetworkText::new(text.as_bytes().to_vec()).ok().map(Ok);
    let second = Flaw::Network(BadNetwork::Yaml(YamlError { kind: Kind::SecondDocument, place: None }));
    let shape = Flaw::Network(BadNetwork::Yaml(YamlError { kind: Kind::Shape, place: None }));
    for (notes, expected) in [
        ("", None),
        ("<!--#network-config\nversion: 2\n-->", text("version: 2")),
        ("<!--#network-config\r\nnetwork:\r\n  version: 1\r\n-->", text("network:\n  version: 1")),
        ("<!--#network-config encoding=base64\ndmVyc2lvbjogMQ==\n-->", text("version: 1")),
        ("<!--#user-data\nx\n-->\n<!--#network-config\nversion: 2\n-->", text("version: 2")),
        ("<!--#user-data\nx\n<!--#network-config\nversion: 2\n-->", text("version: 2")),
        (
            "<!--#network-config secrets=a\nversion: 2\n-->",
            flawed((1, 21), Flaw::UnknownAttribute(AttributeName::of("secrets=a"))),
        ),
        ("<!--#network-config\nversion: 3\n-->", flawed((1, 1), Flaw::Network(BadNetwork::OtherVersion))),
        ("<!--#network-config\na: 1\n-->", flawed((1, 1), Flaw::Network(BadNetwork::NoVersion))),
        (
            "a\n<!--#network-config\nversion: 2\nversion: 1\n-->",
            flawed((4, 1), Flaw::Network(BadNetwork::Twice { part: "version", place: None })),
        ),
        (
            "<!--#network-config\nversion: 2\nnetwork:\n  version: 2\n-->",
            flawed((2, 1), Flaw::Network(BadNetwork::Beside { part: "version", place: None })),
        ),
        ("a\n<!--#network-config\n- 1\n-->", flawed((3, 1), shape)),
        ("a\n<!--#network-config\nversion: 2\n---\nversion: 2\n-->", flawed((5, 1), second)),
        ("<!--#network-config\nversion: 2", flawed((1, 1), Flaw::Unclosed)),
        (
            "<!--#network-config\nversion: 2\n-->\n<!--#network-config\nversion: 2\n-->",
            flawed((4, 1), Flaw::Twice { first: 1 }),
        ),
    ] {
        assert_eq!(network(notes), expected, "{notes:?}");
    }
}

#[test]
fn vendor_data_and_policy_are_whole_or_an_error() {
    let vendor = |notes: &str| parse(notes).vendor_data.map(|block| block.map(|text| text.0));
    for (notes, expected) in [
        ("", None),
        ("<!--#vendor-data\n#cloud-config\n-->", Some(Ok(b"#cloud-config".to_vec()))),
        ("<!--#vendor-data encoding=base64\nQUJD\n-->", Some(Ok(b"ABC".to_vec()))),
        ("<!--#vendor-data secrets=a\nx\n-->", flawed((1, 18), Flaw::UnknownAttribute(AttributeName::of("secrets=a")))),
        ("<!--#vendor-data\nx", flawed((1, 1), Flaw::Unclosed)),
    ] {
        assert_eq!(vendor(notes), expected, "{notes:?}");
    }
    let policy = |notes: &str| parse(notes).policy;
    let hops = Flaw::Policy(BadPolicy::Value { key: "hop_limit", wanted: "a number from 1 to 64", place: None });
    let second = Flaw::Policy(BadPolicy::Yaml(YamlError { kind: Kind::SecondDocument, place: None }));
    let packed = Flaw::Policy(BadPolicy::Yaml(YamlError { kind: Kind::Shape, place: Some((1, 1)) }));
    for (notes, expected) in [
        ("", None),
        ("<!--#imds\n-->", Some(Ok(Policy::default()))),
        ("<!--#imds\nenabled: false\n-->", Some(Ok(Policy { enabled: false, ..Policy::default() }))),
        ("a\n<!--#imds\nmac: own\nhop_limit: 0\n-->", flawed((4, 12), hops)),
        ("<!--#imds encoding=base64\nLSBh\n-->", flawed((1, 1), packed)),
        ("<!--#imds\nmac: own\n---\nmac: own\n-->", flawed((4, 1), second)),
        ("<!--#imds secrets=a\n-->", flawed((1, 11), Flaw::UnknownAttribute(AttributeName::of("secrets=a")))),
        ("<!--#imds\n-->\n<!--#imds\n-->", flawed((3, 1), Flaw::Twice { first: 1 })),
    ] {
        assert_eq!(policy(notes), expected, "{notes:?}");
    }
}

#[test]
fn all_that_is_wrong_with_a_policy_is_remarked_on_its_line() {
    let notes = "a\n<!--#imds\nmac: own\nhops: 1\nenabled: never\n\nmacs: own\n-->\n <!--#user-data\n";
    let unknown = Oddity::Broken(Flaw::Policy(BadPolicy::UnknownKey { place: None }));
    let value = BadPolicy::Value { key: "enabled", wanted: "true or false", place: None };
    assert_eq!(
        remarks(notes),
        [
            (4, 1, "imds", unknown.clone()),
            (5, 10, "imds", Oddity::Broken(Flaw::Policy(value))),
            (7, 1, "imds", unknown),
            (9, 1, "user-data", Oddity::Misspelt { name: "user-data", slip: Slip::Indented }),
        ]
    );
    let notes = parse(notes);
    assert_eq!(notes.policy, flawed((4, 1), Flaw::Policy(BadPolicy::UnknownKey { place: None })));
    assert!(notes.remarks[..3].iter().all(|it| it.outcome == Some(Outcome::PolicyInvalid)));
}

#[test]
fn a_flaw_is_on_its_line_of_the_notes_whatever_ends_lines_in_yaml() {
    let place = |notes: &str| parse(notes).policy.unwrap().map_err(|error| (error.line, error.column));
    for (text, expected) in [
        ("hop_limit: 0", (2, 12)),
        ("mac: own\nhop_limit: 0", (3, 12)),
        ("mac: own\r\nhop_limit: 0", (3, 12)),
        ("mac: own\rhop_limit: 0", (2, 21)),
        ("#\r#\rmac: own\n\nhop_limit: 0", (4, 12)),
        ("#\r\r\nmac: own\r\nhop_limit: 0", (4, 12)),
        ("#\rmac: own\n- ü", (3, 3)),
    ] {
        assert_eq!(place(&format!("<!--#imds\n{text}\n-->")), Err(expected), "{text:?}");
    }
}

#[test]
fn a_name_that_nothing_reads_is_a_bound_and_nothing_more() {
    let notes = parse("<!--#pxe what=ever\nx\n-->\n<!--#user-data\ny\n-->\n<!--#pxe\n");
    let remarks = [1, 7].map(|line| remark(Name::Pxe, line, 1, Oddity::Unheeded)).to_vec();
    assert_eq!(notes, Notes { user_data: Some(Ok(plain("y"))), remarks, ..Notes::default() });
}

fn remarks(notes: &str) -> Vec<(usize, usize, &'static str, Oddity)> {
    parse(notes).remarks.iter().map(|it| (it.line, it.column, it.block.unwrap_or("-"), it.what.clone())).collect()
}

#[test]
fn what_does_not_do_what_it_seems_to_is_remarked() {
    let missed = |column, name, slip| vec![(1, column, name, Oddity::Misspelt { name, slip })];
    for (notes, expected) in [
        ("hello\n<!--#user-data\nx\n-->", vec![]),
        ("<!-- a comment -->\n<!--#other\n-->", vec![]),
        ("<!--#userdata\nx\n-->", missed(6, "user-data", Slip::Name)),
        (" <!--#user-data\nx\n-->", missed(1, "user-data", Slip::Indented)),
        ("<!-- #network_config\nx\n-->", missed(1, "network-config", Slip::Mark)),
        ("<!-#imds\nenabled: false\n-->", missed(1, "imds", Slip::Mark)),
        ("<!--#user-data-->", missed(15, "user-data", Slip::Behind)),
        ("> <!--#user-data\n> x\n> -->", missed(1, "user-data", Slip::Quoted)),
        ("&lt;!--#user-data\nx\n--&gt;", missed(1, "user-data", Slip::Escaped)),
        ("- <!--#user-data\n- x", missed(1, "user-data", Slip::Listed)),
        ("<!--#cloud-config\nx\n-->", missed(6, "user-data", Slip::Name)),
        ("<!--#meta-data\nx\n-->", vec![(1, 6, "meta-data", Oddity::NoSuchBlock)]),
        ("a\n<!--#user-data secrets=web\nx\n-->", vec![]),
        ("a\n<!--#user-data\n{{ secret \"a\" }}\n-->", vec![(2, 1, "user-data", Oddity::Unfilled)]),
        ("<!--#user-data secrets=web\n{{ secret \"a\" }}\n-->", vec![]),
        ("<!--#user-data\n{{ secrets \"a\" }}\n-->", vec![]),
        ("<!--#vendor-data\n{{ secret \"a\" }}\n-->", vec![]),
        ("<!--#user-data\nx", vec![(1, 1, "user-data", Oddity::Broken(Flaw::Unclosed))]),
        ("a\n<!--#imds,\n-->", vec![(2, 10, "imds", Oddity::Broken(Flaw::Opening(Slip::Behind)))]),
        (
            "<!--#pxe\nx\n-->\n<!--#network-config\nversion: 3\n-->",
            vec![
                (1, 1, "pxe", Oddity::Unheeded),
                (4, 1, "network-config", Oddity::Broken(Flaw::Network(BadNetwork::OtherVersion))),
            ],
        ),
        // A text is not looked into, and what stands around it is.
        ("<!--#user-data\n<!--#usr-data\n<!--#imds,\n<!-#imds\n-->", vec![]),
        ("<!--#user-data\n<!--#usr-data\nx -->\n", vec![]),
        (
            "<!--#user-data\n <!--#imds\n-->\n <!--#imds\n",
            vec![(4, 1, "imds", Oddity::Misspelt { name: "imds", slip: Slip::Indented })],
        ),
        (
            "<!--#user-data\nx -->\n <!--#imds\n<!--#vendor-data\n-->",
            vec![(3, 1, "imds", Oddity::Misspelt { name: "imds", slip: Slip::Indented })],
        ),
    ] {
        assert_eq!(remarks(notes), expected, "{notes:?}");
    }
}

#[test]
fn what_there_is_instead_is_said() {
    assert_eq!(
        parse("a\n<!--#meta-data\nx\n-->").remarks[0].to_string(),
        "line 2, column 6: meta-data: there is no such block: meta data is made of the VM's own configuration; there are \
         user-data, network-config, vendor-data, imds"
    );
}

#[test]
fn an_end_that_ends_nothing_is_remarked() {
    let strays = |notes: &str| {
        let strays = remarks(notes).into_iter().filter(|(.., what)| *what == Oddity::Stray);
        strays.map(|(line, column, block, _)| (line, column, block)).collect::<Vec<_>>()
    };
    for (notes, expected) in [
        ("-->", vec![(1, 1, "-")]),
        ("text\n \t--> \r\n", vec![(2, 3, "-")]),
        // Twice, and with text between.
        ("<!--#user-data\nx\n-->\n-->", vec![(4, 1, "-")]),
        ("<!--#user-data\nx\n-->\ny\n-->\n-->\n", vec![(5, 1, "-"), (6, 1, "-")]),
        ("<!--#user-data\nx\n-->\n-->\n<!--#imds\n-->\n-->", vec![(4, 1, "-"), (7, 1, "-")]),
        // The opening is gone.
        ("#cloud-config\n-->\n<!--#imds\n-->", vec![(2, 1, "-")]),
        ("packages: [nginx]\n-->\n", vec![(2, 1, "-")]),
        // It ends what somebody opened above.
        ("<!-- a\nb\n-->", vec![]),
        ("<!--#other\nx\n-->", vec![]),
        ("<!-- a --> <!-- b\n-->", vec![]),
        ("<!-- a\nb --> <!--\n-->\n-->", vec![(4, 1, "-")]),
        ("<!-- a -->\n-->", vec![(2, 1, "-")]),
        ("<!-- a\n<!--#user-data\nx\n-->\n-->", vec![]),
        // What was meant to open it is remarked on.
        ("<!--#userdata\nx\n-->", vec![]),
        ("<!-#imds\nenabled: false\n-->\n-->", vec![(4, 1, "-")]),
        ("<!--#imds,\nenabled: false\n-->", vec![]),
        ("<!--#user-data-->\n-->", vec![(2, 1, "-")]),
        // An arrow in a sentence is the operator's own, and so is everything in a block.
        ("a --> b\n--> c\n<!--#user-data\na --> b\n-->\n", vec![]),
        ("<!--#user-data\n<!--\n-->\n", vec![]),
    ] {
        assert_eq!(strays(notes), expected, "{notes:?}");
    }
    let told = parse("a\n -->").remarks[0].to_string();
    assert!(told.starts_with("line 2, column 2: this ends nothing: "), "{told}");
}

/// The guest hears the word that stands beside the line in the log.
#[test]
fn a_remark_says_what_the_guest_is_told() {
    for (block, expected) in [
        ("user-data", Some(Outcome::NotesInvalid)),
        ("vendor-data", Some(Outcome::NotesInvalid)),
        ("imds", Some(Outcome::PolicyInvalid)),
        ("network-config", None),
        ("pxe", None),
        ("user-data secrets=.", Some(Outcome::SetNameInvalid)),
    ] {
        let end = if block.contains('=') { "\n-->" } else { "" };
        let remarks = parse(&format!("<!--#{block}\n{end}")).remarks;
        assert_eq!(remarks.iter().map(|it| it.outcome).collect::<Vec<_>>(), [expected], "{block}");
    }
}

#[test]
fn a_block_that_was_plainly_meant_is_broken_and_not_absent() {
    for (opening, column, slip) in [
        ("<!--#NAME\u{a0}encoding=base64", 0, Slip::Behind),
        ("<!--#NAME,encoding=base64", 0, Slip::Behind),
        ("\u{feff}<!--#NAME", 1, Slip::Invisible),
        ("\u{200b}<!--#NAME encoding=base64", 1, Slip::Invisible),
    ] {
        for name in ["user-data", "network-config", "vendor-data", "imds"] {
            let notes = parse(&format!("text\n{}\nZQ==\n-->\n", opening.replace("NAME", name)));
            let column = if column == 0 { "<!--#".len() + name.len() + 1 } else { column };
            let broken: Vec<_> = notes.broken().map(|(name, error)| (name.word(), error.clone())).collect();
            let flaw = Flaw::Opening(slip);
            assert_eq!(broken, [(name, BlockError { line: 2, column, flaw })], "{opening:?}");
            let what = Oddity::Broken(flaw);
            assert_eq!(notes.remarks, [remark(Name::parse(name).unwrap(), 2, column, what)], "{opening:?}");
        }
    }
    let twice = "<!--#user-data,\nx\n-->\n<!--#user-data\nx\n-->";
    assert_eq!(user_data(twice), flawed((4, 1), Flaw::Twice { first: 1 }));
}

#[test]
fn remarks_are_as_many_as_can_be_read() {
    let last = |line, column, block, more| Remark {
        line,
        column,
        block: Some(block),
        what: Oddity::More(more),
        outcome: None,
    };
    for (notes, expected) in [
        ("<!--#pxe\n".repeat(MAX_REMARKS), None),
        ("<!--#pxe\n".repeat(MAX_REMARKS + 1), Some(last(51, 1, "pxe", 1))),
        ("<!--#pxe\n".repeat(1000), Some(last(51, 1, "pxe", 950))),
        ("\n<!--#usr-data\n".repeat(95_000), Some(last(102, 6, "user-data", 94_950))),
        ("-->\n".repeat(51), Some(Remark { block: None, ..last(51, 1, "", 1) })),
    ] {
        let told = parse(&notes).remarks;
        assert_eq!(told.len(), MAX_REMARKS + usize::from(expected.is_some()));
        assert_eq!(told.last().cloned().filter(|last| matches!(last.what, Oddity::More(_))), expected);
        assert!(told[..MAX_REMARKS].is_sorted_by_key(|remark| remark.line));
    }
    // What breaks a block is told however much stands before it.
    let notes = parse(&format!("{}<!--#user-data\nx", " <!--#imds\n".repeat(1000)));
    let ends = &notes.remarks[MAX_REMARKS..];
    let broken = remark(Name::UserData, 1001, 1, Oddity::Broken(Flaw::Unclosed));
    assert_eq!(ends, [broken, last(51, 1, "imds", 950)]);
}

#[test]
fn nothing_of_a_text_is_printed() {
    for notes in [
        "<!--#user-data\ncanary\n-->\n<!--#network-config\n- canary\n-->",
        "<!--#user-data canary\n-->\n<!--#network-config\ncanary: [\n-->",
        "<!--#user-data secret=canary\n-->\n<!--#network-config password=canary\n-->",
        "<!--#user-data secrets=canary!\n-->\n<!--#network-config encoding=canary\nversion: canary\n-->",
        "<!--#user-data encoding=base64\ncanary\n-->\n<!--#network-config\nversion: canary\n-->",
        "<!--#user-data\ncanary\n<!--#network-config\nversion: 2\npassword: canary\n-->",
        "<!--#user-data,canary\n-->\n\u{feff}<!--#network-config canary\n<!--#usr-data canary",
    ] {
        let parsed = parse(notes);
        assert!(parsed.user_data.is_some() && parsed.network_config.is_some(), "{notes}");
        let mut shown = format!("{parsed:?}");
        for error in [parsed.user_data.and_then(Result::err), parsed.network_config.and_then(Result::err)] {
            shown += &error.map(|error| error.to_string()).unwrap_or_default();
        }
        assert!(!shown.contains("canary"), "{shown}");
    }
}

#[test]
fn a_megabyte_of_openings_takes_no_time() {
    let start = Instant::now();
    for line in [
        "<!--#user-data\n",
        "<!--#pxe\n-->\n",
        "-->",
        "-->\n",
        "<!---->",
        "<!--#user-data\r\n--> x\r\n",
        "<!--#usr-data\n",
        "<!--#user-data,\n",
        "<!--##",
        "<!--#usr-data",
        "\u{feff}",
        "> ",
        "- ",
        "1. ",
        "&lt;!--#",
        "> <!--#user-data\n",
    ] {
        let _ = parse(&line.repeat((1 << 20) / line.len()));
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever stands between the marks comes out as it went in, unless it holds marks itself.
    #[test]
    fn a_text_comes_out_as_it_went_in(text in "[a-z<!# \\n\\tü-]{0,60}", before in "[a-z \\n]{0,20}") {
        prop_assume!(!text.contains("<!--#"));
        let notes = format!("{before}\n<!--#user-data\n{text}\n-->\n");
        prop_assert_eq!(user_data(&notes), Some(Ok(plain(&text))));
    }

    /// Every sequence of pieces is parsed without a panic, and twice the same way.
    #[test]
    fn any_notes_are_parsed(pieces in prop::collection::vec(prop::sample::select(vec![
        "<!--#user-data", "<!--#network-config", "<!--#pxe", "-->", "\n", "\r\n", " ", "secrets=a", "encoding=base64",
        "encoding=gzip+base64", "QUJD", "version: 2", "ü", "<!--", "#", "<!-#imds", "<!--#usr-data", "\u{feff}", ",",
        "\u{a0}", "\r",
    ]), 0..30)) {
        let notes = pieces.concat();
        prop_assert_eq!(parse(&notes), parse(&notes));
    }

    /// Nothing in a text is taken for an opening, unless it is one.
    #[test]
    fn a_text_is_not_remarked_on(lines in prop::collection::vec(prop::sample::select(vec![
        "<!--#user-data,", "\u{feff}<!--#imds", "<!-#pxe", "<!--#usr-data", " <!--#imds", "<!--vendor-data", "x", "",
    ]), 0..30)) {
        let text = lines.join("\n");
        let notes = parse(&format!("<!--#user-data\n{text}\n-->\n"));
        prop_assert_eq!(notes, Notes { user_data: Some(Ok(plain(&text))), ..Notes::default() });
    }
}

/// Whoever writes the network of a card that is not there should hear it before somebody misses it.
#[test]
fn a_network_for_nobody_here_is_remarked() {
    let nics = |text: &str| crate::conf::parse(crate::vm::VmId::new(106).unwrap(), text.as_bytes()).vm.nets;
    let one = nics("net0: virtio=BC:24:11:00:00:0A\n");
    let two = nics("net0: virtio=BC:24:11:00:00:0A\nnet3: virtio\n");
    let of_one = "net0 (bc:24:11:00:00:0a)";
    for (text, nets, expected) in [
        ("version: 2\nethernets: {net0: {dhcp4: true}}", &one, None),
        ("version: 2\nethernets: {lan: {match: {macaddress: \"BC-24-11-00-00-0a\"}}}", &one, None),
        ("version: 2\nethernets: {net0: {}, eth7: {}}", &one, None),
        ("version: 2\nethernets: {eth0: {dhcp4: true}}", &one, Some(of_one)),
        ("version: 2\nethernets: {net0: {match: {macaddress: \"bc:24:11:00:00:0b\"}}}", &one, Some(of_one)),
        ("version: 2\nethernets: {lan: {match: {name: \"e*\"}}}", &one, Some(of_one)),
        ("version: 1\nconfig: [{type: physical, name: eth0, subnets: [{type: dhcp}]}]", &one, Some(of_one)),
        ("version: 1\nconfig: [{type: physical, name: net0, subnets: [{type: dhcp}]}]", &one, None),
        ("version: 2", &two, Some("net0 (bc:24:11:00:00:0a), net3 (no address in the configuration)")),
        // A broken one is told for what it is, and who has no card needs none.
        ("version: 3", &one, None),
        ("version: 2", &Vec::new(), None),
    ] {
        let notes = Notes::parse(&format!("mine\n<!--#network-config\n{text}\n-->"), nets);
        let expected = expected.map(|nics| {
            format!(
                "line 2, column 1: network-config: it speaks of none of this VM's NICs, so OpenStack's and EC2's clients get \
                 DHCP; say `macaddress` as here: {nics}"
            )
        });
        let told: Vec<_> = notes
            .remarks
            .iter()
            .filter(|remark| !matches!(remark.what, Oddity::Broken(_)))
            .map(ToString::to_string)
            .collect();
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>(), "{text}");
    }
}
