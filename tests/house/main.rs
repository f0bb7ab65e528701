//! The rules of the house, each a test: which rooms there are, who may know whom, which library lives where, where
//! `unsafe` may stand, what the top level holds.
//!
//! A rule that breaks names itself and the offender. The way out is to move the code, or to change the table here in the
//! same commit that says why.
#![allow(clippy::unwrap_used)]

#[path = "../clients/table.rs"]
mod clients;
mod docs;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tree::{Crate, crates, root, says};

/// The arrows: each crate, and those of ours it is built from. Knowledge (`model`) may be named by all that stand
/// above it on an arrow.
const ARROWS: &[(&str, &[&str])] = &[
    (
        "pve-imds",
        &[
            "pve-imds-datasources",
            "pve-imds-middleware",
            "pve-imds-model",
            "pve-imds-observability",
            "pve-imds-transport",
        ],
    ),
    ("pve-imds-transport", &["pve-imds-bpf"]),
    ("pve-imds-bpf", &[]),
    ("pve-imds-middleware", &["pve-imds-model"]),
    ("pve-imds-datasources", &["pve-imds-backends", "pve-imds-model"]),
    ("pve-imds-backends", &["pve-imds-model"]),
    ("pve-imds-model", &[]),
    ("pve-imds-observability", &[]),
];

/// Libraries with an address: package, the crates built from it, those whose tests may use it besides, and why.
const ROOMS: &[(&str, &[&str], &[&str], &str)] = &[
    ("aya", &["pve-imds-bpf"], &[], "only bpf loads programs"),
    ("smoltcp", &["pve-imds-transport"], &["pve-imds"], "only transport speaks TCP; tests play the guest"),
    ("rtnetlink", &["pve-imds-transport"], &[], "only transport finds interfaces"),
    ("netlink-packet-route", &["pve-imds-transport"], &[], "only transport finds interfaces"),
    ("hyper", &["pve-imds-transport", "pve-imds"], &[], "HTTP is served by transport and the node's listeners"),
    ("hyper-util", &["pve-imds-transport", "pve-imds"], &[], "as hyper"),
    ("governor", &["pve-imds-middleware"], &[], "limits are a layer"),
    ("notify", &["pve-imds-backends"], &[], "outgoing IO is in backends"),
    ("reqwest", &["pve-imds-backends"], &[], "outgoing IO is in backends"),
    ("josekit", &["pve-imds-backends"], &[], "keys are in backends"),
    ("aws-sigv4", &["pve-imds-backends"], &[], "outgoing IO is in backends"),
    ("openssl", &["pve-imds-backends"], &[], "the one crypto stack has one door"),
    ("tokio-openssl", &["pve-imds-backends"], &[], "as openssl"),
    ("serde-saphyr", &["pve-imds-model"], &[], "YAML is wrapped once, in model/src/yaml.rs"),
    (
        "metrics-exporter-prometheus",
        &["pve-imds-observability"],
        &["pve-imds-middleware"],
        "receivers are installed in observability; tests listen",
    ),
    (
        "tracing-subscriber",
        &["pve-imds-observability"],
        &["pve-imds-middleware"],
        "receivers are installed in observability; tests listen",
    ),
    ("tracing-opentelemetry", &["pve-imds-observability"], &[], "receivers are installed in observability"),
    ("opentelemetry", &["pve-imds-observability"], &[], "receivers are installed in observability"),
    ("opentelemetry_sdk", &["pve-imds-observability"], &[], "receivers are installed in observability"),
    ("opentelemetry-otlp", &["pve-imds-observability"], &[], "receivers are installed in observability"),
    ("anyhow", &["pve-imds"], &[], "libraries have typed errors, the binary has context"),
    ("clap", &["pve-imds"], &[], "only the binary has a command line"),
    ("sd-notify", &["pve-imds"], &[], "only the binary talks to systemd"),
];

/// Where `unsafe` may stand: the AF_XDP rings, and one file of the loader if it needs any.
const UNSAFE_ROOMS: &[(&str, &str)] =
    &[("pve-imds-transport", "transport/src/xsk.rs"), ("pve-imds-bpf", "one file of bpf/src")];

/// The top level, besides dotfiles and what building leaves behind.
const TOP_LEVEL: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "src",
    "transport",
    "bpf",
    "middleware",
    "services",
    "observability",
    "tests",
    "debian",
    "README.md",
    "LICENSE",
    "Makefile",
    "target",
];

/// What a crate is built from, of ours only.
fn ours(krate: &Crate, dev: bool) -> BTreeSet<&str> {
    krate.uses(dev).into_iter().filter(|name| name.starts_with("pve-imds")).collect()
}

#[test]
fn there_are_eight_crates() {
    let expected: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    let found: BTreeSet<&str> = crates().iter().map(|krate| krate.name.as_str()).collect();
    assert_eq!(found, expected, "rule: the workspace is these eight crates");
    assert_eq!(found.len(), 8, "rule: the workspace is eight crates");
}

#[test]
fn arrows_point_one_way() {
    let arrows: BTreeMap<&str, BTreeSet<&str>> =
        ARROWS.iter().map(|(name, to)| (*name, to.iter().copied().collect())).collect();
    for krate in crates() {
        let allowed = &arrows[krate.name.as_str()];
        assert_eq!(&ours(krate, false), allowed, "rule: {} is built from exactly these rooms", krate.name);
        let extra: Vec<_> = ours(krate, true).difference(allowed).copied().collect();
        assert!(
            extra.is_empty(),
            "rule: tests follow the arrows too (only features may be added): {} -> {extra:?}",
            krate.name
        );
    }
}

