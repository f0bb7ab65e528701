use super::*;
use crate::yaml::Kind;

#[test]
fn a_policy_is_understood_whole_or_is_an_error() {
    let default = Policy::default;
    let value = |key, wanted, place| Err(BadPolicy::Value { key, wanted, place: Some(place) });
    let yaml = |kind, place| Err(BadPolicy::Yaml(YamlError { kind, place }));
    let (enabled, emulate) = ("true or false", "auto, openstack or ec2");
    let (hops, some) = ("a number from 1 to 64", "a list of at most 32 texts of 1 to 512 characters");
    for (text, expected) in [
        ("", Ok(default())),
        ("# nothing yet", Ok(default())),
        ("{}", Ok(default())),
        ("enabled: true", Ok(default())),
        ("enabled: false", Ok(Policy { enabled: false, ..default() })),
        ("emulate: auto", Ok(Policy { emulate: Some(Emulation::Auto), ..default() })),
        ("emulate: ec2", Ok(Policy { emulate: Some(Emulation::Ec2), ..default() })),
        ("emulate: openstack", Ok(Policy { emulate: Some(Emulation::Openstack), ..default() })),
        ("ec2_tokens: optional", Ok(default())),
        ("ec2_tokens: required", Ok(Policy { ec2_tokens: Ec2Tokens::Required, ..default() })),
        ("hop_limit: 1", Ok(Policy { hop_limit: HopLimit(1), ..default() })),
        ("hop_limit: 64\nmac: any", Ok(default())),
        ("mac: own", Ok(Policy { mac: MacRule::Own, ..default() })),
        ("audiences: []", Ok(Policy { audiences: Some(vec![]), ..default() })),
        (
            "audiences: [a, \"b c\"]",
            Ok(Policy { audiences: Some(["a", "b c"].map(|name| Audience::parse(name).unwrap()).into()), ..default() }),
        ),
        ("enabled: 0", value("enabled", enabled, (1, 10))),
        ("mac: own\nenabled: \"false\"", value("enabled", enabled, (2, 10))),
        ("enabled:", value("enabled", enabled, (1, 8))),
        ("emulate: EC2", value("emulate", emulate, (1, 10))),
        ("hop_limit: 0", value("hop_limit", hops, (1, 12))),
        ("hop_limit: 65", value("hop_limit", hops, (1, 12))),
        ("hop_limit: 320", value("hop_limit", hops, (1, 12))),
        ("hop_limit: -1", value("hop_limit", hops, (1, 12))),
        ("hop_limit: 1.0", value("hop_limit", hops, (1, 12))),
        ("hop_limit: \"1\"", value("hop_limit", hops, (1, 12))),
        ("audiences: a", value("audiences", some, (1, 12))),
        ("audiences: [1]", value("audiences", some, (1, 12))),
        ("audiences: [\"\"]", value("audiences", some, (1, 12))),
        ("audiences: [\"a\\n\"]", value("audiences", some, (1, 12))),
        // YAML 1.1 had more words for a boolean, and they mean what their writer meant. In quotes they are none.
        ("enabled: no", Ok(Policy { enabled: false, ..default() })),
        ("enabled: No", Ok(Policy { enabled: false, ..default() })),
        ("enabled: NO", Ok(Policy { enabled: false, ..default() })),
        ("enabled: n", Ok(Policy { enabled: false, ..default() })),
        ("enabled: off", Ok(Policy { enabled: false, ..default() })),
        ("enabled: Off", Ok(Policy { enabled: false, ..default() })),
        ("enabled: OFF", Ok(Policy { enabled: false, ..default() })),
        ("enabled: False", Ok(Policy { enabled: false, ..default() })),
        ("enabled: FALSE", Ok(Policy { enabled: false, ..default() })),
        ("enabled: !!bool no", Ok(Policy { enabled: false, ..default() })),
        ("enabled: yes", Ok(default())),
        ("enabled: Yes", Ok(default())),
        ("enabled: y", Ok(default())),
        ("enabled: on", Ok(default())),
        ("enabled: ON", Ok(default())),
        ("enabled: True", Ok(default())),
        ("enabled: \"no\"", value("enabled", enabled, (1, 10))),
        ("enabled: never", value("enabled", enabled, (1, 10))),
        ("enabled: 1", value("enabled", enabled, (1, 10))),
        ("mac: on", value("mac", "any or own", (1, 6))),
        ("Enabled: false", Err(BadPolicy::UnknownKey { place: Some((1, 1)) })),
        ("enabled: false\nhoplimit: 1", Err(BadPolicy::UnknownKey { place: Some((2, 1)) })),
        ("<<: {enabled: false}", Err(BadPolicy::UnknownKey { place: Some((1, 1)) })),
        ("? [enabled]\n: false", Err(BadPolicy::UnknownKey { place: Some((1, 3)) })),
        ("enabled: true\nenabled: false", Err(BadPolicy::Twice { key: "enabled", place: Some((2, 1)) })),
        ("- enabled", yaml(Kind::Shape, Some((1, 1)))),
        ("enabled", yaml(Kind::Shape, Some((1, 1)))),
    ] {
        assert_eq!(Policy::parse(text.as_bytes()), expected.map_err(Flaws::from), "{text}");
    }
    let many = |count| format!("audiences: [{}]", vec!["a"; count].join(", "));
    assert!(Policy::parse(many(32).as_bytes()).is_ok());
    assert!(Policy::parse(many(33).as_bytes()).is_err());
    assert!(Policy::parse(b"enabled: [").is_err());
    assert!(Policy::parse(b"\xff").is_err());
}

