//! Secrets in user data: which set a VM may read, where it lies, and what of it goes where.
//!
//! In come a VM, its pool, the cluster's settings and what the node was told; out go a [`Scope`], the [`SecretPath`] of a set
//! in it, and a [`Template`] that is filled in once. Scope and path are made of what Proxmox guards and never of what the
//! guest says. Refused: paths that could be bent, a VM that two scopes claim, and to scan a value for anything. Pure:
//! fetching is for whoever has a connection.

mod path;
mod scope;
mod template;

use std::fmt;

pub use path::{BadPath, PathTemplate, ScopeInvalid, SecretPath};
pub use scope::{Kind, NoScope, Scope, TagRules};
pub use template::{Field, Overflow, Template, Unfilled, has_places};

/// The longest name of a set.
const MAX_NAME: usize = 64;

/// A set's name: 1 to 64 letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetName(String);

impl SetName {
    /// Reads one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        ((1..=MAX_NAME).contains(&text.len()) && text.bytes().all(known)).then(|| Self(text.to_owned()))
    }

    /// As written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_a_plain_name() {
        let long = "x".repeat(MAX_NAME);
        for name in ["worker", "A-1_b", "-", &long] {
            assert_eq!(SetName::parse(name).as_ref().map(SetName::as_str), Some(name));
        }
        for name in ["", ".", "..", "a/b", "a b", "a.b", "ü", "a%2f", "a\n", &format!("{long}x")] {
            assert_eq!(SetName::parse(name), None, "{name}");
        }
    }
}
