//! Defaults, file and environment, laid over each other.
//!
//! In come the bytes of the file and the environment; out comes a [`Config`] and, for each option, where its value is
//! from. Environment names are derived from the options' paths and never taken apart, so no name is written twice and
//! none is ambiguous. Refused, each with the key in the sentence and a suggestion: unknown keys, unknown `PVE_IMDS_…`
//! variables, values of another shape than the default's.

use std::collections::{BTreeMap, BTreeSet};

use pve_imds_model::yaml;
use serde_json::{Map, Value};

use super::schema::Config;
use super::shapes::{shaped, spelled};
use super::words::{nearest, suggestion};

/// Variables that start so are ours.
pub(super) const PREFIX: &str = "PVE_IMDS_";

/// Where an option's value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Built in.
    Default,
    /// The configuration file.
    File,
    /// A `PVE_IMDS_…` variable.
    Environment,
}

impl Source {
    /// The word that `config show` prints.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
        }
    }
}

/// What cannot be laid over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayerError {
    /// The file is no YAML mapping we take.
    #[error("{0}")]
    Yaml(String),
    /// The file is valid YAML and no mapping.
    #[error("the file must be a mapping of options")]
    NotAMapping,
    /// No such option.
    #[error("unknown option {key}{}", suggestion(nearest.as_deref()))]
    UnknownKey {
        /// As written, sections joined by dots.
        key: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// No such variable.
    #[error("unknown environment variable {name}{}", suggestion(nearest.as_deref()))]
    UnknownVariable {
        /// As written.
        name: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// The value has another shape.
    #[error("{key} must be {expected}")]
    Shape {
        /// Option or variable.
        key: String,
        /// A shape in words.
        expected: &'static str,
    },
}

impl LayerError {
    /// Whether nothing of the file is known, so that no option has the value that somebody gave it.
    #[must_use]
    pub fn is_of_the_whole(&self) -> bool {
        matches!(self, Self::Yaml(_) | Self::NotAMapping)
    }
}

/// One option: its path joined by dots, value and source.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// `datapath.pin_dir`
    pub key: String,
    /// As it is in effect.
    pub value: Value,
    /// Where it is from.
    pub source: Source,
}

/// All options in effect.
#[derive(Clone, Debug)]
pub struct Layers {
    leaves: BTreeMap<String, (Value, Source)>,
}

impl Layers {
    /// The defaults alone.
    #[must_use]
    pub fn defaults() -> Self {
        let mut leaves = BTreeMap::new();
        // A struct of strings, numbers and lists always serialises.
        if let Ok(Value::Object(config)) = serde_json::to_value(Config::default()) {
            collect(&mut leaves, "", config);
        }
        Self { leaves }
    }

    /// Lays the configuration file over what is there, and says all that is wrong with it. What is wrong is not laid.
    #[must_use]
    pub fn file(&mut self, bytes: &[u8]) -> Vec<LayerError> {
        let mut wrong = Vec::new();
        match yaml::read_once(bytes) {
            Err(error) => wrong.push(LayerError::Yaml(error.to_string())),
            Ok(None | Some(Value::Null)) => {}
            Ok(Some(Value::Object(map))) => self.lay("", map, &mut wrong),
            Ok(Some(_)) => wrong.push(LayerError::NotAMapping),
        }
        wrong
    }

    fn lay(&mut self, above: &str, map: Map<String, Value>, wrong: &mut Vec<LayerError>) {
        for (name, value) in map {
            let key = if above.is_empty() { name } else { format!("{above}.{name}") };
            let section = format!("{key}.");
            let is_section = self.leaves.keys().any(|leaf| leaf.starts_with(&section));
            match (value, self.leaves.get_mut(&key)) {
                (value, Some(leaf)) => match shaped(&key, value, &leaf.0) {
                    Ok(value) => *leaf = (value, Source::File),
                    Err(error) => wrong.push(error),
                },
                (Value::Object(map), None) if is_section => self.lay(&key, map, wrong),
                // An empty section is written as `secrets:` alone.
                (Value::Null, None) if is_section => {}
                (_, None) if is_section => wrong.push(LayerError::Shape { key, expected: "a section of options" }),
                (_, None) => {
                    let nearest = self.meant(&key);
                    wrong.push(LayerError::UnknownKey { key, nearest });
                }
            }
        }
    }

    /// The option, or the section of options, that was probably meant.
    fn meant(&self, key: &str) -> Option<String> {
        let leaves = self.leaves.keys().map(String::as_str);
        let sections: BTreeSet<&str> = leaves.clone().filter_map(|key| Some(key.rsplit_once('.')?.0)).collect();
        let known: Vec<&str> = leaves.chain(sections).collect();
        meant(key, '.', &known).map(str::to_owned)
    }

