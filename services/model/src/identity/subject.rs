//! A VM's name for others: `spiffe://<trust domain>/<path>`.
//!
//! In come what the node was told and the VM; out goes a [`SpiffeId`]. Refused: characters and segments that SPIFFE does
//! not know (SPIFFE-ID §2), and a VM that lacks a part of its name.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::braces;
use crate::pools::PoolId;
use crate::vm::Vm;

/// Bytes of the longest name (SPIFFE-ID §2.3).
const MAX_ID: usize = 2048;

/// Bytes of the longest trust domain (SPIFFE-ID §2.1).
const MAX_TRUST_DOMAIN: usize = 255;

/// Whose names a token's are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TrustDomain {
    /// The node's: a VM that migrates has another one.
    #[default]
    Node,
    /// The cluster's.
    Cluster,
    /// One that an administrator has chosen.
    Named(String),
}

/// Not a trust domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no trust domain: 1 to {MAX_TRUST_DOMAIN} lower-case letters, digits, `.`, `-` and `_`; empty for the node's name, `cluster` for the cluster's"
)]
pub struct BadTrustDomain;

impl TrustDomain {
    /// Reads the option.
    ///
    /// # Errors
    /// [`BadTrustDomain`]
    pub fn parse(text: &str) -> Result<Self, BadTrustDomain> {
        match text {
            "" => Ok(Self::Node),
            "cluster" => Ok(Self::Cluster),
            name if is_trust_domain(name) => Ok(Self::Named(name.to_owned())),
            _ => Err(BadTrustDomain),
        }
    }
}

fn is_trust_domain(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_');
    (1..=MAX_TRUST_DOMAIN).contains(&name.len()) && name.bytes().all(known)
}

/// What stands behind the trust domain: text, and parts of the VM in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Part(Part),
}

crate::words! {
    /// A part of a VM's name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Part {
        /// The VMID, which is given again when a VM is gone.
        Vmid => "vmid",
        /// The UUID of `smbios1`.
        Uuid => "uuid",
        /// The pool's path.
        Pool => "pool",
        /// The VM's name.
        Name => "name",
        /// The node it runs on.
        Node => "node",
    }
}

/// Why a template is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    /// A brace without its other, or a part that no VM has.
    #[error("in braces there are {{vmid}}, {{uuid}}, {{pool}}, {{name}} and {{node}}")]
    Part,
    /// No path of SPIFFE's, whatever the parts are.
    #[error(
        "no path: letters, digits, `.`, `-`, `_` and parts in braces between single slashes, no slash at either end, no segment `.` or `..`"
    )]
    Path,
}

impl Default for Template {
    /// The VMID alone.
    fn default() -> Self {
        Self(vec![Piece::Part(Part::Vmid)])
    }
}

impl Template {
    /// Reads the option; empty is the default.
    ///
    /// # Errors
    /// [`BadTemplate`]
    pub fn parse(text: &str) -> Result<Self, BadTemplate> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let piece = |part| match part {
            braces::Part::Text(text) => Some(Piece::Text(text.to_owned())),
            braces::Part::Word(word) => Part::ALL.iter().find(|part| part.word() == word).copied().map(Piece::Part),
        };
        let pieces = braces::parts(text).and_then(|parts| parts.into_iter().map(piece).collect());
        let template = Self(pieces.ok_or(BadTemplate::Part)?);
        let sample: String = template.0.iter().map(|piece| piece.text().unwrap_or("x")).collect();
        if is_path(&sample) { Ok(template) } else { Err(BadTemplate::Path) }
    }
}

impl Piece {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Part(_) => None,
        }
    }
}

fn is_path(path: &str) -> bool {
    path.split('/').all(is_segment)
}

fn is_segment(segment: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    !matches!(segment, "" | "." | "..") && segment.bytes().all(known)
}

/// Why a VM has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSubject {
    /// It lacks this part.
    #[error("the VM has no {}, which jwtsvid.subject_template asks for", .0.word())]
    Lacks(Part),
    /// This part of it has characters that no such name may have.
    #[error("the VM's {} does not fit into a SPIFFE ID", .0.word())]
    Unfit(Part),
    /// What is made of all parts is too long, or no path.
    #[error("the name would be no SPIFFE ID")]
    NoId,
}

/// A name: `spiffe://`, a trust domain and a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpiffeId(String);

