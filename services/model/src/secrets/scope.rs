//! Whose secrets a VM's are.
//!
//! In come a VM, its pool and what the cluster's tags are worth; out goes the one [`Scope`] that it is in. Who may put a VM
//! into a pool is guarded by Proxmox; who may give it a tag only under certain settings, so those are looked at first.
//! Refused: to choose among scopes.

use std::collections::BTreeSet;
use std::fmt;

use crate::datacenter::{Datacenter, UserAllow};
use crate::fault::Outcome;
use crate::pools::PoolId;
use crate::vm::Vm;

/// By what a node's scopes are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By the VM's pool.
    Pool,
    /// By one of its tags.
    Tag,
}

/// Which tags are a scope's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagRules {
    /// What such a tag begins with.
    pub prefix: String,
    /// It must be one of the cluster's registered tags, and the settings such that only an administrator can set those.
    pub require_registered: bool,
}

/// A scope.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A pool.
    Pool(PoolId),
    /// A tag, without the prefix and in lower case.
    Tag(String),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(pool) => write!(f, "pool {pool}"),
            Self::Tag(tag) => write!(f, "tag {tag}"),
        }
    }
}

/// Why a VM is in no scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoScope {
    /// Nobody has put it into one.
    #[error("the VM is in no pool")]
    VmNotInPool,
    /// The cluster's settings let others than administrators set registered tags.
    #[error("the cluster's settings do not keep registered tags for administrators")]
    TagPolicyUnsafe,
    /// No tag has the prefix.
    #[error("the VM has no tag that begins with secrets.tag_prefix")]
    TagMissing,
    /// More than one has.
    #[error("the VM has more than one tag that begins with secrets.tag_prefix")]
    TagAmbiguous,
    /// Not one of the cluster's.
    #[error("the VM's tag is not registered in the cluster")]
    TagNotRegistered,
}

impl NoScope {
    /// The word for it.
    #[must_use]
    pub fn outcome(self) -> Outcome {
        match self {
            Self::VmNotInPool => Outcome::VmNotInPool,
            Self::TagPolicyUnsafe => Outcome::TagPolicyUnsafe,
            Self::TagMissing => Outcome::TagMissing,
            Self::TagAmbiguous => Outcome::TagAmbiguous,
            Self::TagNotRegistered => Outcome::TagNotRegistered,
        }
    }

    /// What mends it, as a command or a sentence.
    #[must_use]
    pub fn mend(self) -> &'static str {
        match self {
            Self::VmNotInPool => "pvesh set /pools --poolid <pool> --vms <VMID>",
            Self::TagPolicyUnsafe => "pvesh set /cluster/options --user-tag-access user-allow=existing",
            Self::TagMissing => "give the VM its tag, beside those it has: qm set <VMID> --tags '<tags>;<tag>'",
            Self::TagAmbiguous => "leave it one of them: qm set <VMID> --tags '<tags>'",
            Self::TagNotRegistered => {
                "add the tag to those that are registered: pvesh set /cluster/options --registered-tags '<tags>;<tag>'"
            }
        }
    }
}

impl Scope {
    /// The scope of `vm`, which is in `pool`.
    ///
    /// # Errors
    /// [`NoScope`]
    pub fn of(
        kind: Kind,
        vm: &Vm,
        pool: Option<&PoolId>,
        datacenter: &Datacenter,
        rules: &TagRules,
    ) -> Result<Self, NoScope> {
        match kind {
            Kind::Pool => pool.cloned().map(Self::Pool).ok_or(NoScope::VmNotInPool),
            Kind::Tag => by_tag(vm, datacenter, rules),
        }
    }
}

/// Without rights on the datacenter nobody sets a registered tag, says Proxmox, and compares letter by letter; then it may
/// lower the case of what was set. So either letter case counts, or others set no tags of their own making.
fn is_boundary(datacenter: &Datacenter) -> bool {
    datacenter.case_sensitive || datacenter.user_allow != UserAllow::Free
}

