//! The one place where YAML is read and written.
//!
//! In comes text from Notes, which may be hostile: what it may cost is bounded by its length, its depth and its nodes,
//! and an error tells kind and place but never quotes the text, because errors go to logs. Out goes YAML that an old
//! reader cannot misunderstand: every string stands in double quotes, so `yes`, `1e3` and `52:54:00:12:34:56` stay
//! strings.

use std::fmt::{self, Write as _};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Longest text that is read, in bytes: as much as a packed block of the Notes may stand for.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Deepest nesting that is read. Network configurations and policies need six levels.
pub const MAX_DEPTH: usize = 32;
/// Most nodes that are read of a text that is passed over: one for every six bytes of the longest one, and a network
/// configuration has less. Only a mapping's key is kept while it is read, at some 200 bytes a node, which makes the most
/// that a text can cost.
pub const MAX_NODES: usize = MAX_BYTES / 6;
/// Most nodes that are read of a text that is kept, and most that aliases may add to any.
pub const MAX_KEPT: usize = 16 * 1024;
/// Most anchors and most aliases.
const MAX_ALIASES: usize = 256;

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not UTF-8.
    NotUtf8,
    /// Not YAML.
    Syntax,
    /// More than one document; the place is the second one's.
    SecondDocument,
    /// YAML, but not of the shape that was asked for.
    Shape,
    /// A key that nobody asked for.
    UnknownKey,
    /// A key that stands there twice.
    Twice,
    /// Nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// Longer or more entangled than we care to read.
    TooMuch,
}

/// Why a text cannot be used, and where. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YamlError {
    /// What is wrong.
    pub kind: Kind,
    /// Line and column, from 1, where they are known.
    pub place: Option<(u64, u64)>,
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::NotUtf8 => "not UTF-8",
            Kind::Syntax => "not YAML",
            Kind::SecondDocument => "a second document begins here; only one is allowed",
            Kind::Shape => "YAML of another shape",
            Kind::UnknownKey => "an unknown key",
            Kind::Twice => "a key that stands there twice",
            Kind::TooDeep => "nested too deep",
            Kind::TooMuch => "too long or too entangled",
        })?;
        match self.place {
            Some((line, column)) => write!(f, " (line {line}, column {column})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for YamlError {}

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// Line and column, from 1, where they are known.
    pub place: Option<(u64, u64)>,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Placed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = serde_yaml::Spanned::<T>::deserialize(deserializer)?;
        let (line, column) = (spanned.referenced.line(), spanned.referenced.column());
        Ok(Self { value: spanned.value, place: (line > 0).then_some((line, column)) })
    }
}

/// Reads one document for the few things that `T` looks for; it should keep nothing of the rest, which may be of any
/// shape, but for values that are not what their tag of YAML's own says (`!!int a`), and `!!timestamp`. What is
/// remembered while it is read is little, so `<<` comes as the key that it is, and a key that stands twice comes twice; a
/// `T` that is derived takes that for [`Kind::Shape`].
///
/// # Errors
/// When the text is not UTF-8, not YAML, not a `T`, or beyond the bounds of this module.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, YamlError> {
    read_with(text, MAX_NODES, serde_yaml::DuplicateKeyPolicy::PassThrough)
}

/// Reads one document in which no key stands twice: an operator who wrote one twice meant something, and nobody can say
/// what.
///
/// # Errors
/// As [`read`], with [`MAX_KEPT`] nodes, and [`Kind::Twice`].
pub fn read_once<T: DeserializeOwned>(text: &[u8]) -> Result<T, YamlError> {
    read_with(text, MAX_KEPT, serde_yaml::DuplicateKeyPolicy::Error)
}

/// Reads one document for a `T` that looks at every key itself: one that stands twice comes twice, and `<<` is a key.
///
/// # Errors
/// As [`read`], with [`MAX_KEPT`] nodes.
pub fn read_each<T: DeserializeOwned>(text: &[u8]) -> Result<T, YamlError> {
    read_with(text, MAX_KEPT, serde_yaml::DuplicateKeyPolicy::PassThrough)
}

/// Reads one document as the guests' own readers do: where a key stands twice the last one counts, and `<<` brings what it
/// names.
///
/// # Errors
/// As [`read`], with [`MAX_KEPT`] nodes.
pub fn read_last<T: DeserializeOwned>(text: &[u8]) -> Result<T, YamlError> {
    read_with(text, MAX_KEPT, serde_yaml::DuplicateKeyPolicy::LastWins)
}

