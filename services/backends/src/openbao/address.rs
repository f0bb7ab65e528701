//! Where a store is.
//!
//! In come what the configuration says and the path of a set; out goes the URL of that set, which is sent as it was built.
//! Refused: anything but `https://host[:port]`, so that nothing in an address can add to a path, and a namespace that is no
//! plain path.

use std::fmt;

use pve_imds_model::secrets::SecretPath;
use reqwest::Url;

/// `https://host[:port]`
#[derive(Clone, PartialEq, Eq)]
pub struct Address(Url);

/// Why an address is none. It is not repeated: somebody may have written a password into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// No URL.
    #[error("it must be https://host or https://host:port")]
    NoUrl,
    /// Another scheme.
    #[error("it must begin with https://: tokens and secrets pass over it")]
    Plain,
    /// More than scheme, host and port.
    #[error("it must be https://host or https://host:port alone, without user, path, query or fragment")]
    More,
}

impl Address {
    /// Reads the option.
    ///
    /// # Errors
    /// [`BadAddress`]
    pub fn parse(text: &str) -> Result<Self, BadAddress> {
        let url = Url::parse(text).map_err(|_| BadAddress::NoUrl)?;
        if url.scheme() != "https" {
            return Err(BadAddress::Plain);
        }
        // As it is written: a URL's parser drops line breaks, takes `\` for `/`, and `/v1/..` is no path to it.
        let host = text.split_once("://").map(|(_, host)| host.strip_suffix('/').unwrap_or(host));
        let is_bare = host.is_some_and(|host| !host.contains(['/', '\\', '?', '#', '@']));
        if is_bare && text.bytes().all(|b| b.is_ascii_graphic()) { Ok(Self(url)) } else { Err(BadAddress::More) }
    }

    /// The URL of a set: exactly its path, below `/v1/`. `None`: the path is another once it is one of a URL.
    pub(super) fn of(&self, path: &SecretPath) -> Option<Url> {
        let path = format!("/v1/{}", path.as_str());
        let mut url = self.0.clone();
        url.set_path(&path);
        (url.path() == path && url.query().is_none()).then_some(url)
    }
}

/// As it is written, without the slash at its end.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A namespace: names joined by `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(String);

/// Why a namespace is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it must be names of letters, digits, `-`, `_` and `.` joined by `/`")]
pub struct BadNamespace;

impl Namespace {
    /// Reads the option. A slash at either end is not needed.
    ///
    /// # Errors
    /// [`BadNamespace`]
    pub fn parse(text: &str) -> Result<Self, BadNamespace> {
        let names = text.strip_prefix('/').unwrap_or(text);
        let names = names.strip_suffix('/').unwrap_or(names);
        let is_name = |name: &str| {
            !matches!(name, "" | "." | "..") && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        if names.split('/').all(is_name) { Ok(Self(names.to_owned())) } else { Err(BadNamespace) }
    }

    /// As it is sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use pve_imds_model::pools::PoolId;
    use pve_imds_model::secrets::{PathTemplate, Scope, SetName};

    use super::*;

    #[test]
    fn an_address_is_a_host_and_perhaps_a_port() {
        use BadAddress as B;
        for (text, expected) in [
            ("https://openbao.example.com:8200", Ok("https://openbao.example.com:8200")),
            ("https://openbao.example.com", Ok("https://openbao.example.com")),
            ("https://openbao.example.com/", Ok("https://openbao.example.com")),
            ("https://10.0.0.1:8200", Ok("https://10.0.0.1:8200")),
            ("https://[fd00::1]:8200/", Ok("https://[fd00::1]:8200")),
            ("HTTPS://Bao", Ok("https://bao")),
            ("http://openbao.example.com:8200", Err(B::Plain)),
            ("openbao.example.com:8200", Err(B::Plain)),
            ("openbao.example.com", Err(B::NoUrl)),
            ("", Err(B::NoUrl)),
            ("https://", Err(B::NoUrl)),
            ("https://bao:99999", Err(B::NoUrl)),
            ("https://bao/v1", Err(B::More)),
            ("https://bao/v1/../..", Err(B::More)),
            ("https://bao?x", Err(B::More)),
            ("https://bao#x", Err(B::More)),
            ("https://user@bao", Err(B::More)),
            ("https://user:canary@bao", Err(B::More)),
            ("https://@bao", Err(B::More)),
            ("https:\\\\bao", Err(B::More)),
            ("https://b\nao", Err(B::More)),
            (" https://bao", Err(B::More)),
        ] {
            let got = Address::parse(text);
            assert_eq!(
                got.as_ref().map(Address::to_string).map_err(|error| *error),
                expected.map(str::to_owned),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_is_sent_is_what_was_built() {
        let address = Address::parse("https://bao:8200").unwrap();
        let set = SetName::parse("worker").unwrap();
        let pools = PathTemplate::parse("kv/data/pools/{pool}/{name}").unwrap();
        let tags = PathTemplate::parse("kv/data/tags/{tag}/{name}").unwrap();
        let pool = |pool: &str| Scope::Pool(PoolId::parse(pool).unwrap());
        let tag = |tag: &str| Scope::Tag(tag.to_owned());
        for (template, scope, expected) in [
            (&pools, pool("a/b/c"), "kv/data/pools/a/b/c/worker"),
            (&pools, pool("..."), "kv/data/pools/.../worker"),
            (&tags, tag("x.y+z"), "kv/data/tags/x.y%2Bz/worker"),
            (&tags, tag("%2e%2e"), "kv/data/tags/%252e%252e/worker"),
            (&tags, tag("%2f..%2f"), "kv/data/tags/%252f..%252f/worker"),
            (&tags, tag("a?b#c\\d"), "kv/data/tags/a%3Fb%23c%5Cd/worker"),
            (&tags, tag("ü \n"), "kv/data/tags/%C3%BC%20%0A/worker"),
        ] {
            let url = address.of(&template.path(&scope, &set).unwrap()).unwrap();
            assert_eq!(url.as_str(), format!("https://bao:8200/v1/{expected}"));
        }
    }

    #[test]
    fn a_namespace_is_a_plain_path() {
        for (text, expected) in [
            ("team", Ok("team")),
            ("team/a.b", Ok("team/a.b")),
            ("team/", Ok("team")),
            ("/team/", Ok("team")),
            ("", Err(BadNamespace)),
            ("/", Err(BadNamespace)),
            ("a//b", Err(BadNamespace)),
            ("a/../b", Err(BadNamespace)),
            ("a b", Err(BadNamespace)),
            ("a\r\nX-Vault-Token: b", Err(BadNamespace)),
            ("ü", Err(BadNamespace)),
        ] {
            assert_eq!(
                Namespace::parse(text).as_ref().map(Namespace::as_str).map_err(|bad| *bad),
                expected,
                "{text:?}"
            );
        }
    }
}
