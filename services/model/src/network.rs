//! The network configuration a guest is given (cloud-init's network-config, version 1 or 2).
//!
//! In comes what the Notes hold and which NICs the VM has; out goes always a document: the block as written when it
//! checks, else DHCPv4 on every NIC. Refused as a block: what is not YAML with version 1 or 2. Nothing more is looked
//! into, because it is the guest's to read.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::notes::BlockError;
use crate::vm::{Nic, Vm};
use crate::yaml::{self, YamlError};

/// Why a text is no network configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNetwork {
    /// Not YAML, or not a mapping.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// No `version`, neither at the top nor under `network`.
    #[error("no version; say `version: 2` at the top or below `network:`")]
    NoVersion,
    /// A `version` that is neither the number 1 nor the number 2.
    #[error("the version is neither 1 nor 2")]
    OtherVersion,
}

/// A text that was checked, byte for byte as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkText(Vec<u8>);

impl NetworkText {
    /// Keeps `text` if it [`check`]s.
    ///
    /// # Errors
    /// Why it does not.
    pub fn new(text: Vec<u8>) -> Result<Self, BadNetwork> {
        check(&text).map(|()| Self(text))
    }

    /// The text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Where a network configuration came from: for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The block in the Notes.
    Notes,
    /// There is no block.
    Dhcp,
    /// There is a block, and this is why it is not used.
    DhcpInstead(BlockError),
}

/// Whether `text` is YAML with `version: 1` or `2`, with or without a top-level `network:`.
///
/// # Errors
/// Why it is not.
pub fn check(text: &[u8]) -> Result<(), BadNetwork> {
    #[derive(Deserialize)]
    struct Document {
        // Where this key stands, clients look nowhere else, whatever its value.
        #[serde(default, deserialize_with = "present")]
        network: Option<Body>,
        #[serde(default)]
        version: Option<Value>,
    }
    #[derive(Deserialize)]
    struct Body {
        #[serde(default)]
        version: Option<Value>,
    }
    fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Body>, D::Error> {
        Body::deserialize(deserializer).map(Some)
    }

    let document: Document = yaml::read(text)?;
    let version = document.network.map_or(document.version, |network| network.version);
    match version.ok_or(BadNetwork::NoVersion)?.as_u64() {
        Some(1 | 2) => Ok(()),
        _ => Err(BadNetwork::OtherVersion),
    }
}

/// DHCPv4 on every NIC, matched by MAC (version 2). A NIC without a MAC in the configuration draws one at each start
/// and cannot be matched: it is left out. No interface is renamed.
#[must_use]
pub fn dhcp_default(nets: &[Nic]) -> String {
    let ethernets: Map<String, Value> = nets
        .iter()
        .filter_map(|nic| {
            let mac = nic.mac.as_ref()?.to_ascii_lowercase();
            Some((format!("net{}", nic.index), json!({"match": {"macaddress": mac}, "dhcp4": true})))
        })
        .collect();
    // Values built here are JSON already, so writing them cannot fail.
    yaml::write(&json!({"version": 2, "ethernets": ethernets})).unwrap_or_default()
}

/// What the guest is given, and why.
#[must_use]
pub fn network_config(vm: &Vm) -> (Cow<'_, [u8]>, Source) {
    let source = match &vm.notes.network_config {
        Some(Ok(text)) => return (Cow::Borrowed(text.as_bytes()), Source::Notes),
        Some(Err(error)) => Source::DhcpInstead(error.clone()),
        None => Source::Dhcp,
    };
    (Cow::Owned(dhcp_default(&vm.nets).into_bytes()), source)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conf;
    use crate::vm::VmId;
    use crate::yaml::Kind;

    fn vm(conf: &str) -> Vm {
        conf::parse(VmId::new(100).unwrap(), conf.as_bytes()).vm
    }

    #[test]
    fn a_block_is_yaml_with_a_version() {
        let shape = |line, column| Err(BadNetwork::Yaml(YamlError { kind: Kind::Shape, place: Some((line, column)) }));
        for (text, expected) in [
            ("version: 2\nethernets: {}", Ok(())),
            ("version: 1\nconfig: []", Ok(())),
            ("network:\n  version: 2", Ok(())),
            ("network: {version: 1}\nversion: 7", Ok(())),
            ("# a comment\n---\nversion: 2\n...\n", Ok(())),
            ("version: 2\nethernets: {a: &x {dhcp4: true}, b: *x, c: {<<: *x}}", Ok(())),
            ("version: 3", Err(BadNetwork::OtherVersion)),
            ("version: 0", Err(BadNetwork::OtherVersion)),
            ("version: -1", Err(BadNetwork::OtherVersion)),
            ("version: 2.0", Err(BadNetwork::OtherVersion)),
            ("version: \"2\"", Err(BadNetwork::OtherVersion)),
            ("version: [2]", Err(BadNetwork::OtherVersion)),
            ("ethernets: {}", Err(BadNetwork::NoVersion)),
            ("version:", Err(BadNetwork::NoVersion)),
            ("", Err(BadNetwork::NoVersion)),
            ("network: {}\nversion: 2", Err(BadNetwork::NoVersion)),
            ("network:\nversion: 2", shape(1, 8)),
            ("- version: 2", shape(1, 1)),
            ("auto eth0", shape(1, 1)),
        ] {
            assert_eq!(check(text.as_bytes()), expected, "{text}");
        }
        for text in [&b"version: 2\nethernets: ["[..], b"\xff", b"version: 2\n---\nversion: 2"] {
            assert!(matches!(check(text), Err(BadNetwork::Yaml(_))), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn the_default_is_dhcp_on_every_nic_with_a_mac() {
        let two = vm("net10: virtio=BC:24:11:00:00:0A\nnet0: e1000=bc:24:11:00:00:01,bridge=vmbr0\nnet1: virtio\n");
        assert_eq!(
            dhcp_default(&two.nets),
            r#"version: 2
ethernets:
  net0:
    match:
      macaddress: "bc:24:11:00:00:01"
    dhcp4: true
  net10:
    match:
      macaddress: "bc:24:11:00:00:0a"
    dhcp4: true
"#
        );
        assert_eq!(dhcp_default(&[]), "version: 2\nethernets: {}\n");
        for nets in [&two.nets[..], &[]] {
            assert_eq!(check(dhcp_default(nets).as_bytes()), Ok(()));
        }
    }

    #[test]
    fn a_good_block_is_served_as_written_and_a_bad_one_not_at_all() {
        let nic = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n";
        let dhcp = dhcp_default(&vm(nic).nets);
        let with = |block: &str| vm(&format!("{nic}#<!--#network-config\n{block}#-->\n"));

        let good = with("#version%3A 2   # as written\n#ethernets%3A {}\n");
        let (text, source) = network_config(&good);
        assert_eq!((&*text, source), (&b"version: 2   # as written\nethernets: {}"[..], Source::Notes));

        for bad in ["#version%3A 3\n", "#{\n", ""] {
            let bad = with(bad);
            let (text, source) = network_config(&bad);
            assert_eq!(&*text, dhcp.as_bytes());
            assert!(matches!(source, Source::DhcpInstead(BlockError { line: 1, .. })), "{source:?}");
        }
        assert_eq!(network_config(&vm(nic)), (Cow::Borrowed(dhcp.as_bytes()), Source::Dhcp));
    }
}