fn by_tag(vm: &Vm, datacenter: &Datacenter, rules: &TagRules) -> Result<Scope, NoScope> {
    if rules.require_registered && !is_boundary(datacenter) {
        return Err(NoScope::TagPolicyUnsafe);
    }
    let known = |tag: &str| if datacenter.case_sensitive { tag.to_owned() } else { tag.to_ascii_lowercase() };
    let prefix = known(&rules.prefix);
    let tags: BTreeSet<String> = vm.tags.iter().map(|tag| known(tag)).filter(|tag| tag.starts_with(&*prefix)).collect();
    let mut tags = tags.into_iter();
    let tag = match (tags.next(), tags.next()) {
        (None, _) => return Err(NoScope::TagMissing),
        (Some(tag), None) => tag,
        (Some(_), Some(_)) => return Err(NoScope::TagAmbiguous),
    };
    if rules.require_registered && !datacenter.registered_tags.iter().any(|registered| known(registered) == tag) {
        return Err(NoScope::TagNotRegistered);
    }
    Ok(Scope::Tag(tag[prefix.len()..].to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conf;
    use crate::vm::VmId;

    fn vm(tags: &str) -> Vm {
        conf::parse(VmId::new(106).unwrap(), format!("tags: {tags}\n").as_bytes()).vm
    }

    #[test]
    fn a_tag_is_a_scope_where_it_is_guarded_and_the_only_one() {
        use NoScope as N;
        const SAFE: &str = "user-tag-access: user-allow=existing\n";
        const EXACT: &str = "tag-style: case-sensitive=1\n";
        const REGISTERED: &str = "registered-tags: pve-imds-a;pve-imds-B;other\n";
        let lax = TagRules { prefix: "pve-imds-".into(), require_registered: false };
        let strict = TagRules { require_registered: true, ..lax.clone() };
        for (rules, settings, tags, expected) in [
            (&strict, format!("{SAFE}{REGISTERED}"), "other;pve-imds-a", Ok("a")),
            (&strict, format!("{SAFE}{REGISTERED}"), "PVE-IMDS-A", Ok("a")),
            (&strict, format!("{SAFE}{REGISTERED}"), "pve-imds-b", Ok("b")),
            (&strict, format!("{SAFE}{REGISTERED}"), "pve-imds-c", Err(N::TagNotRegistered)),
            (&strict, format!("{SAFE}{REGISTERED}"), "other", Err(N::TagMissing)),
            (&strict, format!("{SAFE}{REGISTERED}"), "", Err(N::TagMissing)),
            (&strict, format!("{SAFE}{REGISTERED}"), "pve-imds-a;pve-imds-b", Err(N::TagAmbiguous)),
            (&strict, format!("{SAFE}{REGISTERED}"), "pve-imds-a;PVE-IMDS-A", Ok("a")),
            // One that is not registered makes it no less ambiguous.
            (&strict, format!("{SAFE}{REGISTERED}"), "pve-imds-a;pve-imds-c", Err(N::TagAmbiguous)),
            (&strict, format!("{EXACT}{REGISTERED}"), "pve-imds-a", Ok("a")),
            (&strict, format!("{EXACT}{REGISTERED}"), "pve-imds-B", Ok("b")),
            (&strict, format!("{EXACT}{REGISTERED}"), "pve-imds-b", Err(N::TagNotRegistered)),
            (&strict, format!("{EXACT}{REGISTERED}"), "PVE-IMDS-a", Err(N::TagMissing)),
            (&strict, format!("{EXACT}{REGISTERED}"), "pve-imds-B;pve-imds-b", Err(N::TagAmbiguous)),
            (&strict, SAFE.into(), "pve-imds-a", Err(N::TagNotRegistered)),
            // A list with one that is no tag registers none.
            (&strict, format!("{SAFE}registered-tags: pve-imds-a;-\n"), "pve-imds-a", Err(N::TagNotRegistered)),
            (&strict, REGISTERED.into(), "pve-imds-a", Err(N::TagPolicyUnsafe)),
            (&strict, REGISTERED.into(), "other", Err(N::TagPolicyUnsafe)),
            (&strict, format!("user-tag-access: user-allow=free\n{REGISTERED}"), "pve-imds-a", Err(N::TagPolicyUnsafe)),
            (&strict, format!("user-tag-access: user-allow=none\n{REGISTERED}"), "pve-imds-a", Ok("a")),
            (&strict, format!("user-tag-access: user-allow=list\n{REGISTERED}"), "pve-imds-a", Ok("a")),
            (&lax, String::new(), "pve-imds-X.y+z", Ok("x.y+z")),
            (&lax, String::new(), "pve-imds-", Ok("")),
            (&lax, String::new(), "pve-imds-a;pve-imds-b", Err(N::TagAmbiguous)),
        ] {
            let got = Scope::of(Kind::Tag, &vm(tags), None, &Datacenter::parse(settings.as_bytes()), rules);
            assert_eq!(got, expected.map(|tag| Scope::Tag(tag.to_owned())), "{rules:?} {settings} {tags}");
        }
    }

    #[test]
    fn a_pool_is_a_scope_whatever_the_tags() {
        let rules = TagRules { prefix: "pve-imds-".into(), require_registered: true };
        let pool = PoolId::parse("a/b").unwrap();
        let of = |pool| Scope::of(Kind::Pool, &vm("pve-imds-a"), pool, &Datacenter::default(), &rules);
        assert_eq!(of(Some(&pool)), Ok(Scope::Pool(pool.clone())));
        assert_eq!(of(None), Err(NoScope::VmNotInPool));
        assert_eq!(of(Some(&pool)).unwrap().to_string(), "pool a/b");
    }
}
