//! What is known about a request before anyone answers it: where it came from, who that is, what it asks for.
//!
//! The layers of the stack put these values into a request's extensions; datasources read them. In comes an interface;
//! out comes who is behind it, or why nobody is.

use std::net::IpAddr;
use std::sync::Arc;

use crate::fault::{Fault, Outcome, RetryAfter};
use crate::policy::MacRule;
use crate::tap::TapName;
use crate::vm::{Nic, Vm};
use crate::words;

pub use crate::endpoint::Endpoint;

/// The guest interface a connection arrived on. Fixed while the interface lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Its name, parsed.
    pub tap: TapName,
    /// Its kernel index; a new interface of the same name has another.
    pub index: u32,
    /// The number of the last look at the VMs that had begun when the interface was met (0: none). What a later look
    /// finds is about whoever is behind it; what was found before may be about who had the VMID then.
    pub since: u64,
}

/// The far end of one connection, as the guest claims it. Never decides who the guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Source hardware address of the frame that opened the connection.
    pub mac: [u8; 6],
    /// Source address.
    pub ip: IpAddr,
    /// Source port.
    pub port: u16,
}

/// Who asks. Unknown is a value and not a refusal: some endpoints must answer whatever breaks.
#[derive(Clone, Debug)]
pub enum Caller {
    /// The interface belongs to this VM.
    Known(Arc<Vm>),
    /// This VM's, which its owner's policy keeps from us.
    Refused(Arc<Vm>, Refusal),
    /// Nobody we know yet; the reason is for the log.
    Unknown(UnknownCaller),
}

/// Why a VM that is known is given nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its policy says `enabled: false`.
    Disabled,
    /// Its policy cannot be read; what it would have taken away nobody knows.
    PolicyInvalid,
    /// Its policy says `mac: own`, and the connection comes from another address than its NIC's.
    ForeignMac,
}

/// Why an interface has no VM. The texts are for the operator; the guest never sees them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownCaller {
    /// Nobody knows which VMs there are: the tree of configurations does not answer, and has not before.
    #[error("which VMs there are cannot be read (pve_dir); is pve-cluster running?")]
    NoList,
    /// The VMs are known, and this is none of them, on whichever node.
    #[error("the cluster has no configuration of this VM")]
    NoConfig,
    /// There is a configuration, and it could never be read; why.
    #[error("its configuration cannot be read: {0}")]
    Unreadable(Arc<str>),
    /// The configuration exists but says nothing yet (a clone's placeholder, an empty file).
    #[error("the configuration of this VM has nothing in it yet that can be used")]
    NotReady,
    /// The configuration has no such NIC.
    #[error("the configuration of this VM has no such NIC")]
    NoSuchNic,
    /// The configuration cannot be read, and what is known of it is older than the interface: the VMID may have been
    /// given to another VM.
    #[error(
        "the configuration of this VM cannot be read since its interface came, and the VMID may have been another VM's"
    )]
    Unconfirmed,
}

impl Caller {
    /// `vm`, if its policy lets whoever asks through `link` from `peer` have anything. A NIC whose address the
    /// configuration does not tell cannot be held to it.
    #[must_use]
    pub fn admit(vm: Arc<Vm>, link: Link, peer: Option<Peer>) -> Self {
        let own = || vm.nic(link.tap.nic).and_then(Nic::address);
        let foreign = |peer: Peer| own().is_some_and(|own| own != peer.mac);
        let refusal = match &vm.notes.policy {
            Some(Err(_)) => Some(Refusal::PolicyInvalid),
            Some(Ok(policy)) if !policy.enabled => Some(Refusal::Disabled),
            Some(Ok(policy)) if policy.mac == MacRule::Own && peer.is_none_or(foreign) => Some(Refusal::ForeignMac),
            Some(Ok(_)) | None => None,
        };
        match refusal {
            Some(refusal) => Self::Refused(vm, refusal),
            None => Self::Known(vm),
        }
    }

