//! Whose name a request is for: ours, an address, or somebody else's.
//!
//! A page in a browser inside the guest can make its own DNS name point at us and then read what we answer ("DNS
//! rebinding"); what it cannot do is make the browser send an address or a name of ours as `Host`.

use std::net::{IpAddr, Ipv6Addr};

/// The names that may be asked for besides addresses and our own.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    allowed: Vec<String>,
}

impl Names {
    pub(super) fn new(allowed: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self { allowed: allowed.into_iter().map(|name| plain(name.as_ref()).to_ascii_lowercase()).collect() }
    }

    /// Whether `host`, the text of a `Host` field or of a target's authority, may be asked for.
    ///
    /// Addresses pass with and without port; IPv6 also with a zone (`[fe80::a9fe:a9fe%eth0]`, cloud-init sends it) and
    /// without brackets. So does an empty text: it is no name. Our own names are `instance-data` and those below it in
    /// `.internal` (`instance-data.ec2.internal`), a domain nobody can register; `instance-data.example.org` could be
    /// anybody's.
    pub(super) fn pass(&self, host: &str) -> bool {
        let host = host.trim_matches([' ', '\t']);
        if host.is_empty() || address(host) {
            return true;
        }
        let Some(name) = without_port(host) else { return false };
        if address(name) {
            return true;
        }
        let name = plain(name).to_ascii_lowercase();
        let ours = name
            .strip_prefix("instance-data")
            .is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && rest.ends_with(".internal")));
        ours || (!name.is_empty() && self.allowed.contains(&name))
    }
}

/// A name without the dot that makes it absolute.
fn plain(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// The text before the port, if there is one; `None` if what follows the last colon is no port.
fn without_port(host: &str) -> Option<&str> {
    match host.rsplit_once(':') {
        Some((name, port)) if port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit()) => Some(name),
        Some(_) => None,
        None => Some(host),
    }
}

/// Whether the text is an address, perhaps in brackets, perhaps with a zone.
fn address(text: &str) -> bool {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let (inner, v6) = bracketed.map_or((text, false), |inner| (inner, true));
    if let Some((address, zone)) = inner.split_once('%') {
        return !zone.is_empty() && address.parse::<Ipv6Addr>().is_ok();
    }
    match inner.parse::<IpAddr>() {
        Ok(address) => address.is_ipv6() || !v6,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_our_own_names_pass() {
        let names = Names::new(["Metadata.Example.ORG.", "imds"]);
        for (host, expected) in [
            ("169.254.169.254", true),
            ("169.254.169.254:80", true),
            ("169.254.169.254:", true),
            (" 169.254.169.254\t", true),
            ("10.0.0.1:8080", true),
            ("[fe80::a9fe:a9fe]", true),
            ("[fe80::a9fe:a9fe]:80", true),
            ("[fe80::a9fe:a9fe%eth0]", true),
            ("[fe80::a9fe:a9fe%25eth0]:80", true),
            ("fe80::a9fe:a9fe", true),
            ("fe80::a9fe:a9fe%eth0", true),
            ("[fd00:ec2::254]", true),
            ("", true),
            ("instance-data", true),
            ("Instance-Data", true),
            ("instance-data.", true),
            ("instance-data.:8773", true),
            ("instance-data:80", true),
            ("instance-data.ec2.internal", true),
            ("metadata.example.org", true),
            ("METADATA.example.org.:80", true),
            ("imds", true),
            ("instance-data.example.org", false),
            ("instance-datax", false),
            ("instance-data-internal", false),
            ("instance-data.internal.example.org", false),
            ("internal", false),
            ("evil.example.org", false),
            ("evil.example.org:80", false),
            ("169.254.169.254.example.org", false),
            ("169.254.169.254@evil.example.org", false),
            ("user@169.254.169.254", false),
            ("2852039166", false),
            ("0xa9.254.169.254", false),
            ("169.254.169.254:80:80", false),
            ("169.254.169.254:port", false),
            ("169.254.169.254:123456", false),
            ("[169.254.169.254]", false),
            ("[fe80::a9fe:a9fe", false),
            ("[fe80::a9fe:a9fe%]", false),
            ("[evil.example.org]", false),
            ("evil.example.org%eth0", false),
            (".", false),
            (":80", false),
            ("169.254.169.254, evil.example.org", false),
        ] {
            assert_eq!(names.pass(host), expected, "{host:?}");
        }
        assert!(!Names::new([""]).pass("."), "an empty entry allows nothing");
    }
}
