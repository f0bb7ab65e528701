//! Who says that a token is true: `iss`, and the address below which the keys to check it with are found.
//!
//! In comes what the node was told; out goes an [`Issuer`] to which `/.well-known/openid-configuration` can be added as it
//! stands (OpenID Connect Discovery 1.0, §4). Whoever verifies compares it byte by byte. Refused: what two readers could
//! take for two addresses.

/// Bytes of the longest one.
const MAX: usize = 256;

/// Where the key set is, below the issuer or a node.
pub const JWKS_PATH: &str = "/.well-known/jwks.json";

/// Where discovery is (OpenID Connect Discovery 1.0, §4).
pub const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// An https URL of at most 256 bytes without user, query and fragment, which does not end in a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer(String);

/// Why a text is no issuer, with the mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIssuer {
    /// It is empty.
    #[error("is empty; leave it out")]
    Empty,
    /// It is too long.
    #[error("has more than {MAX} bytes")]
    Long,
    /// Another scheme, or none.
    #[error("must begin with https://")]
    Scheme,
    /// `?` or `#`.
    #[error("must have no query and no fragment; leave out what begins with ? or #")]
    Query,
    /// `@` before the path.
    #[error("must have no user; leave out what stands before @")]
    User,
    /// A slash ends it.
    #[error("must not end in a slash; leave it out")]
    Slash,
    /// No name or address of a host, or no number of a port.
    #[error("must have a host's name or address behind https://, and behind a colon only a port's number")]
    Host,
    /// A character that no URL has, an empty part, `.` or `..`.
    #[error(
        "must have a path that is one as it stands: no //, . or .. in it, and no characters that must be written with %"
    )]
    Path,
}

impl Issuer {
    /// Reads one.
    ///
    /// # Errors
    /// [`BadIssuer`]
    pub fn parse(text: &str) -> Result<Self, BadIssuer> {
        match text.len() {
            0 => return Err(BadIssuer::Empty),
            1..=MAX => {}
            _ => return Err(BadIssuer::Long),
        }
        let rest = text.strip_prefix("https://").ok_or(BadIssuer::Scheme)?;
        if rest.contains(['?', '#']) {
            return Err(BadIssuer::Query);
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(BadIssuer::User);
        }
        if !is_authority(authority) {
            return Err(BadIssuer::Host);
        }
        if path.ends_with('/') {
            return Err(BadIssuer::Slash);
        }
        if !path.split('/').skip(1).all(is_segment) {
            return Err(BadIssuer::Path);
        }
        Ok(Self(text.to_owned()))
    }

    /// As written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where the key set is.
    #[must_use]
    pub fn jwks_uri(&self) -> String {
        format!("{self}{JWKS_PATH}")
    }
}

impl std::fmt::Display for Issuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A host and perhaps a port (RFC 3986 §3.2).
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => ("6", port),
        Some(_) => return false,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_name = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    let is_port = |digits: &str| {
        digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok_and(|port| port != 0)
    };
    is_name && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// A part of a path that stays as it is when somebody puts the path in order (RFC 3986 §3.3, §5.2.4).
fn is_segment(text: &str) -> bool {
    let mut packed = text.split('%');
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&b));
    let is_escape = |part: &str| {
        part.get(..2).is_some_and(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit())) && plain(&part[2..])
    };
    !matches!(text, "" | "." | "..") && packed.next().is_some_and(plain) && packed.all(is_escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_is_an_address_as_it_stands() {
        let longest = format!("https://{}", "a".repeat(MAX - 8));
        for good in [
            "https://pve1",
            "https://pve1.example.com:8444",
            "https://192.0.2.7/imds",
            "https://[2001:db8::7]:8444",
            "https://[::1]",
            "https://issuer.example.com/clusters/prod",
            "https://issuer.example.com/a%20b/~c@d:e",
            &longest,
        ] {
            assert_eq!(Issuer::parse(good).as_ref().map(Issuer::as_str), Ok(good));
        }
        let issuer = Issuer::parse("https://issuer.example.com/prod").unwrap();
        assert_eq!(issuer.jwks_uri(), "https://issuer.example.com/prod/.well-known/jwks.json");
    }

    #[test]
    fn each_line_of_what_is_none() {
        use BadIssuer::{Empty, Host, Long, Path, Query, Scheme, Slash, User};
        let long = format!("https://{}", "a".repeat(MAX - 7));
        for (bad, why) in [
            ("", Empty),
            (&*long, Long),
            ("http://pve1", Scheme),
            ("HTTPS://pve1", Scheme),
            ("pve1.example.com", Scheme),
            (" https://pve1", Scheme),
            ("https://pve1?a", Query),
            ("https://pve1/a#b", Query),
            ("https://root@pve1", User),
            ("https://root:secret@pve1/a", User),
            ("https://", Host),
            ("https:///a", Host),
            ("https://:8444", Host),
            ("https://pve1:", Host),
            ("https://pve1:0", Host),
            ("https://pve1:65536", Host),
            ("https://pve1:+1", Host),
            ("https://pve 1", Host),
            ("https://pvé", Host),
            ("https://[pve1]", Host),
            ("https://[::1", Host),
            ("https://[::1]x", Host),
            ("https://2001:db8::7", Host),
            ("https://pve1/", Slash),
            ("https://pve1/a/", Slash),
            ("https://pve1//a", Path),
            ("https://pve1/a/../b", Path),
            ("https://pve1/.", Path),
            ("https://pve1/a b", Path),
            ("https://pve1/a\\b", Path),
            ("https://pve1/é", Path),
            ("https://pve1/%", Path),
            ("https://pve1/%2", Path),
            ("https://pve1/%é", Path),
            ("https://pve1/%2g", Path),
            ("https://pve1/a\n", Path),
        ] {
            assert_eq!(Issuer::parse(bad), Err(why), "{bad:?}");
        }
    }
}
