//! A network as somebody plans it, whatever version he wrote it in: links by their names, what each is to have.
//!
//! In come the readers' findings; out go types in which an address is an address and a netmask has no holes. Which NICs
//! there are is not known here, so a link may be anybody's. Refused: more than a machine can use. Each list has a bound,
//! and what is beyond it is not taken, so that a plan of all of them is a document of less than 1 MiB.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::vm::Weight;

/// Most links: each of a VM's 32 NICs and a VLAN on it.
pub(super) const MAX_LINKS: usize = 64;
/// Most fixed addresses and the like on one link.
pub(super) const MAX_WAYS: usize = 32;
/// Most routes of one link.
pub(super) const MAX_ROUTES: usize = 64;
/// Most name servers, and most search domains, of one link. Resolvers ask three (`MAXNS`, resolv.conf(5)).
pub(super) const MAX_NAMES: usize = 8;

/// The whole of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(super) links: Vec<Link>,
    /// For links that have none of their own.
    pub(super) names: Names,
}

impl Plan {
    /// What a document of it weighs. Names that are for all links are said again with each.
    pub(crate) fn weight(&self) -> Weight {
        let names = |names: &Names| names.servers.len() + names.search.len();
        let cards = |kind: &Kind| if let Kind::Bond { of, options, .. } = kind { of.len() + options.len() } else { 0 };
        let link = |link: &Link| {
            1 + link.ways.len() + link.routes.len() + names(&link.names) + names(&self.names) + cards(&link.kind)
        };
        let texts = |names: &Names| names.search.iter().map(String::len).sum::<usize>();
        let search: usize = self.links.iter().map(|link| texts(&link.names) + texts(&self.names)).sum();
        Weight::new(search).and(Weight::items(self.links.iter().map(link).sum()))
    }
}

/// A card, or what is made of cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// What the plan calls it.
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Of a card, the one that it is found by; of another link, the one that it is to have.
    pub(super) mac: Option<Mac>,
    pub(super) mtu: Option<u16>,
    pub(super) ways: Vec<Way>,
    pub(super) routes: Vec<Route>,
    pub(super) names: Names,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Card,
    /// IEEE 802.1Q on the link of that name.
    Vlan {
        on: String,
        tag: u16,
    },
    /// Of the cards of these names.
    Bond {
        of: Vec<String>,
        mode: &'static str,
        /// By the names that Nova's `bond_…` have.
        options: Vec<(&'static str, String)>,
    },
}

/// How a link comes to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Fixed(Cidr),
    Dhcp4,
    /// DHCPv6, as router advertisements say.
    Dhcp6,
    /// Router advertisements.
    Slaac,
    /// DHCPv6 for what is not an address.
    Stateless,
    /// DHCPv6 for addresses too.
    Stateful,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Without the bits behind its prefix.
    pub(super) to: Cidr,
    /// Of the same family. The unspecified address is the link itself.
    pub(super) via: IpAddr,
    pub(super) metric: Option<u32>,
}

/// Who is asked for names, and where short ones are looked for: the first choice first, nobody twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) servers: Vec<IpAddr>,
    pub(super) search: Vec<String>,
}

impl Link {
    pub(super) fn new(name: &str, kind: Kind) -> Self {
        let (mac, mtu, ways, routes, names) = (None, None, Vec::new(), Vec::new(), Names::default());
        Self { name: name.to_owned(), kind, mac, mtu, ways, routes, names }
    }

    pub(super) fn go(&mut self, way: Way) {
        add(&mut self.ways, way, MAX_WAYS);
    }

    pub(super) fn route(&mut self, route: Route) {
        add(&mut self.routes, route, MAX_ROUTES);
    }
}

impl Names {
    pub(super) fn ask(&mut self, server: IpAddr) {
        add(&mut self.servers, server, MAX_NAMES);
    }

    pub(super) fn look_in(&mut self, domain: String) {
        add(&mut self.search, domain, MAX_NAMES);
    }
}

