//! Our own two devices: the private veth pair between the guests' interfaces and the AF_XDP socket.
//!
//! In comes the prefix of their names; out come their indexes. They carry nothing but tagged frames: no addresses, no
//! ARP, no IPv6 of their own, and they are up only after their programs are attached ([`Devices::raise`]). A pair that
//! an earlier run left is used again, so that its programs keep dropping meanwhile; anything else under these names is
//! an error, not ours to delete.
//!
//! Others can change them as they can everything on the node. [`Devices::tend`] puts right what can be put right and
//! says of the rest that the pair is lost ([`ends::judge`] has the table); a lost pair is left ([`Devices::discard`])
//! and another one made.

mod ends;

use std::io;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkMessage};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth};

use crate::links::is_there;
use ends::End;
pub use ends::{Change, Loss};

/// The alias of both ends: a name alone can be anybody's.
const MARK: &str = "pve-imds";

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

/// How the pair was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pair {
    /// As it must be.
    Well,
    /// With these things wrong, all of which can be put right.
    Changed(Vec<(Device, Change)>),
    /// Not to be used any more.
    Lost(Loss),
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

/// Putting one thing right can bring another one back (an MTU that is raised again brings IPv6 with it), so the pair is
/// looked at until nothing is wrong, but not for ever: somebody may be changing it all the time.
const LOOKS: usize = 4;

impl Devices {
    /// The pair `<prefix>a`, `<prefix>b`: found, or made and left down.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub async fn ensure(prefix: &str) -> Result<Self, DeviceError> {
        let netlink = Netlink::open(prefix)?;
        Self::ensure_with(&netlink.handle, format!("{prefix}a"), format!("{prefix}b")).await
    }

    async fn ensure_with(handle: &Handle, a: String, b: String) -> Result<Self, DeviceError> {
        let found = match (by_name(handle, &a).await?, by_name(handle, &b).await?) {
            (Some(end_a), Some(end_b)) if end_a.is_veth_to(&end_b) && end_b.is_veth_to(&end_a) => Some((end_a, end_b)),
            (None, None) => None,
            // One end alone under our name and with our mark is what a rename or a move left of our pair; the other end
            // goes with it.
            (Some(end), None) | (None, Some(end)) if end.veth && end.marked => {
                remove(handle, &end).await?;
                None
            }
            (Some(_), _) => return Err(DeviceError::Foreign { name: a }),
            (_, Some(_)) => return Err(DeviceError::Foreign { name: b }),
        };
        let (end_a, end_b) = match found {
            Some(ends) => ends,
            None => make(handle, &a, &b).await?,
        };
        let devices = Self { a: end_a.device(), b: end_b.device() };
        for end in [&devices.a, &devices.b] {
            quieten(handle, end).await?;
        }
        sum_in_software(&devices.a)?;
        Ok(devices)
    }

    /// Whether an interface is one of ours.
    #[must_use]
    pub fn include(&self, index: u32) -> bool {
        self.indexes().contains(&index)
    }

    /// Their indexes.
    #[must_use]
    pub fn indexes(&self) -> [u32; 2] {
        [self.a.index, self.b.index]
    }

    /// Sets both ends up. Call it when all programs are attached.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub async fn raise(&self) -> Result<(), DeviceError> {
        let netlink = Netlink::open(&self.a.name)?;
        for device in [&self.b, &self.a] {
            set_up(&netlink.handle, device).await?;
        }
        Ok(())
    }

    /// Looks at a pair that was raised, and puts right what somebody has changed: returns what that was.
    ///
    /// # Errors
    /// The kernel refused to tell or to change something.
    pub async fn tend(&self) -> Result<Pair, DeviceError> {
        let netlink = Netlink::open(&self.a.name)?;
        let mut found = Vec::new();
        for _ in 0..LOOKS {
            let wrong = match self.look_with(&netlink.handle).await? {
                Pair::Well => break,
                Pair::Changed(wrong) => wrong,
                Pair::Lost(loss) => return Ok(Pair::Lost(loss)),
            };
            for device in [&self.a, &self.b] {
                let here = wrong.iter().filter(|(other, _)| other == device);
                let changes: Vec<Change> = here.map(|(_, change)| *change).collect();
                if !changes.is_empty() {
                    mend(&netlink.handle, device, &changes).await?;
                }
            }
            found.extend(wrong);
        }
        Ok(if found.is_empty() { Pair::Well } else { Pair::Changed(found) })
    }

    /// Looks at a pair that was raised, and changes nothing.
    ///
    /// # Errors
    /// The kernel refused to tell.
    pub async fn look(&self) -> Result<Pair, DeviceError> {
        let netlink = Netlink::open(&self.a.name)?;
        self.look_with(&netlink.handle).await
    }

    /// Whether, at a glance, nothing is wrong: names and indexes, and the IPv6 switch, of which no event tells. Takes none
    /// of the kernel's locks that others hold for long, as everything else here does.
    #[must_use]
    pub fn look_well(&self) -> bool {
        [&self.a, &self.b].iter().all(|device| is_there(&device.name, device.index) && !has_ipv6(&device.name))
    }

    async fn look_with(&self, handle: &Handle) -> Result<Pair, DeviceError> {
        let (Some(end_a), Some(end_b)) = (by_index(handle, &self.a).await?, by_index(handle, &self.b).await?) else {
            return Ok(Pair::Lost(Loss::Gone));
        };
        let addresses = addresses(handle, &self.indexes(), &self.a.name).await?;
        let mut wrong = Vec::new();
        for (device, peer, mut end) in [(&self.a, &self.b, end_a), (&self.b, &self.a, end_b)] {
            end.addresses |= addresses.iter().any(|address| address.header.index == device.index);
            end.ipv6 = has_ipv6(&end.name);
            // Of the two only `a` has frames of the kernel's to sum.
            end.offload = device == &self.a && pve_imds_bpf::tx_checksum(&end.name).unwrap_or(false);
            match ends::judge(device, peer.index, &end) {
                Ok(changes) => wrong.extend(changes.into_iter().map(|change| (device.clone(), change))),
                Err(loss) => return Ok(Pair::Lost(loss)),
            }
        }
        Ok(if wrong.is_empty() { Pair::Well } else { Pair::Changed(wrong) })
    }

    /// Takes away what is left of a lost pair, wherever its names have gone. An end in another namespace goes with the
    /// one that is here.
    ///
    /// # Errors
    /// The kernel refused. That nothing is left is none.
    pub async fn discard(&self) -> Result<(), DeviceError> {
        let netlink = Netlink::open(&self.a.name)?;
        for (device, peer) in [(&self.a, &self.b), (&self.b, &self.a)] {
            // An index can be somebody else's by now; only with its peer is it our pair.
            let left = by_index(&netlink.handle, device).await?;
            if let Some(end) = left.filter(|end| end.veth && end.peer == Some(peer.index)) {
                remove(&netlink.handle, &end).await?;
            }
        }
        Ok(())
    }
}