#[test]
fn libraries_stay_in_their_rooms() {
    let mut broken = Vec::new();
    for (package, built, tested, why) in ROOMS {
        for krate in crates() {
            let name = krate.name.as_str();
            if krate.uses(false).contains(package) && !built.contains(&name) {
                broken.push(format!("{name} is built from {package}: {why}"));
            }
            if krate.uses(true).contains(package) && !built.contains(&name) && !tested.contains(&name) {
                broken.push(format!("{name} is tested with {package}: {why}"));
            }
        }
    }
    assert!(broken.is_empty(), "rule: a library stays in its room\n{}", broken.join("\n"));
}

#[test]
fn every_crate_may_be_named_in_log_level() {
    let check = fs::read_to_string(root().join("src/config/check.rs")).unwrap();
    for krate in crates() {
        let Some(name) = krate.name.strip_prefix("pve-imds-") else { continue };
        assert!(
            check.contains(&format!("\"{name}\"")),
            "rule: log_level knows what logs, so src/config/check.rs has {name}"
        );
    }
}

#[test]
fn yaml_is_wrapped_once() {
    let mut found = Vec::new();
    for krate in crates() {
        found.extend(
            krate.sources("src").into_iter().filter(|(_, text)| says(text, "serde_yaml")).map(|(path, _)| path),
        );
    }
    found.retain(|path| path.to_str() != Some("services/model/src/yaml.rs"));
    assert!(found.is_empty(), "rule: YAML only in services/model/src/yaml.rs, but: {found:?}");
}

#[test]
fn nothing_is_depended_on_in_vain() {
    let mut idle = Vec::new();
    for krate in crates() {
        let of = |parts: &[&str]| {
            parts.iter().flat_map(|part| krate.sources(part)).map(|(_, text)| text).collect::<Vec<_>>()
        };
        let (built, tested) = (of(&["src"]), of(&["src", "tests", "examples", "benches"]));
        let build_script = fs::read_to_string(root().join(&krate.dir).join("build.rs")).unwrap_or_default();
        for dep in &krate.dependencies {
            let texts = if dep.dev { &tested } else { &built };
            if !texts.iter().any(|text| says(text, &dep.ident)) && !says(&build_script, &dep.ident) {
                idle.push(format!("{} -> {}", krate.name, dep.package));
            }
        }
    }
    assert!(idle.is_empty(), "rule: what no code names is not a dependency\n{}", idle.join("\n"));
}

#[test]
fn unsafe_has_an_address() {
    for krate in crates() {
        let may = UNSAFE_ROOMS.iter().find(|(name, _)| *name == krate.name).map(|(_, place)| *place);
        let sources = krate.sources("src");
        let with_unsafe: Vec<&str> =
            sources.iter().filter(|(_, text)| says(text, "unsafe")).map(|(path, _)| path.to_str().unwrap()).collect();
        match may {
            Some(place) => {
                assert!(
                    with_unsafe.len() <= 1,
                    "rule: `unsafe` in {} stands in {place}, but: {with_unsafe:?}",
                    krate.name
                );
                let fixed = with_unsafe.iter().all(|path| !place.ends_with(".rs") || *path == place);
                assert!(fixed, "rule: `unsafe` in {} stands in {place}, but: {with_unsafe:?}", krate.name);
            }
            None => {
                assert!(with_unsafe.is_empty(), "rule: no `unsafe` in {}, but: {with_unsafe:?}", krate.name);
                let heads = sources.iter().filter(|(path, _)| {
                    ["lib.rs", "main.rs"].iter().any(|head| *path == krate.dir.join("src").join(head))
                });
                for (path, text) in heads {
                    let forbids = text.lines().any(|line| line == "#![forbid(unsafe_code)]");
                    assert!(forbids, "rule: #![forbid(unsafe_code)] stands in {}", path.display());
                }
            }
        }
    }
}

#[test]
fn crates_share_what_is_shared() {
    for krate in crates() {
        assert_eq!(krate.edition, "2024", "rule: edition 2024: {}", krate.name);
        assert_eq!(krate.license, "Apache-2.0", "rule: the licence is Apache-2.0: {}", krate.name);
        let manifest = krate.manifest();
        assert!(manifest.contains("[lints]\nworkspace = true"), "rule: the workspace's lints apply: {}", krate.name);
        let members = manifest.split("\n[dependencies]").nth(1).unwrap_or_default();
        let own = members.lines().find(|line| line.contains("version = ") || line.contains("path = \".."));
        assert!(own.is_none(), "rule: versions are decided in the root manifest: {} has {own:?}", krate.name);
    }
}

#[test]
fn the_top_level_is_fixed() {
    let mut strangers: Vec<String> = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str()))
        .collect();
    strangers.sort();
    assert!(strangers.is_empty(), "rule: the top level is fixed; these need a home below it: {strangers:?}");
}

#[test]
fn ci_runs_what_people_run() {
    let script = fs::read_to_string(root().join(".ci/run")).unwrap();
    let commands: Vec<&str> =
        script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(commands.last(), Some(&"exec make test"), "rule: .ci/run is `make test`");
    let rest = &commands[..commands.len() - 1];
    assert!(
        rest.iter().all(|line| line.starts_with("cd ") || line.starts_with("set ")),
        "rule: … and nothing else: {rest:?}"
    );
}
