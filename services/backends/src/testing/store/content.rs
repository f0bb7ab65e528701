//! What the store holds, and who may read it.
//!
//! In comes a question; out goes the answer that OpenBao 2.4 would give, checked in its order: the path's characters, the
//! namespace, the token, its policy, the engine.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::asked::Asked;
use super::http::Answer;

/// Every version was made then, and every deletion was as well.
const MOMENT: &str = "2026-01-02T03:04:05.678901234Z";

const INVALID_PATH: &str = "Invalid path for a versioned K/V secrets engine. See the API docs for the appropriate API \
     endpoints to use. If using the OpenBao CLI, use 'bao kv get' for this operation.";

const ROOT_OF_MOUNT: &str = "Non-listing operations on the root of a K/V v2 mount are not supported.";

#[derive(Default)]
pub(super) struct Content {
    /// By token, what it may read.
    policies: BTreeMap<String, Vec<String>>,
    /// Empty: the root.
    namespace: String,
    sets: BTreeMap<String, Set>,
    answers: u64,
}

#[derive(Default)]
struct Set {
    version: u64,
    state: State,
}

#[derive(Default)]
enum State {
    There(Value),
    Deleted,
    #[default]
    Destroyed,
}

/// Where in an engine a path leads.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// To a set.
    Data,
    /// To `data` itself.
    Root,
    /// Nowhere.
    Nowhere,
}

/// The frame of every answer that is no error.
#[derive(Serialize)]
struct Frame {
    request_id: String,
    lease_id: &'static str,
    renewable: bool,
    lease_duration: u64,
    data: Option<Value>,
    wrap_info: Option<Value>,
    warnings: Option<[&'static str; 1]>,
    auth: Option<Value>,
}

impl Content {
    pub(super) fn grant(&mut self, token: &str, policy: &[&str]) {
        let policy = policy.iter().map(|&path| path.to_owned()).collect();
        self.policies.insert(token.to_owned(), policy);
    }

    pub(super) fn revoke(&mut self, token: &str) {
        self.policies.remove(token);
    }

    pub(super) fn namespace(&mut self, name: &str) {
        name.trim_matches('/').clone_into(&mut self.namespace);
    }

    pub(super) fn put(&mut self, path: &str, fields: Value) {
        assert!(Place::of(path) == Place::Data, "no KV version 2 engine has a set at {path}");
        assert!(fields.is_object(), "the fields of {path} are no object");
        let set = self.sets.entry(path.to_owned()).or_default();
        set.version += 1;
        set.state = State::There(fields);
    }

    pub(super) fn delete(&mut self, path: &str) {
        self.end(path, State::Deleted);
    }

    pub(super) fn destroy(&mut self, path: &str) {
        self.end(path, State::Destroyed);
    }

    fn end(&mut self, path: &str, state: State) {
        let set = self.sets.get_mut(path);
        assert!(set.is_some(), "there is no set at {path}");
        if let Some(set) = set {
            set.state = state;
        }
    }

    pub(super) fn answer(&mut self, asked: &Asked) -> Answer {
        let (path, query) = match asked.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (asked.target.as_str(), None),
        };
        let Some(path) = decode(path) else { return Answer::errors(400, &[]) };
        if path.contains(char::is_control) {
            return Answer::new(400, "text/plain", "");
        }
        let Some(path) = path.strip_prefix("/v1/") else { return Answer::errors(404, &[]) };
        if asked.method != "GET" {
            return Answer::errors(405, &[]);
        }
        if query.is_some() {
            return Answer::errors(400, &["this store has no old versions and lists nothing"]);
        }
        if path.split('/').any(|name| matches!(name, "." | "..")) {
            return Answer::errors(400, &["relative paths not supported"]);
        }
        if asked.namespace.as_deref().unwrap_or_default().trim_matches('/') != self.namespace {
            return Answer::errors(404, &["namespace not found"]);
        }
        let policy = asked.token.as_ref().and_then(|token| self.policies.get(token));
        if !policy.is_some_and(|policy| policy.iter().any(|rule| allows(rule, path))) {
            return Answer::errors(403, &["permission denied"]);
        }
        match Place::of(path) {
            Place::Nowhere => self.warn(INVALID_PATH),
            Place::Root => self.warn(ROOT_OF_MOUNT),
            Place::Data => self.read(path),
        }
    }

