//! Why a VM is not shown a dialect: for people who ask why.
//!
//! In come a dialect, what the node serves and what the VM's own policy says; out goes the setting that hides the one from
//! the other, if one does. The router decides the same by [`Vm::emulation`] and [`Vm::keeps_to_ec2`], for guests who must
//! not hear of it.

use crate::endpoint::Family;
use crate::policy::Policy;
use crate::request::Emulation;
use crate::sources::Source;
use crate::vm::Vm;

/// The setting that hides a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Hidden {
    /// The node's.
    #[error("this node's configuration says `nocloud.enabled: false`")]
    NocloudOff,
    /// The node's.
    #[error("this node's configuration says `emulate: ec2`")]
    NodeEmulatesEc2,
    /// The policy's.
    #[error("its policy says `emulate: ec2`")]
    PolicyEmulatesEc2,
    /// The policy's.
    #[error("its policy says `ec2_tokens: required`, which without an `emulate` means EC2 alone")]
    TokensRequired,
}

impl Hidden {
    /// Whose it is.
    #[must_use]
    pub fn source(self) -> Source {
        match self {
            Self::NocloudOff | Self::NodeEmulatesEc2 => Source::Node,
            Self::PolicyEmulatesEc2 | Self::TokensRequired => Source::Block,
        }
    }
}

/// What hides `family` from `vm` on a node that serves NoCloud or does not, and shows `node`.
#[must_use]
pub fn hidden(vm: &Vm, family: Family, nocloud_enabled: bool, node: Emulation) -> Option<Hidden> {
    let by_policy = match &vm.notes.policy {
        _ if !vm.keeps_to_ec2() => None,
        Some(Ok(Policy { emulate: Some(_), .. })) => Some(Hidden::PolicyEmulatesEc2),
        _ => Some(Hidden::TokensRequired),
    };
    match family {
        Family::Nocloud if !nocloud_enabled => Some(Hidden::NocloudOff),
        Family::Nocloud => by_policy,
        Family::Openstack if vm.emulation(node) == Emulation::Ec2 => by_policy.or(Some(Hidden::NodeEmulatesEc2)),
        Family::Openstack | Family::Ec2 | Family::Identity | Family::Pxe => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conf;
    use crate::vm::VmId;

    #[test]
    fn each_dialect_is_hidden_by_the_setting_that_says_so() {
        use Emulation::{Auto, Ec2, Openstack};
        use Hidden::{NocloudOff, NodeEmulatesEc2, PolicyEmulatesEc2, TokensRequired};
        for (policy, nocloud, node, to_nocloud, to_openstack) in [
            ("", true, Auto, None, None),
            ("", false, Auto, Some(NocloudOff), None),
            ("", true, Openstack, None, None),
            ("", true, Ec2, None, Some(NodeEmulatesEc2)),
            ("emulate: auto", true, Ec2, None, Some(NodeEmulatesEc2)),
            ("emulate: openstack", true, Ec2, None, Some(NodeEmulatesEc2)),
            ("emulate: openstack", true, Auto, None, None),
            ("emulate: ec2", true, Auto, Some(PolicyEmulatesEc2), Some(PolicyEmulatesEc2)),
            ("emulate: ec2", false, Ec2, Some(NocloudOff), Some(PolicyEmulatesEc2)),
            ("ec2_tokens: required", true, Auto, Some(TokensRequired), Some(TokensRequired)),
            ("{ec2_tokens: required, emulate: ec2}", true, Auto, Some(PolicyEmulatesEc2), Some(PolicyEmulatesEc2)),
            ("{ec2_tokens: required, emulate: auto}", true, Auto, None, None),
            ("mac: own", true, Auto, None, None),
            // Of a broken one nobody knows; nothing is served either way.
            ("emulate: x", true, Auto, None, None),
        ] {
            let notes = format!("#<!--#imds\n#{}\n#-->\n", policy.replace(':', "%3A"));
            let vm = conf::parse(VmId::new(100).unwrap(), notes.as_bytes()).vm;
            let all = [Family::Nocloud, Family::Openstack, Family::Ec2, Family::Identity, Family::Pxe];
            let got = all.map(|family| hidden(&vm, family, nocloud, node));
            assert_eq!(got, [to_nocloud, to_openstack, None, None, None], "{policy} {nocloud} {node:?}");
        }
    }
}
