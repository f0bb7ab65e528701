//! Whatever a block holds, the document is one that every client can read.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{schema, site, vm};
use crate::network::NetworkText;
use crate::network_data::{Addresses, network_data};
use crate::vm::VmId;
use crate::{conf, yaml};

/// Keys, and in JSON what often stands behind them.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "match",
        &[r#"{"macaddress": "BC:24:11:00:00:01"}"#, r#"{"macaddress": "bc:24:11:00:00:09"}"#, r#"{"name": "en*"}"#],
    ),
    (
        "addresses",
        &[r#"["192.0.2.5/24", "2001:db8::5/64"]"#, r#"["192.0.2.5", {"192.0.2.6/25": {}}, "192.0.2.7/99"]"#, "[]"],
    ),
    ("gateway4", &[r#""192.0.2.1""#, r#""fe80::1""#]),
    ("gateway6", &[r#""fe80::1""#, r#""x""#]),
    ("dhcp4", &["true", r#""yes""#]),
    ("dhcp6", &["true", "false"]),
    ("accept-ra", &["true"]),
    ("mtu", &["1500", "1", "65536", r#""1400""#]),
    (
        "routes",
        &[
            r#"[{"to": "default", "via": "192.0.2.1", "on-link": true}, {"to": "::/0", "via": "2001:db8::1", "metric": 5}]"#,
            r#"[{"to": "10.0.0.0/8", "via": "198.51.100.1"}, {"to": "10.0.0.0/8"}, {"to": "::/0", "via": "192.0.2.1"}]"#,
            r#"[{"network": "10.0.0.0", "netmask": "255.0.0.0", "gateway": "192.0.2.1"}, {"destination": "::", "prefix": 0, "gateway": "fe80::1"}]"#,
        ],
    ),
    ("nameservers", &[r#"{"addresses": ["192.0.2.53", "::1", "192.0.2.53", "ns"], "search": ["a.example", "-"]}"#]),
    ("macaddress", &[r#""02:00:00:00:00:01""#, r#""02""#]),
    ("id", &["5", "5", "4095", r#""7""#, "-1"]),
    ("link", &[r#""net0""#, r#""a""#, r#""bond0""#, r#""gone""#]),
    ("interfaces", &[r#"["net0", "net1", "net0"]"#, r#"["a", "gone"]"#, "[]"]),
    (
        "parameters",
        &[
            r#"{"mode": "802.3ad", "mii-monitor-interval": 100, "lacp-rate": "fast"}"#,
            r#"{"mode": 9, "up-delay": "x"}"#,
        ],
    ),
    ("mac_address", &[r#""bc:24:11:00:00:01""#, r#""BC-24-11-00-00-02""#, r#""bc:24:11:00:00:09""#]),
    (
        "subnets",
        &[
            r#"[{"type": "static", "address": "192.0.2.5", "netmask": "255.255.255.0", "gateway": "192.0.2.1", "dns_nameservers": "::1 192.0.2.9"}]"#,
            r#"[{"type": "dhcp6"}, {"type": "static6", "address": "2001:db8::5/64", "routes": [{"network": "::/0", "gateway": "fe80::1"}]}]"#,
            r#"[{"type": "ipv6_dhcpv6-stateful"}, {"type": "ipv6_slaac", "dns_search": ["b.example"]}, {"type": "manual", "mtu": 1400}]"#,
        ],
    ),
    ("vlan_id", &["5", r#""5""#, "4095"]),
    ("vlan_link", &[r#""net0""#, r#""bond0""#, r#""v""#]),
    ("bond_interfaces", &[r#"["net0", "a"]"#, r#""net0 net1""#]),
    (
        "params",
        &[
            r#"{"bond-mode": 1, "bond_miimon": 100, "bond-xmit_hash_policy": "layer3+4"}"#,
            r#"{"bond": 1, "bond-": {}}"#,
        ],
    ),
    ("address", &[r#"["192.0.2.53", "::1"]"#, r#""192.0.2.54""#]),
    ("search", &[r#"["a.example"]"#]),
    ("interface", &[r#""net0""#]),
    ("destination", &[r#""10.0.0.0/8""#, r#""default""#]),
    ("gateway", &[r#""192.0.2.1""#]),
];

const NAMES: &[&str] = &["net0", "net0", "net1", "net2", "net3", "a", "bond0", "v"];

const KINDS: &[&str] = &["physical", "physical", "bond", "vlan", "nameserver", "route", "bridge"];

/// A value of any shape.
fn any_value() -> impl Strategy<Value = Value> {
    let plain = prop_oneof![
        "[ -~]{0,12}".prop_map(Value::String),
        Just(json!("\u{1f980}\u{0}\"")),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|number| json!(number)),
        Just(Value::Null),
    ];
    plain.prop_recursive(2, 8, 4, |inner| {
        let field = (prop::sample::select(FIELDS).prop_map(|(key, _)| key.to_owned()), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::Array),
            prop::collection::vec(field, 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// A part of a document, mostly of the right shape.
fn part() -> impl Strategy<Value = Value> {
    let field = prop::sample::select(FIELDS).prop_flat_map(|(key, often)| {
        let often = prop::sample::select(often).prop_map(|text| serde_json::from_str(text).unwrap());
        prop_oneof![9 => often, 1 => any_value()].prop_map(move |value| (key.to_owned(), value))
    });
    let fields = prop::collection::vec(field, 3..14).prop_map(|fields| fields.into_iter().collect::<Map<_, _>>());
    (prop::sample::select(KINDS), prop::sample::select(NAMES), fields).prop_map(|(kind, name, fields)| {
        let mut part = Map::from_iter([("type".to_owned(), json!(kind)), ("name".to_owned(), json!(name))]);
        part.extend(fields);
        Value::Object(part)
    })
}

fn document() -> impl Strategy<Value = Value> {
    let section = || {
        let field = (prop::sample::select(NAMES).prop_map(str::to_owned), part());
        let section = prop::collection::vec(field, 0..5).prop_map(|fields| Value::Object(fields.into_iter().collect()));
        prop_oneof![19 => section, 1 => any_value()]
    };
    let second = (section(), section(), section()).prop_map(
        |(ethernets, bonds, vlans)| json!({"version": 2, "ethernets": ethernets, "bonds": bonds, "vlans": vlans}),
    );
    let parts = prop::collection::vec(part(), 0..8).prop_map(Value::Array);
    let first = prop_oneof![19 => parts, 1 => any_value()].prop_map(|config| json!({"version": 1, "config": config}));
    let wrapped = |(wrap, body)| if wrap { json!({"network": body}) } else { body };
    (any::<bool>(), prop_oneof![second, first]).prop_map(wrapped)
}

/// Blocks as people write them, to be damaged.
const WRITTEN: &[&str] = &[
    "version: 2\nethernets:\n  net0:\n    match: {macaddress: \"bc:24:11:00:00:01\"}\n    addresses: [192.0.2.10/24, \"2001:db8::5/64\"]\n    \
     routes: [{to: 0.0.0.0/0, via: 192.0.2.1}]\n    nameservers: {addresses: [192.0.2.53], search: [a.example]}\n",
    "network:\n  version: 1\n  config:\n  - {type: physical, name: eth0, mac_address: \"bc:24:11:00:00:01\", subnets: [{type: static, \
     address: 192.0.2.30/24, gateway: 192.0.2.1}]}\n  - {type: nameserver, address: [192.0.2.54]}\n",
    "version: 2\nethernets: {net0: &x {dhcp4: true}, net1: *x}\nbonds: {b: {interfaces: [net0, net1], parameters: {mode: active-backup}}}\n\
     vlans: {10: {id: 10, link: b, addresses: [10.0.0.5/8]}}\n",
];

proptest! {
    #[test]
    fn a_document_of_any_shape_is_one_that_clients_can_read(document in document()) {
        good(&yaml::write(&document).unwrap());
    }

    #[test]
    fn a_damaged_block_is_a_block_or_dhcp(
        which in 0..WRITTEN.len(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b" \n:-[]{},\"'&*0a.#~".as_slice())), 1..6),
    ) {
        let mut text = WRITTEN[which].as_bytes().to_vec();
        for (place, byte) in damage {
            let place = place.index(text.len());
            text[place] = byte;
        }
        good(&String::from_utf8(text).unwrap());
    }

    #[test]
    fn text_of_any_kind_is_no_trouble(text in "(version: [12]\n)?(ethernets|config):[ -~\n]{0,80}") {
        good(&text);
    }
}

fn good(block: &str) {
    let vm = vm("", block);
    let document = network_data(&vm, &site());
    assert_eq!(schema::wrong(&document, &vm), None, "{block}\n{document:#}");
    assert_eq!(document.to_string(), network_data(&vm, &site()).to_string(), "stable");
    for index in 0..4 {
        let Addresses { ipv4, ipv6 } = Addresses::of(&vm, index, &site());
        let text = document.to_string();
        for cidr in ipv4.iter().chain(&ipv6) {
            assert!(text.contains(cidr.split('/').next().unwrap()), "{cidr} is EC2's alone: {text}");
        }
    }
}

/// The Notes cannot make a document of megabytes, nor keep one.
#[test]
fn a_document_has_an_end() {
    let many = |count: usize, of: &dyn Fn(usize) -> String| (0..count).map(of).collect::<Vec<_>>().join(", ");
    let addresses = many(40, &|at| format!("10.0.{at}.1/24"));
    let routes = many(58, &|at| format!("{{to: 10.9.{at}.0/24, via: 10.0.{at}.2, metric: 4294967295}}"));
    let servers = many(10, &|at| format!("192.0.2.{at}"));
    let domains = many(10, &|at| format!("{}.d{at}", "x".repeat(240)));
    let all = format!(
        "addresses: [{addresses}], routes: [{routes}], nameservers: {{addresses: [{servers}], search: [{domains}]}}"
    );
    let nics: String = (0..32).map(|at| format!("net{at}: virtio=BC:24:11:00:01:{at:02X},bridge=vmbr0\n")).collect();
    // About as many nodes as are kept, then many more.
    let cards = many(32, &|at| format!("net{at}: {{{all}}}"));
    let short = format!("version: 2\nethernets: {{{cards}}}");
    let long = format!(
        "version: 2\nethernets: {{net0: {{}}}}\nvlans: {{{}}}",
        many(60, &|at| format!("v{at}: {{id: {at}, link: net0, {all}}}"))
    );
    for (block, at_least) in [(short, 100 << 10), (long, 0)] {
        let text = NetworkText::new(block.into_bytes()).unwrap();
        let mut vm = conf::parse(VmId::new(100).unwrap(), nics.as_bytes()).vm;
        vm.notes.network_config = Some(Ok(text));
        let document = network_data(&vm, &site());
        assert_eq!(schema::wrong(&document, &vm), None);
        let length = document.to_string().len();
        assert!((at_least..1 << 20).contains(&length), "{length}");
    }
}
