//! Our own two devices: the private veth pair between the guests' interfaces and the AF_XDP socket.
//!
//! In comes the prefix of their names; out come their indexes. They carry nothing but tagged frames: no addresses, no
//! ARP, no IPv6 of their own, and they are up only after their programs are attached ([`Devices::raise`]). A pair that
//! an earlier run left is used again, so that its programs keep dropping meanwhile; anything else under these names is
//! an error, not ours to delete.

use std::io;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoKind, LinkAttribute, LinkInfo, LinkMessage,
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth};

/// Large enough for any super frame a guest sends; the kernel's maximum for veth is a little more.
const MTU: u32 = 65_521;

/// The pair: `a` faces the guests, `b` the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// Name of the end that steered frames enter and answers leave.
    pub a: Device,
    /// Name of the end the socket is bound to.
    pub b: Device,
}

/// One end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface name.
    pub name: String,
    /// Kernel index.
    pub index: u32,
}

/// Why the pair cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The kernel refused.
    #[error("cannot {action} {name}: {source}")]
    Kernel {
        /// What was tried.
        action: &'static str,
        /// On which interface.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody else's interface has our name.
    #[error(
        "{name} exists and is not one end of our veth pair; remove it (ip link del {name}) or choose another datapath.device_prefix"
    )]
    Foreign {
        /// The interface.
        name: String,
    },
}

impl Devices {
    /// The pair `<prefix>a`, `<prefix>b`: found, or made and left down.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub async fn ensure(prefix: &str) -> Result<Self, DeviceError> {
        let (a, b) = (format!("{prefix}a"), format!("{prefix}b"));
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|source| kernel("reach netlink for", &a, source))?;
        let worker = tokio::spawn(connection);
        let devices = Self::ensure_with(&handle, a, b).await;
        worker.abort();
        devices
    }

    async fn ensure_with(handle: &Handle, a: String, b: String) -> Result<Self, DeviceError> {
        let found = match (find(handle, &a).await?, find(handle, &b).await?) {
            (Some(end_a), Some(end_b)) if end_a.is_veth_to(&end_b) && end_b.is_veth_to(&end_a) => Some((end_a, end_b)),
            (None, None) => None,
            // One end alone under our name is what a rename or a move left of our pair; the other end goes with it.
            (Some(end), None) | (None, Some(end)) if end.veth => {
                let gone = handle.link().del(end.index).execute().await;
                gone.map_err(|error| kernel("remove what is left of", &a, io::Error::other(error)))?;
                None
            }
            (Some(_), _) => return Err(DeviceError::Foreign { name: a }),
            (_, Some(_)) => return Err(DeviceError::Foreign { name: b }),
        };
        let (end_a, end_b) = match found {
            Some(ends) => ends,
            None => make(handle, &a, &b).await?,
        };
        for (name, end) in [(&a, &end_a), (&b, &end_b)] {
            quieten(handle, name, end.index).await?;
        }
        pve_imds_bpf::disable_tx_checksum(&a).map_err(|source| kernel("switch off checksum offload of", &a, source))?;
        let device = |name, end: End| Device { name, index: end.index };
        Ok(Self { a: device(a, end_a), b: device(b, end_b) })
    }

    /// Whether an interface is one of ours.
    #[must_use]
    pub fn include(&self, index: u32) -> bool {
        [self.a.index, self.b.index].contains(&index)
    }

    /// Sets both ends up. Call it when all programs are attached.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub async fn raise(&self) -> Result<(), DeviceError> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|source| kernel("reach netlink for", &self.a.name, source))?;
        let worker = tokio::spawn(connection);
        for device in [&self.b, &self.a] {
            let up = LinkUnspec::new_with_index(device.index).up().build();
            set(&handle, "set up", &device.name, up).await?;
        }
        worker.abort();
        Ok(())
    }
}

/// One end as the kernel describes it.
struct End {
    index: u32,
    peer: Option<u32>,
    veth: bool,
}

impl End {
    fn is_veth_to(&self, other: &Self) -> bool {
        self.veth && self.peer == Some(other.index)
    }
}

fn kernel(action: &'static str, name: &str, source: impl Into<io::Error>) -> DeviceError {
    DeviceError::Kernel { action, name: name.to_owned(), source: source.into() }
}

async fn find(handle: &Handle, name: &str) -> Result<Option<End>, DeviceError> {
    let links = handle.link().get().match_name(name.to_owned()).execute().try_collect::<Vec<_>>().await;
    match links {
        Ok(links) => Ok(links.first().map(describe)),
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -NO_SUCH_DEVICE => Ok(None),
        Err(error) => Err(kernel("look up", name, io::Error::other(error))),
    }
}

/// ENODEV, as netlink reports an unknown name.
const NO_SUCH_DEVICE: i32 = 19;

fn describe(link: &LinkMessage) -> End {
    let mut end = End { index: link.header.index, peer: None, veth: false };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Link(peer) => end.peer = Some(*peer),
            LinkAttribute::LinkInfo(infos) => end.veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
            _ => {}
        }
    }
    end
}

async fn make(handle: &Handle, a: &str, b: &str) -> Result<(End, End), DeviceError> {
    let pair = LinkVeth::new(a, b).build();
    handle.link().add(pair).execute().await.map_err(|error| kernel("make", a, io::Error::other(error)))?;
    match (find(handle, a).await?, find(handle, b).await?) {
        (Some(end_a), Some(end_b)) => Ok((end_a, end_b)),
        _ => Err(kernel("find", a, io::Error::from(io::ErrorKind::NotFound))),
    }
}

/// Nothing but our frames: no ARP, no IPv6 address or solicitation of its own, whatever the system's defaults are.
async fn quieten(handle: &Handle, name: &str, index: u32) -> Result<(), DeviceError> {
    let no_addresses = vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)])];
    let quiet = LinkMessageBuilder::<LinkUnspec>::default()
        .index(index)
        .arp(false)
        .mtu(MTU)
        .append_extra_attribute(LinkAttribute::AfSpecUnspec(no_addresses))
        .build();
    set(handle, "configure", name, quiet).await?;
    let switch = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    match std::fs::write(switch, "1") {
        // Without IPv6 in the kernel there is nothing to switch off.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| kernel("switch off IPv6 of", name, source)),
    }
}

async fn set(handle: &Handle, action: &'static str, name: &str, message: LinkMessage) -> Result<(), DeviceError> {
    handle.link().set(message).execute().await.map_err(|error| kernel(action, name, io::Error::other(error)))
}
