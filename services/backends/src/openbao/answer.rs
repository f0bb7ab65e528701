//! What a KV version 2 engine answers.
//!
//! In come a status and a body; out goes a [`SecretSet`], whose values are wiped when it goes, or what the answer means.
//! Refused: to say anything of a body that cannot be understood, for it may hold the secrets of somebody.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use zeroize::Zeroizing;

use super::error::{Failure, FetchError, Missing};

/// The latest version of a set.
#[derive(Default)]
pub struct SecretSet(BTreeMap<String, Field>);

enum Field {
    Text(Zeroizing<String>),
    Other,
}

/// A field's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'s> {
    /// Text.
    Text(&'s str),
    /// A number, a list or something else that is no text.
    Other,
}

impl SecretSet {
    /// The field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Value<'_>> {
        self.0.get(name).map(|field| match field {
            Field::Text(text) => Value::Text(text),
            Field::Other => Value::Other,
        })
    }

    /// How many fields there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that it takes in memory, about.
    pub(super) fn weight(&self) -> usize {
        /// What the allocator and the tree add to a field.
        const FIELD: usize = 128;
        let field = |(name, field): (&String, &Field)| match field {
            Field::Text(text) => FIELD + name.len() + text.len(),
            Field::Other => FIELD + name.len(),
        };
        FIELD + self.0.iter().map(field).sum::<usize>()
    }
}

/// How many fields, and nothing of them.
impl fmt::Debug for SecretSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretSet").field("fields", &self.len()).finish_non_exhaustive()
    }
}

/// Neither is a value shown.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text(_) => "Text",
            Self::Other => "Other",
        })
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

/// Takes text and passes over everything else.
struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Field, E> {
        Ok(Field::Text(Zeroizing::new(text.to_owned())))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_unit<E>(self) -> Result<Field, E> {
        Ok(Field::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Field, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Field::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Field, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Field::Other)
    }
}

/// As much of an answer as matters.
#[derive(Deserialize)]
struct Answer {
    data: Option<Version>,
}

#[derive(Deserialize)]
struct Version {
    data: Option<BTreeMap<String, Field>>,
    /// Every version has it; a set of an engine of version 1 does not.
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    deletion_time: String,
    #[serde(default)]
    destroyed: bool,
}

impl Metadata {
    fn is_gone(&self) -> bool {
        self.destroyed || !self.deletion_time.is_empty()
    }
}

/// The table.
///
/// # Errors
/// What the answer means, if it is no set.
pub(super) fn read(status: u16, body: &[u8]) -> Result<SecretSet, FetchError> {
    // The reason why JSON is none quotes it.
    let version = || serde_json::from_slice::<Answer>(body).ok().map(|answer| answer.data);
    match status {
        200 => match version().flatten() {
            Some(Version { data: Some(fields), .. }) => Ok(SecretSet(fields)),
            Some(Version { data: None, .. }) => Err(Missing::Deleted.into()),
            None => Err(Failure::NoSet.into()),
        },
        401 | 403 => Err(FetchError::Denied(status)),
        404 => match version().flatten() {
            Some(Version { data: None, metadata }) if metadata.is_gone() => Err(Missing::Deleted.into()),
            _ => Err(Missing::Never.into()),
        },
        300..=399 => Err(Failure::Redirected(status).into()),
        status => Err(Failure::Status(status).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What became of an answer, in a word.
    fn said(status: u16, body: &str) -> String {
        match read(status, body.as_bytes()) {
            Ok(set) => {
                let fields = set.0.keys().map(|name| match set.field(name) {
                    Some(Value::Text(text)) => format!("{name}={text}"),
                    Some(Value::Other) => format!("{name}!"),
                    None => unreachable!(),
                });
                fields.collect::<Vec<_>>().join(" ")
            }
            Err(error) => format!("{error:?}"),
        }
    }

    #[test]
    fn each_line_of_the_table() {
        let kv = |data: &str| {
            format!(
                r#"{{"request_id":"x","data":{{"data":{data},"metadata":{{"deletion_time":"","destroyed":false,"version":3}}}},"warnings":null}}"#
            )
        };
        let gone = |what: &str| format!(r#"{{"data":{{"data":null,"metadata":{{{what},"version":3}}}}}}"#);
        for (status, body, expected) in [
            (200, kv(r#"{"a":"A","b":""}"#), "a=A b="),
            (200, kv("{}"), ""),
            (
                200,
                kv(r#"{"a":1,"b":[1,["x"]],"c":{"d":"x"},"d":null,"e":true,"f":1.5,"g":-1,"h":"\u00fc\n"}"#),
                "a! b! c! d! e! f! g! h=ü\n",
            ),
            (200, kv("null"), "Missing(Deleted)"),
            (200, kv(r#"["canary"]"#), "Failed(NoSet)"),
            (200, kv(r#""canary""#), "Failed(NoSet)"),
            // An engine of version 1.
            (200, r#"{"data":{"a":"canary"}}"#.into(), "Failed(NoSet)"),
            (200, r#"{"data":{"data":{"a":"canary"}}}"#.into(), "Failed(NoSet)"),
            (200, r#"{"data":null}"#.into(), "Failed(NoSet)"),
            (200, "{}".into(), "Failed(NoSet)"),
            (200, String::new(), "Failed(NoSet)"),
            (200, "<html>".into(), "Failed(NoSet)"),
            (200, kv(r#"{"a":"canary"}"#)[..60].to_owned(), "Failed(NoSet)"),
            (404, r#"{"errors":[]}"#.into(), "Missing(Never)"),
            (404, String::new(), "Missing(Never)"),
            (404, gone(r#""deletion_time":"2026-12-03T10:00:00Z","destroyed":false"#), "Missing(Deleted)"),
            (404, gone(r#""deletion_time":"","destroyed":true"#), "Missing(Deleted)"),
            (403, r#"{"errors":["permission denied"]}"#.into(), "Denied(403)"),
            (401, String::new(), "Denied(401)"),
            (307, String::new(), "Failed(Redirected(307))"),
            (204, String::new(), "Failed(Status(204))"),
            (400, r#"{"errors":["canary"]}"#.into(), "Failed(Status(400))"),
            (503, kv(r#"{"a":"canary"}"#), "Failed(Status(503))"),
        ] {
            assert_eq!(said(status, &body), expected, "{status} {body}");
        }
    }

    #[test]
    fn nothing_is_shown() {
        let body = r#"{"data":{"data":{"a":"canary","b":["canary"]},"metadata":{}}}"#;
        let set = read(200, body.as_bytes()).unwrap();
        assert_eq!(
            format!("{set:?} {:?} {:?}", set.field("a"), set.field("b")),
            "SecretSet { fields: 2, .. } Some(Text) Some(Other)"
        );
    }
}
