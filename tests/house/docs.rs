//! What the documents say, held against the code they speak of.
//!
//! In come the tables of README and the lists of the manual page; beside them stand the outcomes, options, commands,
//! metrics, reasons and bounds that the code has. A table that lacks a line, or has one too many, is as wrong as a test
//! that fails. Tables are found by the heading above them and keyed by their first cell.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use pve_imds::cli::Cli;
use pve_imds::config::Layers;
use pve_imds_model::fault::Outcome;
use pve_imds_transport::Ended;
use pve_imds_transport::bpf::Reason;
use serde_json::Value;

use crate::clients::{CLIENTS, Dialect, Fact};
use crate::tree::{crates, root};

const README: &str = "README.md";
const MANUAL: &str = "debian/pve-imds.8";

/// Every document with links in it.
const DOCUMENTS: &[&str] = &[README, "transport/README.md", "services/README.md"];

/// The bounds that guests meet: where their numbers stand.
const BOUNDS: &[&str] = &[
    "transport/src/bounds.rs",
    "middleware/src/bounds.rs",
    "services/datasources/src/held.rs",
    "services/datasources/src/weighing.rs",
    "services/backends/src/openbao.rs",
    "services/backends/src/openbao/credentials.rs",
    "services/backends/src/openbao/shelf.rs",
    "services/backends/src/openbao/store.rs",
    "services/backends/src/secrets.rs",
];

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The first table below `heading` in README: first cell without its backquotes → the other cells.
fn table(heading: &str) -> BTreeMap<String, Vec<String>> {
    let readme = text(README);
    let mut lines =
        readme.lines().skip_while(|line| line.trim_start_matches('#').trim() != heading || !line.starts_with('#'));
    assert!(lines.next().is_some(), "{README} has no heading `{heading}`");
    let section = lines.take_while(|line| !line.starts_with('#'));
    let rows = section.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let mut found = BTreeMap::new();
    for row in rows.skip(2) {
        // An empty cell is a cell.
        let row = row.replace("| |", "|  |");
        let mut cells = row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned());
        let key = cells.next().unwrap_or_default().trim_matches('`').to_owned();
        let before = found.insert(key, cells.collect());
        assert!(before.is_none(), "{README}, {heading}: twice: {row}");
    }
    assert!(!found.is_empty(), "{README} has no table below `{heading}`");
    found
}

/// Both ways: what the code has stands in the document, and nothing else does.
fn same(place: &str, written: impl IntoIterator<Item = String>, real: impl IntoIterator<Item = String>) {
    let (written, real): (BTreeSet<_>, BTreeSet<_>) = (written.into_iter().collect(), real.into_iter().collect());
    let missing: Vec<_> = real.difference(&written).collect();
    let invented: Vec<_> = written.difference(&real).collect();
    assert!(missing.is_empty() && invented.is_empty(), "{place} lacks {missing:?} and has invented {invented:?}");
}

/// A command as it is typed: the leading lower-case words, without the names of its arguments.
fn command(words: &str) -> String {
    let lower = |word: &&str| word.bytes().all(|b| b.is_ascii_lowercase());
    words.split(' ').take_while(lower).collect::<Vec<_>>().join(" ")
}

/// Every command that does something, by its words; and every long option there is.
fn commands() -> (BTreeSet<String>, BTreeSet<String>) {
    fn walk(command: &clap::Command, above: &str, words: &mut BTreeSet<String>, options: &mut BTreeSet<String>) {
        options.extend(command.get_arguments().filter_map(|argument| argument.get_long()).map(str::to_owned));
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            let name = format!("{above} {}", below.get_name()).trim().to_owned();
            if !below.has_subcommands() {
                words.insert(name.clone());
            }
            walk(below, &name, words, options);
        }
    }
    let (mut words, mut options) = (BTreeSet::new(), BTreeSet::new());
    walk(&Cli::command(), "", &mut words, &mut options);
    (words, options)
}

/// Every metric that the sources name: whole string literals, wherever they stand.
fn metrics() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, source) in crates().iter().flat_map(|krate| krate.sources("src")) {
        for (at, _) in source.match_indices("\"pve_imds_") {
            let rest = &source[at + 1..];
            let name: String =
                rest.chars().take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '_').collect();
            if rest[name.len()..].starts_with('"') {
                found.insert(name);
            }
        }
    }
    found
}

/// The constants of the bounds, spoken as README speaks of them.
fn bounds() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for path in BOUNDS {
        for line in text(path).lines() {
            let Some((_, declared)) = line.split_once("const ") else { continue };
            let (name, rest) = declared.split_once(": ").unwrap();
            let (kind, value) = rest.trim_end_matches(';').split_once(" = ").unwrap();
            // Words stand beside them.
            if matches!(kind, "&str" | "HeaderName") {
                continue;
            }
            let before = found.insert(name.to_owned(), spoken(value));
            assert!(before.is_none(), "{name} is the name of two bounds");
        }
    }
    found
}

