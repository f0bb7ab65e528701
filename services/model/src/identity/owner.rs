//! Whose a UUID is, when more than one VM has it.
//!
//! A backup that is restored beside the VM it was made of has that VM's UUID: two of them could say that they are the same.
//! In come who has the UUID and what an administrator has decided; out goes whether this VM may speak in its name. Refused:
//! to guess which of them was first.

use std::collections::BTreeMap;

use crate::format::is_uuid;
use crate::vm::VmId;

/// Whose each UUID is, in lower case, as far as that was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners(BTreeMap<String, VmId>);

/// What is no such decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOwner {
    /// Another form.
    #[error("{0:?} is no UUID=VMID (2c8c7c76-a26c-4eb7-b04c-bf52bc095b81=106)")]
    Form(String),
    /// A UUID that two VMs are given.
    #[error("the UUID {0} is given to two VMs; leave one of them")]
    Twice(String),
}

impl Owners {
    /// Reads the option, and says all that is wrong with it.
    ///
    /// # Errors
    /// [`BadOwner`]
    pub fn parse<'a>(decisions: impl IntoIterator<Item = &'a str>) -> Result<Self, Vec<BadOwner>> {
        let (mut owners, mut wrong) = (BTreeMap::new(), Vec::new());
        for text in decisions {
            let parts = text.split_once('=').map(|(uuid, vmid)| (uuid.trim(), vmid.trim()));
            let read = parts
                .and_then(|(uuid, vmid)| Some((is_uuid(uuid).then(|| uuid.to_ascii_lowercase())?, VmId::parse(vmid)?)));
            match read {
                None => wrong.push(BadOwner::Form(text.to_owned())),
                Some((uuid, vmid)) => {
                    if owners.get(&uuid).is_some_and(|other| *other != vmid) {
                        wrong.push(BadOwner::Twice(uuid));
                    } else {
                        owners.insert(uuid, vmid);
                    }
                }
            }
        }
        if wrong.is_empty() { Ok(Self(owners)) } else { Err(wrong) }
    }

    /// Whether `vm` may speak in the name of its UUID, which `holders` have.
    ///
    /// # Errors
    /// It is another VM's, or may be.
    pub fn settle(&self, uuid: &str, vm: VmId, holders: &[VmId]) -> Result<(), Contested> {
        let owner = self.0.get(&uuid.to_ascii_lowercase()).copied();
        let others: Vec<VmId> = holders.iter().copied().filter(|holder| *holder != vm).collect();
        match owner {
            Some(owner) if owner == vm => Ok(()),
            None if others.is_empty() => Ok(()),
            owner => Err(Contested { vm, owner, others }),
        }
    }
}

/// More than one VM has this one's UUID, or it is another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contested {
    vm: VmId,
    owner: Option<VmId>,
    others: Vec<VmId>,
}

/// How many of the others are told.
const MAX_TOLD: usize = 8;

impl std::fmt::Display for Contested {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { vm, owner, others } = self;
        if let Some(owner) = owner {
            return write!(f, "VM {vm} has the UUID that identity.uuid_owner gives to VM {owner}");
        }
        let told: Vec<_> = others.iter().take(MAX_TOLD).map(VmId::to_string).collect();
        let more = others.len().saturating_sub(MAX_TOLD);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        write!(
            f,
            "VM {vm} has the UUID of VM {}{more} too; give one of them another (qm set --smbios1), or say in \
             identity.uuid_owner whose it is",
            told.join(", ")
        )
    }
}

impl std::error::Error for Contested {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const UUID: &str = "2c8c7c76-a26c-4eb7-b04c-bf52bc095b81";

    #[test]
    fn a_uuid_is_one_vms_or_whose_it_was_decided_to_be() {
        let vmid = |number| VmId::new(number).unwrap();
        for (owner, holders, others) in [
            (None, &[106][..], None),
            // A VM whose configuration is gone by now.
            (None, &[], None),
            (None, &[106, 200], Some(&[200][..])),
            (None, &[200], Some(&[200])),
            (Some(106), &[106, 200], None),
            (Some(200), &[106, 200], Some(&[200])),
            (Some(200), &[106], Some(&[])),
        ] {
            let owners = owner.map(|owner: u32| format!("{}={owner}", UUID.to_uppercase()));
            let owners = Owners::parse(owners.as_deref()).unwrap();
            let holders: Vec<_> = holders.iter().copied().map(vmid).collect();
            let got = owners.settle(UUID, vmid(106), &holders).err().map(|contested| contested.others);
            assert_eq!(got, others.map(|others| others.iter().copied().map(vmid).collect()), "{owner:?} {holders:?}");
        }
    }

    #[test]
    fn a_decision_is_a_uuid_and_a_vmid() {
        let good = format!(" {UUID} = 106");
        assert_eq!(Owners::parse([&*good, &good]).unwrap().0.len(), 1);
        let twice =
            [format!("{UUID}=106"), format!("{UUID}=107"), "x".into(), format!("{UUID}=99"), format!("{UUID}:106")];
        let wrong = Owners::parse(twice.iter().map(String::as_str)).unwrap_err();
        assert!(matches!(wrong[..], [BadOwner::Twice(_), BadOwner::Form(_), BadOwner::Form(_), BadOwner::Form(_)]));
    }

    #[test]
    fn both_are_named_and_the_mend() {
        let holders: Vec<_> = (106..120).map(|number| VmId::new(number).unwrap()).collect();
        let contested = Owners::default().settle(UUID, holders[0], &holders).unwrap_err();
        assert_eq!(
            contested.to_string(),
            "VM 106 has the UUID of VM 107, 108, 109, 110, 111, 112, 113, 114 and 5 more too; give one of them another \
             (qm set --smbios1), or say in identity.uuid_owner whose it is"
        );
    }
}