impl SpiffeId {
    /// The name of `vm`, which is in `pool` and runs on `node`. SPIFFE's trust domains have no upper case.
    ///
    /// # Errors
    /// [`NoSubject`]
    pub fn of(
        trust_domain: &str,
        template: &Template,
        vm: &Vm,
        node: &str,
        pool: Option<&PoolId>,
    ) -> Result<Self, NoSubject> {
        let mut path = String::new();
        for piece in &template.0 {
            match piece {
                Piece::Text(text) => path.push_str(text),
                Piece::Part(part) => {
                    let value = match part {
                        Part::Vmid => Some(vm.vmid.to_string()),
                        Part::Uuid => vm.uuid.as_deref().map(str::to_ascii_lowercase),
                        Part::Pool => pool.map(|pool| pool.as_str().to_owned()),
                        Part::Name => vm.name.clone(),
                        Part::Node => Some(node.to_owned()),
                    };
                    let value = value.ok_or(NoSubject::Lacks(*part))?;
                    if !is_path(&value) || *part != Part::Pool && value.contains('/') {
                        return Err(NoSubject::Unfit(*part));
                    }
                    path.push_str(&value);
                }
            }
        }
        let trust_domain = trust_domain.to_ascii_lowercase();
        let id = format!("spiffe://{trust_domain}/{path}");
        let fits = is_trust_domain(&trust_domain) && is_path(&path) && id.len() <= MAX_ID;
        if fits { Ok(Self(id)) } else { Err(NoSubject::NoId) }
    }

    /// As it stands in a token.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for SpiffeId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conf;
    use crate::vm::VmId;

    const WHOLE: &str = "name: web-1\nsmbios1: uuid=2C8C7C76-A26C-4EB7-B04C-BF52BC095B81\n";

    #[test]
    fn a_name_has_all_its_parts_or_is_none() {
        use NoSubject as N;
        let long = "x".repeat(2000);
        for (template, domain, config, pool, expected) in [
            ("", "pve1", WHOLE, None, Ok("spiffe://pve1/106")),
            ("", "PVE1", "", None, Ok("spiffe://pve1/106")),
            ("{uuid}", "prod", WHOLE, None, Ok("spiffe://prod/2c8c7c76-a26c-4eb7-b04c-bf52bc095b81")),
            (
                "vm/{pool}/{name}-{vmid}/on.{node}",
                "prod",
                WHOLE,
                Some("a/b"),
                Ok("spiffe://prod/vm/a/b/web-1-106/on.pve1"),
            ),
            ("{uuid}", "prod", "name: x\n", None, Err(N::Lacks(Part::Uuid))),
            ("{name}", "prod", "", None, Err(N::Lacks(Part::Name))),
            ("{pool}", "prod", WHOLE, None, Err(N::Lacks(Part::Pool))),
            ("{pool}", "prod", WHOLE, Some("a/.."), Err(N::Unfit(Part::Pool))),
            ("x{pool}", "prod", WHOLE, Some(".."), Err(N::Unfit(Part::Pool))),
            ("{pool}/{vmid}", "p q", WHOLE, Some("a"), Err(N::NoId)),
            ("{vmid}", &long, WHOLE, None, Err(N::NoId)),
            ("", "", WHOLE, None, Err(N::NoId)),
        ] {
            let vm = conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm;
            let pool = pool.and_then(PoolId::parse);
            let id = SpiffeId::of(domain, &Template::parse(template).unwrap(), &vm, "pve1", pool.as_ref());
            assert_eq!(id.as_ref().map(SpiffeId::as_str), expected.as_ref().map(|text| *text), "{template} {config}");
        }
    }

    #[test]
    fn templates_and_trust_domains_are_checked_before_anybody_asks() {
        use BadTemplate as B;
        for (text, expected) in [
            ("{vmid}", None),
            ("vm/{uuid}", None),
            ("{name}.{node}", None),
            ("everybody", None),
            ("{VMID}", Some(B::Part)),
            ("{vmid", Some(B::Part)),
            ("vmid}", Some(B::Part)),
            ("{}", Some(B::Part)),
            ("{{vmid}}", Some(B::Part)),
            ("/{vmid}", Some(B::Path)),
            ("{vmid}/", Some(B::Path)),
            ("a//b", Some(B::Path)),
            ("../{vmid}", Some(B::Path)),
            ("a/./b", Some(B::Path)),
            ("a b", Some(B::Path)),
            ("a%2Fb", Some(B::Path)),
            ("spiffe://a/{vmid}", Some(B::Path)),
            ("ü", Some(B::Path)),
        ] {
            assert_eq!(Template::parse(text).err(), expected, "{text}");
        }
        for (text, expected) in [
            ("", Ok(TrustDomain::Node)),
            ("cluster", Ok(TrustDomain::Cluster)),
            ("prod.example", Ok(TrustDomain::Named("prod.example".into()))),
            ("Prod", Err(BadTrustDomain)),
            ("a/b", Err(BadTrustDomain)),
            ("a:1", Err(BadTrustDomain)),
            (&"x".repeat(256), Err(BadTrustDomain)),
        ] {
            assert_eq!(TrustDomain::parse(text), expected, "{text}");
        }
    }
}