#[test]
fn everything_wrong_is_said_at_once_and_not_more_than_can_be_read() {
    let text =
        "hoplimit: 1\nenabled: never\nmac: own\nmacs:\n  - own\nhop_limit: 65\nhop_limit: 66\n\"emulate\": EC2\n";
    let said: Vec<_> = flaws(text).iter().map(ToString::to_string).collect();
    let unknown = "the keys are enabled, emulate, ec2_tokens, hop_limit, mac and audiences";
    assert_eq!(
        said,
        [
            format!("an unknown key (line 1, column 1); {unknown}"),
            "`enabled` must be true or false (line 2, column 10)".into(),
            format!("an unknown key (line 4, column 1); {unknown}"),
            "`hop_limit` must be a number from 1 to 64 (line 6, column 12)".into(),
            "`hop_limit` is given twice; remove one of them (line 7, column 1)".into(),
            "`emulate` must be auto, openstack or ec2 (line 8, column 12)".into(),
        ]
    );
    let many: String = (0..1000).map(|number| format!("k{number}: 1\n")).collect();
    assert_eq!(flaws(&many).len(), MAX_FLAWS);
}

fn flaws(text: &str) -> Vec<BadPolicy> {
    let Flaws { first, more } = Policy::parse(text.as_bytes()).unwrap_err();
    [vec![first], more].concat()
}

#[test]
fn a_policy_narrows_what_the_node_shows_and_tokens_leave_the_dialect_that_has_them() {
    use Emulation as E;
    let policy = |emulate, ec2_tokens| Policy { emulate, ec2_tokens, ..Policy::default() };
    for (emulate, tokens, node, shown) in [
        (None, Ec2Tokens::Optional, E::Auto, E::Auto),
        (None, Ec2Tokens::Optional, E::Openstack, E::Openstack),
        (None, Ec2Tokens::Optional, E::Ec2, E::Ec2),
        (Some(E::Auto), Ec2Tokens::Optional, E::Auto, E::Auto),
        (Some(E::Auto), Ec2Tokens::Optional, E::Openstack, E::Openstack),
        (Some(E::Auto), Ec2Tokens::Optional, E::Ec2, E::Ec2),
        (Some(E::Openstack), Ec2Tokens::Optional, E::Auto, E::Openstack),
        (Some(E::Openstack), Ec2Tokens::Optional, E::Openstack, E::Openstack),
        (Some(E::Openstack), Ec2Tokens::Optional, E::Ec2, E::Ec2),
        (Some(E::Ec2), Ec2Tokens::Optional, E::Auto, E::Ec2),
        (Some(E::Ec2), Ec2Tokens::Optional, E::Openstack, E::Ec2),
        (Some(E::Ec2), Ec2Tokens::Optional, E::Ec2, E::Ec2),
        (None, Ec2Tokens::Required, E::Auto, E::Ec2),
        (None, Ec2Tokens::Required, E::Openstack, E::Ec2),
        (Some(E::Auto), Ec2Tokens::Required, E::Auto, E::Auto),
    ] {
        assert_eq!(policy(emulate, tokens).emulation(node), shown, "{emulate:?} {tokens:?} {node:?}");
    }
}