/// A netlink connection that ends with its owner.
struct Netlink {
    handle: Handle,
    connection: tokio::task::JoinHandle<()>,
}

impl Netlink {
    fn open(name: &str) -> Result<Self, DeviceError> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|source| kernel("reach netlink for", name, source))?;
        Ok(Self { handle, connection: tokio::spawn(connection) })
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn kernel(action: &'static str, name: &str, source: impl Into<io::Error>) -> DeviceError {
    DeviceError::Kernel { action, name: name.to_owned(), source: source.into() }
}

async fn by_name(handle: &Handle, name: &str) -> Result<Option<End>, DeviceError> {
    find(handle.link().get().match_name(name.to_owned()), name).await
}

async fn by_index(handle: &Handle, device: &Device) -> Result<Option<End>, DeviceError> {
    find(handle.link().get().match_index(device.index), &device.name).await
}

async fn find(request: rtnetlink::LinkGetRequest, name: &str) -> Result<Option<End>, DeviceError> {
    match request.execute().try_collect::<Vec<_>>().await {
        Ok(links) => Ok(links.first().map(End::read)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(kernel("look up", name, io::Error::other(error))),
    }
}

/// ENODEV, as netlink reports an unknown name or index.
const NO_SUCH_DEVICE: i32 = 19;

/// EADDRNOTAVAIL: there is no such address on this device.
const NO_SUCH_ADDRESS: i32 = 99;

/// EAFNOSUPPORT: there is no such family on this device.
const NO_SUCH_FAMILY: i32 = 97;

fn is_gone(error: &rtnetlink::Error) -> bool {
    has_code(error, NO_SUCH_DEVICE)
}

fn has_code(error: &rtnetlink::Error, code: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(error) if error.raw_code() == -code)
}

