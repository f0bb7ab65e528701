//! Where a set lies in the secret store.
//!
//! In come a template that an administrator wrote, a [`Scope`] and a set's name; out goes the path of one set. Every segment
//! that is made of a pool, a tag or a name is percent-encoded and none can be `.` or `..`, so that whatever VMs, pools and
//! tags are called, the path is below the scope's. Refused: at start, templates that are no plain path; later, scopes that
//! would bend one.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::SetName;
use super::scope::{Kind, Scope};
use crate::braces::{self, Part};

/// What stands in a path as it is (RFC 3986 §2.3).
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A path with parts to be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTemplate {
    pieces: Vec<Piece>,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Scope(Kind),
    Name,
}

/// Why a template is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// A brace without its other, or a part that there is not.
    #[error("in braces there are {{name}} and one of {{pool}} and {{tag}}")]
    Part,
    /// A part is missing, or stands there twice.
    #[error("it must have {{name}} once, and one of {{pool}} and {{tag}} once")]
    Parts,
    /// No path.
    #[error(
        "it must be a path of letters, digits, `-`, `.`, `_` and `~` between single slashes, no slash at either end, no segment `.` or `..`"
    )]
    Path,
}

/// A scope whose name would bend the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scope's name is empty, `.` or `..`, or has such a part")]
pub struct ScopeInvalid;

/// The path of one set, below `/v1/`, ready for a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecretPath(String);

impl SecretPath {
    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PathTemplate {
    /// Reads the option.
    ///
    /// # Errors
    /// [`BadPath`]
    pub fn parse(text: &str) -> Result<Self, BadPath> {
        let piece = |part| match part {
            Part::Text(text) => Some(Piece::Text(text.to_owned())),
            Part::Word("name") => Some(Piece::Name),
            Part::Word("pool") => Some(Piece::Scope(Kind::Pool)),
            Part::Word("tag") => Some(Piece::Scope(Kind::Tag)),
            Part::Word(_) => None,
        };
        let pieces = braces::parts(text).and_then(|parts| parts.into_iter().map(piece).collect::<Option<Vec<_>>>());
        let pieces = pieces.ok_or(BadPath::Part)?;
        let kind = |piece: &Piece| if let Piece::Scope(kind) = piece { Some(*kind) } else { None };
        let kinds: Vec<Kind> = pieces.iter().filter_map(kind).collect();
        let names = pieces.iter().filter(|piece| **piece == Piece::Name).count();
        let (1, &[kind]) = (names, &kinds[..]) else { return Err(BadPath::Parts) };
        let sample: String =
            pieces.iter().map(|piece| if let Piece::Text(text) = piece { text } else { "x" }).collect();
        let known = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        let is_plain = |segment: &str| is_segment(segment) && segment.bytes().all(known);
        if sample.split('/').all(is_plain) && !text.contains("..") {
            Ok(Self { pieces, kind })
        } else {
            Err(BadPath::Path)
        }
    }

    /// By what its scopes are told.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The path of `set` in `scope`. A pool in a pool is a path in a path.
    ///
    /// # Errors
    /// [`ScopeInvalid`]
    pub fn path(&self, scope: &Scope, set: &SetName) -> Result<SecretPath, ScopeInvalid> {
        let scope = match scope {
            Scope::Pool(pool) => pool.as_str(),
            Scope::Tag(tag) => tag,
        };
        if !scope.split('/').all(is_segment) {
            return Err(ScopeInvalid);
        }
        let encoded: Vec<_> = scope.split('/').map(|part| utf8_percent_encode(part, KEPT).to_string()).collect();
        let scope = encoded.join("/");
        let filled = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Scope(_) => scope.clone(),
            Piece::Name => set.as_str().to_owned(),
        };
        let path: String = self.pieces.iter().map(filled).collect();
        // Also what a text and a part make together.
        if path.split('/').all(is_segment) { Ok(SecretPath(path)) } else { Err(ScopeInvalid) }
    }
}

fn is_segment(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pools::PoolId;

    #[test]
    fn a_template_is_a_plain_path_with_both_parts() {
        use BadPath as B;
        for (text, expected) in [
            ("kv/data/pve-imds/pools/{pool}/{name}", Ok(Kind::Pool)),
            ("kv/data/pve-imds/tags/{tag}/{name}", Ok(Kind::Tag)),
            ("{name}/x-{tag}", Ok(Kind::Tag)),
            ("kv/{pool}", Err(B::Parts)),
            ("kv/{name}", Err(B::Parts)),
            ("", Err(B::Parts)),
            ("kv/{pool}/{tag}/{name}", Err(B::Parts)),
            ("kv/{pool}/{pool}/{name}", Err(B::Parts)),
            ("kv/{pool}/{name}/{name}", Err(B::Parts)),
            ("kv/{uuid}/{pool}/{name}", Err(B::Part)),
            ("kv/{pool/{name}", Err(B::Part)),
            ("kv/pool}/{name}", Err(B::Part)),
            ("/kv/{pool}/{name}", Err(B::Path)),
            ("kv/{pool}/{name}/", Err(B::Path)),
            ("kv//{pool}/{name}", Err(B::Path)),
            ("kv/../{pool}/{name}", Err(B::Path)),
            ("kv/./{pool}/{name}", Err(B::Path)),
            ("kv/a..b/{pool}/{name}", Err(B::Path)),
            ("kv/{pool}/{name}?x", Err(B::Path)),
            ("kv/{pool}/{name}#x", Err(B::Path)),
            ("kv/%2e%2e/{pool}/{name}", Err(B::Path)),
            ("kv/a b/{pool}/{name}", Err(B::Path)),
            ("kv\\{pool}/{name}", Err(B::Path)),
            ("kv/ü/{pool}/{name}", Err(B::Path)),
        ] {
            assert_eq!(PathTemplate::parse(text).map(|template| template.kind()), expected, "{text}");
        }
    }

    #[test]
    fn no_scope_leads_out_of_itself() {
        let pools = PathTemplate::parse("kv/data/pools/{pool}/{name}").unwrap();
        let tags = PathTemplate::parse("kv/data/tags/{tag}/{name}").unwrap();
        let dotted = PathTemplate::parse("kv/.{tag}/{name}").unwrap();
        let pool = |path: &str| Scope::Pool(PoolId::parse(path).unwrap());
        let tag = |tag: &str| Scope::Tag(tag.to_owned());
        let set = SetName::parse("worker").unwrap();
        for (template, scope, expected) in [
            (&pools, pool("k8s-dmz-01"), Some("kv/data/pools/k8s-dmz-01/worker")),
            (&pools, pool("a/b/c"), Some("kv/data/pools/a/b/c/worker")),
            (&pools, pool("..."), Some("kv/data/pools/.../worker")),
            (&pools, pool(".."), None),
            (&pools, pool("a/.."), None),
            (&pools, pool("./a"), None),
            (&tags, tag("x.y+z"), Some("kv/data/tags/x.y%2Bz/worker")),
            (&tags, tag(""), None),
            (&tags, tag("."), None),
            (&tags, tag(".."), None),
            (&tags, tag("a/.."), None),
            (&tags, tag("%2e%2e"), Some("kv/data/tags/%252e%252e/worker")),
            (&tags, tag("a?b#c"), Some("kv/data/tags/a%3Fb%23c/worker")),
            (&dotted, tag("a"), Some("kv/.a/worker")),
        ] {
            let path = template.path(&scope, &set).ok();
            assert_eq!(path.as_ref().map(SecretPath::as_str), expected, "{scope}");
        }
    }
}
