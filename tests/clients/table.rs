//! Which clients there are, in which dialects each is tried, and what it comes by there. Knowledge only.
//!
//! README's table of clients is this one, word for word (`tests/house`); `make clients` prints what became of each cell.
#![allow(dead_code, unreachable_pub, reason = "each tier uses its part")]

/// How the daemon is spoken to: a dialect of metadata, or the token that tells others who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    NoCloud,
    OpenStack,
    Ec2,
    Identity,
}

impl Dialect {
    pub const ALL: [Self; 4] = [Self::NoCloud, Self::OpenStack, Self::Ec2, Self::Identity];

    pub const fn word(self) -> &'static str {
        match self {
            Self::NoCloud => "NoCloud",
            Self::OpenStack => "OpenStack",
            Self::Ec2 => "EC2",
            Self::Identity => "identity",
        }
    }
}

/// What a machine has to know of itself, and what others can hold it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    Hostname,
    Keys,
    UserData,
    Network,
    Pool,
    Tag,
    Uuid,
    Issuer,
    Audience,
}

impl Fact {
    pub const ALL: [Self; 9] = [
        Self::Hostname,
        Self::Keys,
        Self::UserData,
        Self::Network,
        Self::Pool,
        Self::Tag,
        Self::Uuid,
        Self::Issuer,
        Self::Audience,
    ];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Hostname => "hostname",
            Self::Keys => "keys",
            Self::UserData => "user data",
            Self::Network => "network",
            Self::Pool => "pool",
            Self::Tag => "tag",
            Self::Uuid => "UUID",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
        }
    }
}

/// A program that asks for metadata or takes a token, as its makers ship it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    CloudInit12,
    CloudInit13,
    CloudInitSid,
    Ignition,
    Afterburn,
    CloudbaseInit,
    Botocore,
    RustSdk,
    Ec2Metadata,
    Ec2MetadataScript,
    Facter,
    Ohai,
    SystemdImds,
    Ipxe,
    OpenBao,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub program: Program,
    /// Its name.
    pub name: &'static str,
    /// Where it comes from.
    pub from: &'static str,
    /// Whether `make test` has its cells too.
    pub quick: bool,
    /// The dialects it speaks, each with all that it reads there.
    pub cells: &'static [(Dialect, &'static [Fact])],
}

use Dialect::{Ec2, Identity, NoCloud, OpenStack};
use Fact::{Audience, Hostname, Issuer, Keys, Network, Pool, Tag, UserData, Uuid};

/// All of a machine's metadata.
const ALL: &[Fact] = &[Hostname, Keys, UserData, Network];

/// cloud-init reads a network over NoCloud's HTTP since 24.3.
const OLD_NOCLOUD: &[Fact] = &[Hostname, Keys, UserData];

pub const CLIENTS: &[Client] = &[
    Client {
        program: Program::CloudInit12,
        name: "cloud-init, Debian 12",
        from: "Debian 12 (22.4)",
        quick: true,
        cells: &[(NoCloud, OLD_NOCLOUD), (OpenStack, ALL), (Ec2, ALL)],
    },
    Client {
        program: Program::CloudInit13,
        name: "cloud-init, Debian 13",
        from: "Debian 13 (25.1)",
        quick: true,
        cells: &[(NoCloud, ALL), (OpenStack, ALL), (Ec2, ALL)],
    },
    Client {
        program: Program::CloudInitSid,
        name: "cloud-init, Debian sid",
        from: "Debian sid (26.2 when this was written)",
        quick: false,
        cells: &[(NoCloud, ALL), (OpenStack, ALL), (Ec2, ALL)],
    },
    Client {
        program: Program::Ignition,
        name: "Ignition",
        from: "Debian 12",
        quick: true,
        cells: &[(OpenStack, &[UserData]), (Ec2, &[UserData])],
    },
    Client {
        program: Program::Afterburn,
        name: "afterburn",
        from: "crates.io",
        quick: false,
        cells: &[(OpenStack, &[Hostname, Keys, Network]), (Ec2, &[Hostname, Keys, Network])],
    },
    Client {
        program: Program::CloudbaseInit,
        name: "cloudbase-init's services",
        from: "PyPI",
        quick: false,
        cells: &[(OpenStack, ALL), (Ec2, &[Hostname, Keys, UserData])],
    },
    Client { program: Program::Botocore, name: "botocore", from: "Debian 13", quick: false, cells: &[(Ec2, ALL)] },
    Client {
        program: Program::RustSdk,
        name: "AWS SDK for Rust",
        from: "crates.io (`aws-config`)",
        quick: false,
        cells: &[(Ec2, ALL)],
    },
    Client {
        program: Program::Ec2Metadata,
        name: "ec2metadata",
        from: "Debian 12 (`cloud-guest-utils`)",
        quick: true,
        cells: &[(Ec2, ALL)],
    },
    Client {
        program: Program::Ec2MetadataScript,
        name: "ec2-metadata",
        from: "Debian 12 (`amazon-ec2-utils`)",
        quick: true,
        cells: &[(Ec2, ALL)],
    },
    Client { program: Program::Facter, name: "facter", from: "Debian 13", quick: false, cells: &[(Ec2, ALL)] },
    Client {
        program: Program::Ohai,
        name: "ohai",
        from: "Debian 13",
        quick: false,
        // Its OpenStack plugin reads EC2's tree, which OpenStack serves too, but for user data.
        cells: &[(OpenStack, &[Hostname, Keys, Network]), (Ec2, ALL)],
    },
    Client {
        program: Program::SystemdImds,
        name: "systemd-imds",
        from: "Debian sid",
        quick: false,
        cells: &[(Ec2, ALL)],
    },
    Client {
        program: Program::Ipxe,
        name: "iPXE",
        from: "this machine's Debian (`ipxe`)",
        quick: true,
        cells: &[(NoCloud, &[UserData]), (OpenStack, &[UserData]), (Ec2, &[UserData])],
    },
    Client {
        program: Program::OpenBao,
        name: "OpenBao's JWT login",
        from: "Go's packages (`github.com/openbao/openbao`)",
        quick: false,
        cells: &[(Identity, &[Pool, Tag, Uuid, Issuer, Audience])],
    },
];