    fn read(&mut self, path: &str) -> Answer {
        let Some(set) = self.sets.get(path) else { return Answer::errors(404, &[]) };
        let (status, fields, deleted, is_destroyed) = match &set.state {
            State::There(fields) => (200, fields.clone(), "", false),
            State::Deleted => (404, Value::Null, MOMENT, false),
            State::Destroyed => (404, Value::Null, "", true),
        };
        let metadata = json!({
            "created_time": MOMENT,
            "custom_metadata": null,
            "deletion_time": deleted,
            "destroyed": is_destroyed,
            "version": set.version,
        });
        self.frame(status, Some(json!({ "data": fields, "metadata": metadata })), None)
    }

    fn warn(&mut self, warning: &'static str) -> Answer {
        self.frame(404, None, Some(warning))
    }

    fn frame(&mut self, status: u16, data: Option<Value>, warning: Option<&'static str>) -> Answer {
        self.answers += 1;
        let frame = Frame {
            request_id: format!("00000000-0000-4000-8000-{:012x}", self.answers),
            lease_id: "",
            renewable: false,
            lease_duration: 0,
            data,
            wrap_info: None,
            warnings: warning.map(|warning| [warning]),
            auth: None,
        };
        Answer::json(status, &json!(frame))
    }
}

impl Place {
    fn of(path: &str) -> Self {
        // A mount has at least one name.
        let within = path.match_indices("/data").find_map(|(at, data)| {
            let within = path.get(at + data.len()..)?;
            (at > 0 && (within.is_empty() || within.starts_with('/'))).then_some(within)
        });
        match within {
            None => Self::Nowhere,
            Some("" | "/") => Self::Root,
            Some(_) => Self::Data,
        }
    }
}

/// Whether a rule, with or without `*` at its end, is for that path.
fn allows(rule: &str, path: &str) -> bool {
    rule.strip_suffix('*').map_or(rule == path, |start| path.starts_with(start))
}

/// The path without its percent signs, which are taken out once. `None`: it has some that mean nothing, or is no text.
fn decode(path: &str) -> Option<String> {
    let mut bytes = path.bytes();
    let mut decoded = Vec::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        decoded.push(if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            u8::try_from(digit()? << 4 | digit()?).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_signs_are_taken_out_once() {
        for (path, expected) in [
            ("/v1/a", Some("/v1/a")),
            ("a%2fb%2Bc+d", Some("a/b+c+d")),
            ("%252e%252E", Some("%2e%2E")),
            ("%C3%BC", Some("ü")),
            ("%C3", None),
            ("a%2", None),
            ("a%", None),
            ("a%+1", None),
        ] {
            assert_eq!(decode(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn sets_are_below_the_data_of_a_mount() {
        for (path, expected) in [
            ("kv/data/a", Place::Data),
            ("kv/data/a/b/data", Place::Data),
            ("team/kv/data/a", Place::Data),
            ("kv/database/data/a", Place::Data),
            ("kv/data", Place::Root),
            ("kv/data/", Place::Root),
            ("kv/a", Place::Nowhere),
            ("kv/database/a", Place::Nowhere),
            ("data/a", Place::Nowhere),
            ("/data/a", Place::Nowhere),
            ("kv", Place::Nowhere),
            ("", Place::Nowhere),
        ] {
            assert_eq!(Place::of(path), expected, "{path}");
        }
    }

    #[test]
    fn a_rule_is_for_one_path_or_for_all_that_begin_so() {
        for (rule, path, expected) in [
            ("kv/data/a", "kv/data/a", true),
            ("kv/data/a", "kv/data/a/b", false),
            ("kv/data/a/*", "kv/data/a/b/c", true),
            ("kv/data/a/*", "kv/data/a", false),
            ("kv/data/a*", "kv/data/ab", true),
            ("kv/*/a", "kv/data/a", false),
            ("*", "kv/data/a", true),
            ("", "kv/data/a", false),
        ] {
            assert_eq!(allows(rule, path), expected, "{rule} {path}");
        }
    }
}