/// Adds what is not there yet and has room.
pub(super) fn add<T: PartialEq>(list: &mut Vec<T>, item: T, most: usize) {
    if list.len() < most && !list.contains(&item) {
        list.push(item);
    }
}

impl Way {
    pub(super) fn family(self) -> Family {
        match self {
            Self::Fixed(cidr) => Family::of(cidr.address),
            Self::Dhcp4 => Family::V4,
            Self::Dhcp6 | Self::Slaac | Self::Stateless | Self::Stateful => Family::V6,
        }
    }

    /// Whether an address that comes this way has `neighbour` in its prefix, as far as anybody knows now.
    pub(super) fn reaches(self, neighbour: IpAddr) -> bool {
        matches!(self, Self::Fixed(cidr) if cidr.contains(neighbour))
    }
}

impl Route {
    /// A way out through `via`.
    pub(super) fn default(via: IpAddr) -> Self {
        Self { to: Family::of(via).everywhere(), via, metric: None }
    }

    /// None when the families differ.
    pub(super) fn new(to: Cidr, via: IpAddr, metric: Option<u32>) -> Option<Self> {
        (Family::of(to.address) == Family::of(via)).then(|| Self { to: to.network(), via, metric })
    }

    /// To `via` itself, which no prefix leads to. Written so because every client knows a next hop that is nobody, and
    /// few know `on-link`.
    pub(super) fn neighbour(via: IpAddr) -> Self {
        let family = Family::of(via);
        Self { to: Cidr { address: via, length: family.bits() }, via: family.nobody(), metric: None }
    }

    pub(super) fn is_default(&self) -> bool {
        self.to.length == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    pub(super) fn nobody(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    pub(super) fn everywhere(self) -> Cidr {
        Cidr { address: self.nobody(), length: 0 }
    }
}

/// An address and how much of it is its network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    pub(super) address: IpAddr,
    /// At most the address's bits.
    length: u8,
}

impl Cidr {
    /// Reads `192.0.2.5/24`, `192.0.2.5/255.255.255.0` or, with a netmask or a length beside it, `192.0.2.5`. With neither
    /// it is a network of the usual size, as cloud-init has it.
    pub(super) fn parse(text: &str, beside: Option<&str>) -> Option<Self> {
        let (address, behind) = match text.split_once('/') {
            Some((address, behind)) => (address, Some(behind)),
            None => (text, None),
        };
        let address = address.trim().parse().ok()?;
        let length = match behind.or(beside) {
            Some(mask) => length(mask.trim(), Family::of(address))?,
            None if address.is_ipv4() => 24,
            None => 64,
        };
        Some(Self { address, length })
    }

    /// The network it is in.
    pub(super) fn network(self) -> Self {
        let address = match (self.address, self.mask()) {
            (IpAddr::V4(address), IpAddr::V4(mask)) => (address & mask).into(),
            (IpAddr::V6(address), IpAddr::V6(mask)) => (address & mask).into(),
            (address, _) => address,
        };
        Self { address, ..self }
    }

    /// The length as a netmask.
    pub(super) fn mask(self) -> IpAddr {
        let length = u32::from(self.length);
        match Family::of(self.address) {
            Family::V4 => Ipv4Addr::from_bits(!u32::MAX.checked_shr(length).unwrap_or(0)).into(),
            Family::V6 => Ipv6Addr::from_bits(!u128::MAX.checked_shr(length).unwrap_or(0)).into(),
        }
    }