/// `64 << 10` is 64 KiB, `Duration::from_secs(5)` is 5 s.
fn spoken(expression: &str) -> String {
    let inner = |call: &str| expression.strip_prefix(call)?.split(')').next();
    if let Some(seconds) = inner("Duration::from_secs(") {
        return format!("{seconds} s");
    }
    if let Some(millis) = inner("Duration::from_millis(") {
        return format!("{millis} ms");
    }
    let number = inner("NonZeroU32::new(").unwrap_or(expression).replace('_', "");
    let value: u64 = match number.split_once(" << ") {
        Some((value, shift)) => value.parse::<u64>().unwrap() << shift.parse::<u32>().unwrap(),
        None => number.split(" * ").map(|factor| factor.parse::<u64>().unwrap()).product(),
    };
    match value {
        value if value.is_multiple_of(1 << 20) => format!("{} MiB", value >> 20),
        value if value.is_multiple_of(1 << 10) => format!("{} KiB", value >> 10),
        value => value.to_string(),
    }
}

#[test]
fn every_outcome_is_explained() {
    let written = table("Outcomes");
    same("README, Outcomes", written.keys().cloned(), Outcome::ALL.iter().map(|outcome| outcome.word().into()));
    for outcome in Outcome::ALL.iter().copied() {
        let status = &written[outcome.word()][0];
        assert!(status.starts_with(&outcome.status().to_string()), "README, Outcomes, {outcome}: {status}");
    }
}

#[test]
fn every_option_is_listed_with_its_default() {
    let written = table("Options");
    let layers = Layers::defaults();
    same("README, Options", written.keys().cloned(), layers.settings().map(|setting| setting.key));
    for setting in layers.settings() {
        let value = match &setting.value {
            Value::String(text) if !text.is_empty() => text.clone(),
            value => value.to_string(),
        };
        assert_eq!(written[&setting.key][0], format!("`{value}`"), "the default of {}", setting.key);
    }
}

#[test]
fn every_command_is_in_readme_and_manual() {
    let (words, options) = commands();
    same("README, Command line", table("Command line").keys().map(|cell| command(cell)), words.iter().cloned());
    let manual = text(MANUAL);
    let items = manual.lines().filter_map(|line| line.strip_prefix(".It Cm "));
    same(MANUAL, items.map(command), words);
    let readme = text(README);
    for option in options {
        assert!(readme.contains(&format!("--{option}")), "{README} says nothing of --{option}");
        assert!(manual.contains(&format!("Fl -{option}")), "{MANUAL} says nothing of --{option}");
    }
}

#[test]
fn every_metric_is_listed() {
    same("README, Metrics", table("Metrics").into_keys(), metrics());
}

/// The words of a text that stand in backquotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The labels of a metric as README lists them, each with the words it may be; none where they are not listed.
fn labels(cell: &str) -> BTreeMap<String, Option<BTreeSet<String>>> {
    let (names, listed) = cell.split_once(": ").unwrap_or((cell, ""));
    let below = cell.split_once("see [").map(|(_, rest)| {
        let heading = rest.split(']').next().unwrap_or_default();
        let (first, others) = heading.split_at(1);
        table(&(first.to_uppercase() + others)).into_keys().collect()
    });
    let words = |name: &str| match name {
        // Words that are not ours to list.
        "version" | "vmid" => None,
        // All of them, unless some are named.
        "outcome" if listed.is_empty() => Some(table("Outcomes").into_keys().collect()),
        "code" => Some(table("Outcomes").into_values().map(|cells| cells[0][..3].to_owned()).collect()),
        "endpoint" => {
            let readme = text(README);
            let (_, said) = readme.split_once("\n`endpoint` is ").expect("README says what an endpoint is");
            Some(quoted(said.split("\n\n").next().unwrap_or_default()))
        }
        _ => Some(below.clone().unwrap_or_else(|| quoted(listed))),
    };
    quoted(names).into_iter().map(|name| (name.clone(), words(&name))).collect()
}

/// What a scrape holds: each metric with its labels and their values.
fn scraped(text: &str) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let histograms: Vec<_> = types.filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name).collect();
    let mut found = BTreeMap::<_, BTreeMap<_, BTreeSet<_>>>::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, pairs) = series.split_once('{').unwrap_or((series, "}"));
        let name = histograms.iter().find(|whole| name.starts_with(**whole)).copied().unwrap_or(name);
        let labels = found.entry(name.to_owned()).or_default();
        for pair in pairs.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty()) {
            let (label, value) = pair.split_once('=').unwrap();
            if label != "le" {
                labels.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
            }
        }
    }
    found
}