    /// Lays `PVE_IMDS_…` variables over what is there, and says all that is wrong with them; others are ignored. What is
    /// wrong is not laid.
    #[must_use]
    pub fn environment(&mut self, variables: impl IntoIterator<Item = (String, String)>) -> Vec<LayerError> {
        let names: BTreeMap<String, String> = self.leaves.keys().map(|key| (variable(key), key.clone())).collect();
        let mut wrong = Vec::new();
        for (name, text) in variables.into_iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            let Some(leaf) = names.get(&name).and_then(|key| self.leaves.get_mut(key)) else {
                // Without what they all have in common, which would make any two of them alike.
                let known: Vec<&str> = names.keys().map(|name| &name[PREFIX.len()..]).collect();
                let nearest = meant(&name[PREFIX.len()..], '_', &known).map(|rest| format!("{PREFIX}{rest}"));
                wrong.push(LayerError::UnknownVariable { name, nearest });
                continue;
            };
            match spelled(&name, &text, &leaf.0) {
                Ok(value) => *leaf = (value, Source::Environment),
                Err(error) => wrong.push(error),
            }
        }
        wrong
    }

    /// Every option, by key.
    pub fn settings(&self) -> impl Iterator<Item = Setting> + '_ {
        self.leaves.iter().map(|(key, (value, source))| Setting {
            key: key.clone(),
            value: value.clone(),
            source: *source,
        })
    }

    /// Whether the option has its built-in value because nobody set it.
    #[must_use]
    pub fn is_default(&self, key: &str) -> bool {
        self.leaves.get(key).is_some_and(|(_, source)| *source == Source::Default)
    }

    /// The options as one structure.
    ///
    /// # Errors
    /// A number that does not fit its option.
    pub fn config(&self) -> Result<Config, LayerError> {
        let mut root = Map::new();
        for (key, (value, _)) in &self.leaves {
            insert(&mut root, key, value.clone());
        }
        serde_json::from_value(Value::Object(root)).map_err(|error| LayerError::Yaml(error.to_string()))
    }
}

/// The environment's name of an option.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

fn collect(leaves: &mut BTreeMap<String, (Value, Source)>, above: &str, map: Map<String, Value>) {
    for (name, value) in map {
        let key = if above.is_empty() { name } else { format!("{above}.{name}") };
        match value {
            Value::Object(map) => collect(leaves, &key, map),
            leaf => {
                leaves.insert(key, (leaf, Source::Default));
            }
        }
    }
}

fn insert(root: &mut Map<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            root.insert(key.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = root.entry(section).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// What was probably meant by a name of several parts: the name that ends so, if one was written without its sections,
/// or without what stands between its words, else the one that is closest.
fn meant<'a>(name: &str, joint: char, known: &[&'a str]) -> Option<&'a str> {
    let last = name.rsplit('.').next().unwrap_or(name);
    let ends_so = |known: &&str| known.strip_suffix(last).is_some_and(|above| above.ends_with(joint));
    let letters =
        |name: &str| name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let spells_so = |known: &&str| letters(known) == letters(name);
    let all = || known.iter().copied();
    only(all().filter(ends_so)).or_else(|| only(all().filter(spells_so))).or_else(|| nearest(name, all()))
}

fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    items.next().filter(|_| items.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const NO_NUMBERS: &str = "PVE_IMDS_GUESTS_EXCLUDE_VMIDS must be numbers without leading zeros, separated by commas";

    fn source(layers: &Layers, key: &str) -> Source {
        layers.settings().find(|setting| setting.key == key).unwrap().source
    }

    #[test]
    fn defaults_are_the_schema() {
        assert_eq!(Layers::defaults().config().unwrap(), Config::default());
    }

    #[test]
    fn file_over_defaults_and_environment_over_file() {
        let file = b"nocloud: {enabled: false}\ndatapath:\n  pin_dir: /a\n  device_prefix: x-\nsecrets:\n";
        let variables = environment(&[
            ("PVE_IMDS_DATAPATH_PIN_DIR", "/b"),
            ("PVE_IMDS_SECRETS_REQUIRE_REGISTERED_TAGS", "false"),
            ("PVE_IMDS_GUESTS_EXCLUDE_VMIDS", "101, 102"),
            ("PVE_IMDS_DATAPATH_ACCEPT_KINDS", "tun,veth"),
            ("HOME", "/root"),
        ]);
        let mut layers = Layers::defaults();
        assert_eq!((layers.file(file), layers.environment(variables)), (vec![], vec![]));
        let config = layers.config().unwrap();
        assert!(!config.nocloud.enabled);
        assert_eq!(config.datapath.pin_dir, "/b");
        assert_eq!(config.datapath.device_prefix, "x-");
        assert_eq!(config.datapath.accept_kinds, ["tun", "veth"]);
        assert!(!config.secrets.require_registered_tags);
        assert_eq!(config.guests.exclude.vmids, [101, 102]);
        for (key, expected) in [
            ("datapath.pin_dir", Source::Environment),
            ("datapath.device_prefix", Source::File),
            ("pve_dir", Source::Default),
        ] {
            assert_eq!(source(&layers, key), expected, "{key}");
        }
    }

    #[test]
    fn every_option_has_a_variable_of_its_own() {
        let layers = Layers::defaults();
        let names: BTreeSet<_> = layers.settings().map(|setting| variable(&setting.key)).collect();
        assert_eq!(names.len(), layers.settings().count());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (file, expected) in [
            ("nocluod: {enabled: true}", "unknown option nocluod; did you mean nocloud?"),
            ("guests: {exclud: {}}", "unknown option guests.exclud; did you mean guests.exclude?"),
            (
                "datapath: {accept-kinds: []}",
                "unknown option datapath.accept-kinds; did you mean datapath.accept_kinds?",
            ),
            ("Log_Level: info", "unknown option Log_Level; did you mean log_level?"),
            ("loglevel: info", "unknown option loglevel; did you mean log_level?"),
            ("log: {level: info}", "unknown option log.level; did you mean log_level?"),
            ("accept_kinds: []", "unknown option accept_kinds; did you mean datapath.accept_kinds?"),
            ("frobnicate: 1", "unknown option frobnicate"),
            ("nocloud: {enable: true}", "unknown option nocloud.enable; did you mean nocloud.enabled?"),
            ("pin_dir: /x", "unknown option pin_dir; did you mean datapath.pin_dir?"),
            ("nocloud: true", "nocloud must be a section of options"),
            ("nocloud: {enabled: maybe}", "nocloud.enabled must be true or false"),
            ("http: {allowed_hosts: a}", "http.allowed_hosts must be a list"),
            ("guests: {exclude: {vmids: [a]}}", "guests.exclude.vmids must be a list of numbers"),
            ("pve_dir: [a]", "pve_dir must be text"),
            ("node_name: 007", "node_name must be text; put it in quotes"),
            ("guests: {exclude: {vmids: [-1]}}", "guests.exclude.vmids must be a list of numbers"),
            ("- a", "the file must be a mapping of options"),
            ("log_level: info\nlog_level: debug", "a key that stands there twice"),
            ("http: {}\nhttp: {allowed_hosts: [a]}", "a key that stands there twice"),
        ] {
            let errors = Layers::defaults().file(file.as_bytes());
            assert!(errors.len() == 1 && errors[0].to_string().starts_with(expected), "{file}: {errors:?}");
        }
        for (name, value, expected) in [
            (
                "PVE_IMDS_NOCLOUD_ENABLD",
                "true",
                "unknown environment variable PVE_IMDS_NOCLOUD_ENABLD; did you mean PVE_IMDS_NOCLOUD_ENABLED?",
            ),
            (
                "PVE_IMDS_PIN_DIR",
                "/x",
                "unknown environment variable PVE_IMDS_PIN_DIR; did you mean PVE_IMDS_DATAPATH_PIN_DIR?",
            ),
            (
                "PVE_IMDS_LOGLEVEL",
                "info",
                "unknown environment variable PVE_IMDS_LOGLEVEL; did you mean PVE_IMDS_LOG_LEVEL?",
            ),
            ("PVE_IMDS_X", "", "unknown environment variable PVE_IMDS_X"),
            ("PVE_IMDS_NOCLOUD_ENABLED", "yes", "PVE_IMDS_NOCLOUD_ENABLED must be true or false"),
            ("PVE_IMDS_NOCLOUD_ENABLED", "", "PVE_IMDS_NOCLOUD_ENABLED must be true or false"),
            ("PVE_IMDS_GUESTS_EXCLUDE_VMIDS", "x", NO_NUMBERS),
            ("PVE_IMDS_GUESTS_EXCLUDE_VMIDS", "101,0106", NO_NUMBERS),
            ("PVE_IMDS_GUESTS_EXCLUDE_VMIDS", "+106", NO_NUMBERS),
        ] {
            let errors = Layers::defaults().environment(environment(&[(name, value)]));
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
        }
        // Whoever mends one should not meet the next only then.
        let file = b"nocloud: {enabled: maybe, x: 1}\nlog_level: info\npve_dri: /x";
        let mut layers = Layers::defaults();
        assert_eq!(layers.file(file).len(), 3);
        // What is right beside it counts, so that it can be looked into.
        assert_eq!(source(&layers, "log_level"), Source::File);
        assert_eq!(source(&layers, "nocloud.enabled"), Source::Default);
        let variables = environment(&[("PVE_IMDS_A", ""), ("PVE_IMDS_NOCLOUD_ENABLED", "yes"), ("PVE_IMDS_B", "")]);
        assert_eq!(Layers::defaults().environment(variables).len(), 3);
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        for file in ["", "# nothing\n", "{}"] {
            let mut layers = Layers::defaults();
            assert_eq!(layers.file(file.as_bytes()), []);
            assert_eq!(layers.config().unwrap(), Config::default(), "{file:?}");
        }
    }
}