    fn contains(self, address: IpAddr) -> bool {
        Family::of(self.address) == Family::of(address) && Self { address, ..self }.network() == self.network()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// `24`, or a netmask without holes.
fn length(mask: &str, family: Family) -> Option<u8> {
    let (ones, bits) = match mask.parse() {
        Ok(IpAddr::V4(mask)) if family == Family::V4 => (mask.to_bits().leading_ones(), mask.to_bits().count_ones()),
        Ok(IpAddr::V6(mask)) if family == Family::V6 => (mask.to_bits().leading_ones(), mask.to_bits().count_ones()),
        Ok(_) => return None,
        Err(_) => return mask.parse().ok().filter(|length| *length <= family.bits()),
    };
    if ones == bits { ones.try_into().ok() } else { None }
}

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mac(pub(super) [u8; 6]);

impl Mac {
    /// Reads six hexadecimal pairs, in either letter case, with colons or hyphens between.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut mac = [0; 6];
        let mut pairs = text.trim().split([':', '-']);
        for byte in &mut mac {
            let pair = pairs.next().filter(|pair| pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit()))?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        pairs.next().is_none().then_some(Self(mac))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_has_a_prefix_without_holes() {
        for (text, beside, expected) in [
            ("192.0.2.5/24", None, Some(("192.0.2.5/24", "192.0.2.0/24", "255.255.255.0"))),
            ("192.0.2.5/255.255.255.128", None, Some(("192.0.2.5/25", "192.0.2.0/25", "255.255.255.128"))),
            ("192.0.2.5", Some("255.255.0.0"), Some(("192.0.2.5/16", "192.0.0.0/16", "255.255.0.0"))),
            ("192.0.2.5/32", Some("24"), Some(("192.0.2.5/32", "192.0.2.5/32", "255.255.255.255"))),
            ("192.0.2.5", None, Some(("192.0.2.5/24", "192.0.2.0/24", "255.255.255.0"))),
            ("192.0.2.5/0", None, Some(("192.0.2.5/0", "0.0.0.0/0", "0.0.0.0"))),
            ("2001:DB8::5/64", None, Some(("2001:db8::5/64", "2001:db8::/64", "ffff:ffff:ffff:ffff::"))),
            ("2001:db8::5", Some("ffff:ffff::"), Some(("2001:db8::5/32", "2001:db8::/32", "ffff:ffff::"))),
            ("2001:db8::5", None, Some(("2001:db8::5/64", "2001:db8::/64", "ffff:ffff:ffff:ffff::"))),
            ("::5/0", None, Some(("::5/0", "::/0", "::"))),
            ("192.0.2.5/33", None, None),
            ("192.0.2.5/255.0.255.0", None, None),
            ("192.0.2.5/ffff::", None, None),
            ("2001:db8::5/255.0.0.0", None, None),
            ("2001:db8::5/129", None, None),
            ("192.0.2.5/-1", None, None),
            ("192.0.2/24", None, None),
            ("", None, None),
        ] {
            let got = Cidr::parse(text, beside);
            let got = got.map(|cidr| (cidr.to_string(), cidr.network().to_string(), cidr.mask().to_string()));
            let got = got.as_ref().map(|(cidr, network, mask)| (cidr.as_str(), network.as_str(), mask.as_str()));
            assert_eq!(got, expected, "{text} {beside:?}");
        }
    }

    #[test]
    fn a_hardware_address_is_six_pairs() {
        for (text, expected) in [
            ("BC:24:11:00:00:0A", Some("bc:24:11:00:00:0a")),
            ("bc-24-11-00-00-0a", Some("bc:24:11:00:00:0a")),
            (" bc:24:11:00:00:0a ", Some("bc:24:11:00:00:0a")),
            ("bc:24:11:00:00", None),
            ("bc:24:11:00:00:0a:0b", None),
            ("bc:24:11:00:00:+a", None),
            ("bc:24:11:00:00:a", None),
            ("", None),
        ] {
            assert_eq!(Mac::parse(text).map(|mac| mac.to_string()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn lists_have_an_end_and_nobody_twice() {
        let mut names = Names::default();
        for last in (0..20).chain(0..20) {
            names.ask(Ipv4Addr::new(192, 0, 2, last).into());
        }
        assert_eq!(names.servers.len(), MAX_NAMES);
        assert_eq!(names.servers.first(), Some(&"192.0.2.0".parse().unwrap()));
    }
}
