//! Proxmox's own cloud-init options, as they stand in a configuration.
//!
//! In come the values of `ciuser`, `cipassword`, `sshkeys`, `ipconfigN` and their siblings; out goes a [`CloudInit`].
//! The password can be compared and handed on, but not printed and not serialised.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::format::{is_cidr4, is_cidr6};
use crate::property::{self, BadProperty, Format};

/// Proxmox's own cloud-init options (`ciuser`, `cipassword`, `sshkeys`, `ipconfigN` …). Serialises the keys that are
/// there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CloudInit {
    /// User to make instead of the image's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ciuser: Option<String>,
    /// Its password, usually hashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cipassword: Option<Password>,
    /// Public keys in OpenSSH form, decoded, blank lines removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sshkeys: Vec<String>,
    /// Whether packages are upgraded at first boot; Proxmox does so when this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ciupgrade: Option<bool>,
    /// DNS search domains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub searchdomain: Vec<String>,
    /// DNS servers: addresses or names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameserver: Vec<String>,
    /// `ipconfigN` by NIC number, only those Proxmox accepts. Fields: `ip` (CIDR, `dhcp`, `manual`), `gw`, `ip6` (CIDR,
    /// `auto`, `dhcp`, `manual`), `gw6`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ipconfig: BTreeMap<u8, BTreeMap<String, String>>,
}

/// A password, hashed or not. It has no `Debug` that shows it, and serialises as `true`: there is one.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Keeps `text`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The password itself, for the answer to the guest it belongs to and for nothing else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

impl Serialize for Password {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(true)
    }
}

const IP: &str = "dhcp, manual, or an IPv4 address with the length of its prefix, 8 to 32, such as 192.0.2.5/24";
const GW: &str = "an IPv4 address without a prefix, such as 192.0.2.1";
const IP6: &str =
    "auto, dhcp, manual, or an IPv6 address with the length of its prefix, 8 to 128, such as 2001:db8::5/64";
const GW6: &str = "an IPv6 address without a prefix, such as 2001:db8::1";

const IPCONFIG: Format = Format {
    fields: &[
        ("ip", IP, |ip| matches!(ip, "dhcp" | "manual") || is_cidr4(ip)),
        ("gw", GW, |gw| gw.parse::<std::net::Ipv4Addr>().is_ok()),
        ("ip6", IP6, |ip| matches!(ip, "auto" | "dhcp" | "manual") || is_cidr6(ip)),
        ("gw6", GW6, |gw| gw.parse::<std::net::Ipv6Addr>().is_ok()),
    ],
    nameless: None,
    shorthand: None,
    required: &[],
    needs: &[("gw", "ip"), ("gw6", "ip6")],
};

/// Reads the value of `ipconfigN`.
pub(crate) fn ipconfig(text: &str) -> Result<BTreeMap<String, String>, BadProperty> {
    let fields = property::parse(&IPCONFIG, text)?;
    Ok(fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_are_whole_or_absent() {
        use BadProperty as Bad;
        let wrong = |field, wanted| Err(Bad::BadValue { field, wanted });
        for (text, expected) in [
            ("ip=dhcp", Ok(vec![("ip", "dhcp")])),
            ("gw=10.0.4.1,ip=10.0.4.5/24", Ok(vec![("gw", "10.0.4.1"), ("ip", "10.0.4.5/24")])),
            ("ip6=auto", Ok(vec![("ip6", "auto")])),
            ("gw6=fe80::1,ip6=2001:db8::5/64", Ok(vec![("gw6", "fe80::1"), ("ip6", "2001:db8::5/64")])),
            (" ", Ok(vec![])),
            ("gw=10.0.4.1", Err(Bad::Needs { field: "gw", other: "ip" })),
            ("ip=dhcp,gw6=fe80::1", Err(Bad::Needs { field: "gw6", other: "ip6" })),
            ("ip=auto", wrong("ip", IP)),
            ("ip=10.0.4.5", wrong("ip", IP)),
            ("ip=dhcp,gw=10.0.4.0/24", wrong("gw", GW)),
            ("ip=10.0.4.5/255.255.255.0", wrong("ip", IP)),
            ("ip=10.0.4.5/33", wrong("ip", IP)),
            ("ip6=2001:db8::5", wrong("ip6", IP6)),
            ("ip6=dhcp,gw6=10.0.4.1", wrong("gw6", GW6)),
        ] {
            let expected = expected.map(|fields: Vec<(&str, &str)>| {
                fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
            });
            assert_eq!(ipconfig(text), expected, "{text}");
        }
    }

    #[test]
    fn a_reason_names_the_field() {
        for (text, expected) in [
            ("dhcp", "a value has no field name; there are ip, gw, ip6 and gw6"),
            ("ip=dhcp,gateway=10.0.4.1", "unknown field; there are ip, gw, ip6 and gw6"),
            ("ip=dhcp,gw=10.0.4.1/24", "`gw` must be an IPv4 address without a prefix, such as 192.0.2.1"),
            ("gw6=fe80::1", "`gw6` needs `ip6` beside it"),
            ("ip=dhcp,gw=", "`gw` has no value"),
        ] {
            assert_eq!(ipconfig(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let options = CloudInit { cipassword: Some(Password::new("hunter2")), ..CloudInit::default() };
        assert!(!format!("{options:?}").contains("hunter2"));
        assert_eq!(serde_json::to_string(&options).ok().as_deref(), Some(r#"{"cipassword":true}"#));
    }
}