/// Before anything has happened: a series that begins with its first event hides that event from `increase()`.
#[test]
fn a_fresh_daemon_has_every_series_that_readme_promises_and_no_other() {
    let settings = pve_imds_observability::Settings { level: "off".to_owned(), ..Default::default() };
    let guard = pve_imds_observability::install(&settings).unwrap();
    pve_imds::app::describe();
    let rendered = guard.metrics().render();
    let real = scraped(&rendered);
    for metric in real.keys() {
        let help = rendered.lines().find_map(|line| line.strip_prefix(&format!("# HELP {metric} ")));
        assert!(help.is_some_and(|help| help.split(' ').count() > 4), "rule: {metric} says what it counts: {help:?}");
    }
    let written = table("Metrics");
    same("README, Metrics, and a fresh daemon", written.keys().cloned(), real.keys().cloned());
    for (metric, cells) in written {
        let promised = labels(&cells[0]);
        let found = &real[&metric];
        same(&format!("README, labels of {metric}"), promised.keys().cloned(), found.keys().cloned());
        for (label, words) in promised {
            let Some(words) = words else { continue };
            same(&format!("README, {metric}, {label}"), words, found[&label].iter().cloned());
        }
    }
}

#[test]
fn every_reason_of_the_guard_is_explained() {
    same("README, Reasons", table("Reasons").into_keys(), Reason::ALL.iter().map(|reason| reason.word().into()));
}

#[test]
fn every_early_end_of_a_connection_is_explained() {
    let written = table("Connections that ended early").into_keys();
    same("README, Connections that ended early", written, Ended::ALL.iter().map(|reason| reason.word().into()));
}

#[test]
fn every_client_is_listed_with_what_it_reads() {
    let written = table("Clients");
    same("README, Clients", written.keys().cloned(), CLIENTS.iter().map(|client| client.name.into()));
    for client in CLIENTS {
        let reads = Dialect::ALL.map(|dialect| {
            let cell = client.cells.iter().find(|(spoken, _)| *spoken == dialect);
            let words = |facts: &[_]| facts.iter().map(|fact: &Fact| fact.word()).collect::<Vec<_>>().join(", ");
            cell.map_or_else(|| "–".to_owned(), |(_, facts)| words(facts))
        });
        let quick = if client.quick { "yes" } else { "no" };
        let real = [client.from].into_iter().chain(reads.iter().map(String::as_str)).chain([quick]);
        assert_eq!(written[client.name], real.collect::<Vec<_>>(), "README, Clients, {}", client.name);
    }
}

#[test]
fn limits_are_those_of_the_code() {
    let bounds = bounds();
    for (what, cells) in table("Limits") {
        let [value, constant] = cells.as_slice() else { panic!("README, Limits, {what}: three cells") };
        let real = bounds.get(constant.trim_matches('`')).unwrap_or_else(|| panic!("there is no bound {constant}"));
        assert_eq!(value, real, "README, Limits, {what}");
    }
}

#[test]
fn what_is_to_be_made_can_be_made() {
    let makefile = text("Makefile");
    let readme = text(README);
    let named: BTreeSet<&str> = readme
        .match_indices("make ")
        .filter_map(|(at, _)| {
            let code = readme[..at].ends_with(['`', '\n']);
            readme[at + 5..].split(|c: char| !c.is_ascii_lowercase()).next().filter(|word| code && !word.is_empty())
        })
        .collect();
    assert!(named.is_superset(&BTreeSet::from(["demo", "test"])), "README opens with the two commands: {named:?}");
    for target in named {
        assert!(makefile.lines().any(|line| line.starts_with(&format!("{target}:"))), "no target `{target}`");
    }
}

#[test]
fn links_lead_somewhere() {
    for document in DOCUMENTS {
        let content = text(document);
        let below = Path::new(document).parent().unwrap();
        for (at, _) in content.match_indices("](") {
            let target = content[at + 2..].split(')').next().unwrap();
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            if target.starts_with("http") {
                continue;
            }
            assert!(path.is_empty() || root().join(below).join(path).exists(), "{document}: {target} is not there");
            let slug = |line: &str| {
                let title = line.trim_start_matches('#').trim().to_lowercase();
                title.replace(' ', "-").replace(|c: char| !c.is_alphanumeric() && c != '-' && c != '_', "")
            };
            let there = content.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor);
            assert!(!path.is_empty() || anchor.is_empty() || there, "{document}: no heading for {target}");
        }
    }
}

#[test]
fn readme_names_the_rust_that_is_pinned() {
    let pinned = fs::read_to_string(root().join("rust-toolchain.toml")).unwrap();
    let version = pinned.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains(&format!("It takes Rust {version},")), "rule: README says what rust-toolchain.toml does");
}