fn read_with<T: DeserializeOwned>(
    text: &[u8],
    nodes: usize,
    duplicates: serde_yaml::DuplicateKeyPolicy,
) -> Result<T, YamlError> {
    let nowhere = |kind| YamlError { kind, place: None };
    if text.len() > MAX_BYTES {
        return Err(nowhere(Kind::TooMuch));
    }
    let text = str::from_utf8(text).map_err(|_| nowhere(Kind::NotUtf8))?;
    let passed_over = matches!(duplicates, serde_yaml::DuplicateKeyPolicy::PassThrough);
    let strict = matches!(duplicates, serde_yaml::DuplicateKeyPolicy::Error);
    let options = serde_yaml::options! {
        budget: serde_yaml::budget! {
            flow_nesting_limit: MAX_DEPTH,
            max_depth: MAX_DEPTH,
            max_nodes: nodes,
            max_events: 4 * nodes,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            max_merge_keys: MAX_ALIASES,
            max_recorded_anchor_events: MAX_KEPT,
            max_recorded_anchor_bytes: MAX_BYTES,
            max_total_scalar_bytes: 2 * MAX_BYTES,
            // The second one is refused with better words than the budget has.
            max_documents: 2,
            max_inclusion_depth: 0,
        },
        alias_limits: serde_yaml::alias_limits! {
            max_total_replayed_events: MAX_KEPT,
            max_replay_stack_depth: MAX_DEPTH,
        },
        duplicate_keys: duplicates,
        merge_keys: if passed_over {
            serde_yaml::MergeKeyPolicy::AsOrdinary
        } else {
            serde_yaml::MergeKeyPolicy::Merge
        },
        // Nobody asks what such values are.
        ignore_binary_tag_for_string: !strict,
        non_finite_float_policy: if strict {
            serde_yaml::NonFiniteFloatPolicy::Reject
        } else {
            serde_yaml::NonFiniteFloatPolicy::PassThrough
        },
        with_snippet: false,
    };
    serde_yaml::from_str_with_options(text, options).map_err(|error| {
        let place = error.location().map(|at| (at.line(), at.column()));
        YamlError { kind: kind_of(&error), place }
    })
}

fn kind_of(error: &serde_yaml::Error) -> Kind {
    use serde_yaml::Error as E;
    match error {
        E::WithSnippet { error, .. } | E::AliasError { error, .. } => kind_of(error),
        E::Budget { breach: serde_yaml::budget::BudgetBreach::Depth { .. }, .. } => Kind::TooDeep,
        E::ExternalMessage { source, .. } if is_too_deep(source) => Kind::TooDeep,
        E::Budget { .. }
        | E::AliasReplayCounterOverflow { .. }
        | E::AliasReplayLimitExceeded { .. }
        | E::AliasExpansionLimitExceeded { .. }
        | E::AliasReplayStackDepthExceeded { .. } => Kind::TooMuch,
        E::ExternalMessage { .. }
        | E::Eof { .. }
        | E::UnknownAnchor { .. }
        | E::ContainerEndMismatch { .. }
        | E::IndentationError { .. }
        | E::FoldedBlockScalarMustIndentContent { .. } => Kind::Syntax,
        E::MultipleDocuments { .. } => Kind::SecondDocument,
        E::DuplicateMappingKey { .. } => Kind::Twice,
        E::SerdeUnknownField { .. } => Kind::UnknownKey,
        _ => Kind::Shape,
    }
}

/// Flow collections within each other are counted by the scanner, before anybody has read them.
fn is_too_deep(source: &serde_yaml::localizer::ExternalMessageSource) -> bool {
    use serde_yaml::granit_parser::ErrorKind;
    use serde_yaml::localizer::ExternalMessageSource as Source;
    matches!(source, Source::Parser(error) if *error.kind() == ErrorKind::RecursionLimitExceeded)
}

/// Writes a document in block style, two blanks a level, every string in double quotes.
///
/// # Errors
/// [`Kind::Shape`] when `value` has no form in YAML's JSON subset (a map with keys that are not strings, say).
pub fn write(value: &impl Serialize) -> Result<String, YamlError> {
    let value = serde_json::to_value(value).map_err(|_| YamlError { kind: Kind::Shape, place: None })?;
    let mut text = String::new();
    write_node(&mut text, &value, 0);
    Ok(text)
}

/// Writes `value` and a line feed, beginning where the cursor stands; the lines after the first are indented.
fn write_node(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (at, (key, value)) in fields.iter().enumerate() {
                start_line(text, at, indent);
                if is_plain_key(key) {
                    text.push_str(key)
                } else {
                    quote(text, key)
                }
                text.push(':');
                match value {
                    Value::Object(fields) if !fields.is_empty() => break_line(text, indent + 2),
                    Value::Array(items) if !items.is_empty() => break_line(text, indent + 2),
                    _ => text.push(' '),
                }
                write_node(text, value, indent + 2);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (at, item) in items.iter().enumerate() {
                start_line(text, at, indent);
                text.push_str("- ");
                write_node(text, item, indent + 2);
            }
        }
        Value::Object(_) => text.push_str("{}\n"),
        Value::Array(_) => text.push_str("[]\n"),
        Value::String(string) => {
            quote(text, string);
            text.push('\n');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            text.push_str(&value.to_string());
            text.push('\n');
        }
    }
}

fn start_line(text: &mut String, at: usize, indent: usize) {
    if at > 0 {
        text.extend(std::iter::repeat_n(' ', indent));
    }
}

fn break_line(text: &mut String, indent: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n(' ', indent));
}

/// Words that no reader, however old, takes for anything but a string: no `y`, no `on`, no `null`, no number.
fn is_plain_key(key: &str) -> bool {
    const SPOKEN_FOR: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
        && !SPOKEN_FOR.contains(&key)
}

/// A double-quoted scalar on one line. Everything outside what YAML 1.1 calls printable is escaped.
fn quote(text: &mut String, string: &str) {
    text.push('"');
    for c in string.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}' => text.push(c),
            _ => {
                let code = u32::from(c);
                let escaped =
                    if code <= 0xffff { write!(text, "\\u{code:04x}") } else { write!(text, "\\U{code:08x}") };
                debug_assert!(escaped.is_ok(), "a String takes every write");
            }
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests;