    /// The VM, or the fault for everyone who cannot answer without one.
    ///
    /// # Errors
    /// [`Outcome::VmUnknown`] when the interface has no VM (yet): 503, after which the client asks again. When the VM's
    /// policy says so, [`Outcome::VmExcluded`] (404) or [`Outcome::MacRefused`] (403); when it cannot be read,
    /// [`Outcome::PolicyInvalid`] (503): Talos takes a 404 for a VM without a configuration and lets anybody give it one.
    pub fn require(&self) -> Result<&Arc<Vm>, Fault> {
        match self {
            Self::Known(vm) => Ok(vm),
            Self::Refused(_, Refusal::Disabled) => Err(Fault::not_served(Outcome::VmExcluded)),
            Self::Refused(_, Refusal::ForeignMac) => Err(Fault::forbidden(Outcome::MacRefused)),
            Self::Refused(vm, Refusal::PolicyInvalid) => {
                let fault = Fault::unavailable(Outcome::PolicyInvalid, RetryAfter::DEFAULT);
                Err(match &vm.notes.policy {
                    Some(Err(error)) => fault.because(error.clone()),
                    _ => fault,
                })
            }
            Self::Unknown(why) => {
                Err(Fault::unavailable(Outcome::VmUnknown, RetryAfter::UNKNOWN_VM).because(why.clone()))
            }
        }
    }
}

/// Answers "whose interface is this?" from memory, without waiting.
pub trait Directory: Send + Sync + 'static {
    /// The VM behind `link`.
    ///
    /// # Errors
    /// Why there is none.
    fn find(&self, link: Link) -> Result<Arc<Vm>, UnknownCaller>;
}

words! {
    /// Which dialects a VM is shown.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Emulation {
        /// All of them.
        #[default]
        Auto => "auto",
        /// OpenStack first: the EC2 listing is empty so that crawls are short.
        Openstack => "openstack",
        /// EC2 only.
        Ec2 => "ec2",
    }
}

impl Emulation {
    /// Reads the word for it.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|emulation| emulation.word() == word)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conf;

    #[test]
    fn a_policy_decides_who_is_given_anything() {
        let own = Peer { mac: [0xbc, 0x24, 0x11, 0, 0, 1], ip: [192, 0, 2, 1].into(), port: 1 };
        let other = Peer { mac: [2, 0, 0, 0, 0, 1], ..own };
        let link = |tap: &str| Link { tap: TapName::parse(tap).unwrap(), index: 7, since: 0 };
        for (policy, tap, peer, expected) in [
            (None, "tap106i0", Some(other), Ok(())),
            (Some("hop_limit%3A 1"), "tap106i0", Some(other), Ok(())),
            (Some("enabled%3A true"), "tap106i0", None, Ok(())),
            (Some("enabled%3A false"), "tap106i0", Some(own), Err((404, Outcome::VmExcluded))),
            (Some("enabled%3A maybe"), "tap106i0", Some(own), Err((503, Outcome::PolicyInvalid))),
            (Some("mac%3A own"), "tap106i0", Some(own), Ok(())),
            (Some("mac%3A own"), "tap106i0", Some(other), Err((403, Outcome::MacRefused))),
            (Some("mac%3A own"), "tap106i0", None, Err((403, Outcome::MacRefused))),
            // Its address is another one, and that one's is not known.
            (Some("mac%3A own"), "tap106i1", Some(own), Err((403, Outcome::MacRefused))),
            (Some("mac%3A own"), "tap106i2", Some(own), Ok(())),
        ] {
            let block = policy.map(|text| format!("#<!--#imds\n#{text}\n#-->\n")).unwrap_or_default();
            let config =
                format!("{block}net0: virtio=BC:24:11:00:00:01\nnet1: virtio=BC:24:11:00:00:02\nnet2: virtio\n");
            let link = link(tap);
            let vm = Arc::new(conf::parse(link.tap.vmid, config.as_bytes()).vm);
            let caller = Caller::admit(vm, link, peer);
            let required = caller.require().map(|_| ()).map_err(|fault| (fault.status(), fault.outcome()));
            assert_eq!(required, expected, "{policy:?} {tap} {peer:?}");
        }
    }
}
