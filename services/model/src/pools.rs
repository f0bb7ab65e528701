//! `/etc/pve/user.cfg`: which pool a VM is in.
//!
//! In come the file's bytes; out goes the pool of each VM, as Proxmox's own loader reads it. Users, groups, roles and
//! rights stand in the same file and are none of our business. Nothing is refused: a line that Proxmox ignores is
//! ignored, and only that line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::format::{is_blank_char, is_digits, split_list};
use crate::vm::VmId;

/// A pool below a pool below a pool, and no further.
const LEVELS: usize = 3;

/// A pool's path: one to three names of letters, digits, `.`, `_` and `-`, joined by `/`. A name may be `.` or `..`:
/// whoever makes a path of it must look. Clones share the text: every VM of a pool carries one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(Arc<str>);

impl PoolId {
    /// Reads a path.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let names = text.split('/').collect::<Vec<_>>();
        let valid = |name: &str| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        (names.len() <= LEVELS && names.into_iter().all(valid)).then(|| Self(text.into()))
    }

    /// The path as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The pool this one is in. A VM in this one is not in that one.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once('/').map(|(parent, _)| Self(parent.into()))
    }
}

impl Serialize for PoolId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All pools and who is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    all: BTreeSet<PoolId>,
    of: BTreeMap<VmId, PoolId>,
}

impl Pools {
    /// Reads `user.cfg`. Of two pools that name a VM, the first in the file has it.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut pools = Self::default();
        for line in String::from_utf8_lossy(bytes).lines() {
            let mut fields = line.split(':').map(|field| field.trim_matches(is_blank_char));
            if fields.next() != Some("pool") {
                continue;
            }
            let Some(pool) = fields.next().and_then(PoolId::parse) else { continue };
            // Behind the comment.
            let members = fields.nth(1).unwrap_or_default();
            for vmid in split_list(members).into_iter().filter_map(vmid) {
                pools.of.entry(vmid).or_insert_with(|| pool.clone());
            }
            let mut path = Some(pool);
            while let Some(pool) = path {
                path = pool.parent();
                pools.all.insert(pool);
            }
        }
        pools
    }

    /// The pool a VM is in; at most one.
    #[must_use]
    pub fn of(&self, vmid: VmId) -> Option<&PoolId> {
        self.of.get(&vmid)
    }

    /// Every pool there is, by path, with those that only stand in another's path.
    pub fn all(&self) -> impl Iterator<Item = &PoolId> {
        self.all.iter()
    }

    /// Every VM that is in a pool.
    pub fn members(&self) -> impl Iterator<Item = (VmId, &PoolId)> {
        self.of.iter().map(|(vmid, pool)| (*vmid, pool))
    }
}

/// Here, unlike elsewhere, leading zeros mean nothing.
fn vmid(text: &str) -> Option<VmId> {
    if is_digits(text) { text.parse().ok().and_then(VmId::new) } else { None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(text: &str, vmid: u32) -> Option<String> {
        Pools::parse(text.as_bytes()).of(VmId::new(vmid).unwrap()).map(ToString::to_string)
    }

    #[test]
    fn a_vm_is_in_one_pool_or_in_none() {
        for (text, expected) in [
            ("pool:a::106:", Some("a")),
            ("pool:a::106", Some("a")),
            ("\t pool : a : comment : 105 , 106;107 : x :\r", Some("a")),
            ("pool:a::0000106:", Some("a")),
            ("pool:a::106:\npool:b::106:", Some("a")),
            ("pool:a:x:105:\npool:a::106:", Some("a")),
            ("pool:a/b/c::106:", Some("a/b/c")),
            ("pool:..::106:", Some("..")),
            ("pool:a/b/c/d::106:", None),
            ("pool:/a::106:", None),
            ("pool:a/::106:", None),
            ("pool:::106:", None),
            ("pool:a b::106:", None),
            ("pool:\u{fc}::106:", None),
            ("pool:a::+106:", None),
            ("pool:a::106.0:", None),
            ("pool:a::1060:", None),
            ("pool:a:106:", None),
            ("Pool:a::106:", None),
            ("#pool:a::106:", None),
            ("role:a::106:", None),
            ("", None),
        ] {
            assert_eq!(of(text, 106).as_deref(), expected, "{text:?}");
        }
        assert_eq!(PoolId::parse("a/b").and_then(|pool| pool.parent()), PoolId::parse("a"));
        assert_eq!(PoolId::parse("a").and_then(|pool| pool.parent()), None);
    }
}
