//! What is known about a request before anyone answers it: where it came from, who that is, what it asks for.
//!
//! The layers of the stack put these values into a request's extensions; datasources read them. In comes a path or an
//! interface; out comes a closed set of words, so that metric labels are bounded by construction.

use std::net::IpAddr;
use std::sync::Arc;

use crate::fault::{Fault, Outcome, RetryAfter};
use crate::tap::TapName;
use crate::vm::Vm;
use crate::words;

/// The guest interface a connection arrived on. Fixed while the interface lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Its name, parsed.
    pub tap: TapName,
    /// Its kernel index; a new interface of the same name has another.
    pub index: u32,
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
    /// Nobody we know yet; the reason is for the log.
    Unknown(UnknownCaller),
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
    #[error("the configuration of this VM has no content yet")]
    NotReady,
    /// The configuration has no such NIC.
    #[error("the configuration of this VM has no such NIC")]
    NoSuchNic,
}

impl Caller {
    /// The VM, or the fault for everyone who cannot answer without one: 503 after which the client asks again.
    ///
    /// # Errors
    /// [`Outcome::VmUnknown`] when the interface has no VM (yet).
    pub fn require(&self) -> Result<&Arc<Vm>, Fault> {
        match self {
            Self::Known(vm) => Ok(vm),
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

words! {
    /// What is asked for: a closed set, because it labels metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Endpoint {
        /// `/nocloud`, `/nocloud/`
        NocloudIndex => "nocloud_index",
        /// `/nocloud/meta-data`
        NocloudMetaData => "nocloud_meta_data",
        /// `/nocloud/user-data`
        NocloudUserData => "nocloud_user_data",
        /// `/nocloud/vendor-data`
        NocloudVendorData => "nocloud_vendor_data",
        /// `/nocloud/network-config`
        NocloudNetworkConfig => "nocloud_network_config",
        /// `/pxe…`: errors must be spoken in iPXE's language.
        Pxe => "pxe",
        /// Everything else.
        Other => "other",
    }
}

impl Endpoint {
    /// Reads a request path. Doubled and trailing slashes are real (shipping clients send them) and mean nothing;
    /// old cloud-init joins seed and file name without a slash, so `/nocloudmeta-data` is an alias.
    #[must_use]
    pub fn classify(path: &str) -> Self {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let (first, second, third) = (parts.next(), parts.next(), parts.next());
        match (first, second, third) {
            (Some("nocloud"), None, None) => Self::NocloudIndex,
            (Some("nocloud"), Some(file), None) => Self::nocloud_file(file),
            (Some("pxe"), _, _) => Self::Pxe,
            (Some(joined), None, None) => joined.strip_prefix("nocloud").map_or(Self::Other, Self::nocloud_file),
            _ => Self::Other,
        }
    }

    fn nocloud_file(name: &str) -> Self {
        match name {
            "meta-data" => Self::NocloudMetaData,
            "user-data" => Self::NocloudUserData,
            "vendor-data" => Self::NocloudVendorData,
            "network-config" => Self::NocloudNetworkConfig,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_a_closed_set() {
        use Endpoint as E;
        for (path, expected) in [
            ("/nocloud", E::NocloudIndex),
            ("/nocloud/", E::NocloudIndex),
            ("//nocloud//", E::NocloudIndex),
            ("/nocloud/meta-data", E::NocloudMetaData),
            ("/nocloud/meta-data/", E::NocloudMetaData),
            ("/nocloud/user-data", E::NocloudUserData),
            ("/nocloud/vendor-data", E::NocloudVendorData),
            ("/nocloud/network-config", E::NocloudNetworkConfig),
            ("/nocloudmeta-data", E::NocloudMetaData),
            ("/noclouduser-data", E::NocloudUserData),
            ("/nocloud/meta-data/x", E::Other),
            ("/nocloud/other", E::Other),
            ("/pxe", E::Pxe),
            ("/pxe/job", E::Pxe),
            ("/", E::Other),
            ("/latest/meta-data", E::Other),
            ("/Nocloud", E::Other),
            ("", E::Other),
        ] {
            assert_eq!(E::classify(path), expected, "{path}");
        }
    }
}