async fn make(handle: &Handle, a: &str, b: &str) -> Result<(End, End), DeviceError> {
    let pair = LinkVeth::new(a, b).build();
    handle.link().add(pair).execute().await.map_err(|error| kernel("make", a, io::Error::other(error)))?;
    match (by_name(handle, a).await?, by_name(handle, b).await?) {
        (Some(end_a), Some(end_b)) => Ok((end_a, end_b)),
        _ => Err(kernel("find", a, io::Error::from(io::ErrorKind::NotFound))),
    }
}

async fn remove(handle: &Handle, end: &End) -> Result<(), DeviceError> {
    match handle.link().del(end.index).execute().await {
        Err(error) if !is_gone(&error) => Err(kernel("remove what is left of", &end.name, io::Error::other(error))),
        _ => Ok(()),
    }
}

/// Nothing but our frames: no address, no ARP, no IPv6 address or solicitation of its own, whatever the system's defaults
/// are, and no bridge, which would let guests reach it past `steer`.
async fn quieten(handle: &Handle, device: &Device) -> Result<(), DeviceError> {
    let mark = LinkAttribute::IfAlias(MARK.to_owned());
    let quiet = LinkUnspec::new_with_index(device.index).arp(false).mtu(MTU).nocontroller();
    let quiet = quiet.append_extra_attribute(mark).build();
    set(handle, "configure", &device.name, quiet).await?;
    flush(handle, device).await?;
    // A message of its own, and after the MTU: a device with too small a one has no IPv6 that could be set.
    let no_addresses = vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)])];
    let quiet = LinkMessageBuilder::<LinkUnspec>::default()
        .index(device.index)
        .append_extra_attribute(LinkAttribute::AfSpecUnspec(no_addresses))
        .build();
    match handle.link().set(quiet).execute().await {
        // Without IPv6 in the kernel there is nothing to switch off.
        Err(error) if has_code(&error, NO_SUCH_FAMILY) => return Ok(()),
        other => other.map_err(|error| kernel("switch off addresses of", &device.name, io::Error::other(error)))?,
    }
    match std::fs::write(ipv6_switch(&device.name), "1") {
        // `/proc/sys` may be without IPv6 although the kernel has it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| kernel("switch off IPv6 of", &device.name, source)),
    }
}

/// The addresses of these interfaces, of whatever family. With one the node would send into our pair what it has for that
/// address's neighbours.
async fn addresses(handle: &Handle, indexes: &[u32], name: &str) -> Result<Vec<AddressMessage>, DeviceError> {
    let all = handle.address().get().execute();
    let ours = all.try_filter(|address| std::future::ready(indexes.contains(&address.header.index)));
    ours.try_collect().await.map_err(|error| kernel("list addresses of", name, io::Error::other(error)))
}

async fn flush(handle: &Handle, device: &Device) -> Result<(), DeviceError> {
    for address in addresses(handle, &[device.index], &device.name).await? {
        match handle.address().del(address).execute().await {
            // A first address of a network takes the others along.
            Err(error) if has_code(&error, NO_SUCH_ADDRESS) || is_gone(&error) => {}
            other => other.map_err(|error| kernel("take an address off", &device.name, io::Error::other(error)))?,
        }
    }
    Ok(())
}

async fn mend(handle: &Handle, device: &Device, changes: &[Change]) -> Result<(), DeviceError> {
    quieten(handle, device).await?;
    if changes.contains(&Change::Offload) {
        sum_in_software(device)?;
    }
    if changes.contains(&Change::Down) {
        set_up(handle, device).await?;
    }
    Ok(())
}

fn sum_in_software(device: &Device) -> Result<(), DeviceError> {
    let failed = |source| kernel("switch off checksum offload of", &device.name, source);
    pve_imds_bpf::disable_tx_checksum(&device.name).map_err(failed)
}

async fn set_up(handle: &Handle, device: &Device) -> Result<(), DeviceError> {
    set(handle, "set up", &device.name, LinkUnspec::new_with_index(device.index).up().build()).await
}

fn ipv6_switch(name: &str) -> String {
    format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
}

fn has_ipv6(name: &str) -> bool {
    std::fs::read_to_string(ipv6_switch(name)).is_ok_and(|switch| switch.trim() == "0")
}

async fn set(handle: &Handle, action: &'static str, name: &str, message: LinkMessage) -> Result<(), DeviceError> {
    handle.link().set(message).execute().await.map_err(|error| kernel(action, name, io::Error::other(error)))
}
