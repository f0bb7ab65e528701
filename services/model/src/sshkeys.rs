//! `sshkeys`: percent-encoded lines, one public key each.
//!
//! In comes the option's value; out go its keys, as Proxmox hands them on, and the first thing in them that no guest
//! could use. Proxmox refuses characters that must be encoded and looks no further: a key cut in two is served all the
//! same, and its guest lets nobody in. Refused here is to print anything of a key.

use percent_encoding::percent_decode_str;

use crate::format::{is_all_blank, is_blank_char, is_url_encoded};

/// What is wrong with the keys. Keys are counted from 1, without empty lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// A character that Proxmox does not take here.
    #[error("key {0}: a character is not percent-encoded; a blank is written `%20`, `+` is `%2B`, a line's end `%0A`")]
    Raw(usize),
    /// `%` that encodes nothing, and stays as it is.
    #[error("key {0}: `%` without two hexadecimal digits behind it; `%` itself is written `%25`")]
    Percent(usize),
    /// Bytes that are no text.
    #[error("key {0}: it is not UTF-8 once decoded")]
    NotUtf8(usize),
    /// What belongs to nobody but its owner.
    #[error("key {0}: it is part of a private key; what is wanted is the line of the `.pub` file")]
    Private(usize),
    /// No line of OpenSSH's `authorized_keys`.
    #[error(
        "key {0}: no public key of OpenSSH's: a kind such as ssh-ed25519, a blank, then base64 that begins with AAAA"
    )]
    NoKey(usize),
}

/// What is wrong, and at which byte of the value it begins.
pub(crate) type Found = (usize, BadKey);

/// Reads the value: one key a line, empty ones left out.
///
/// # Errors
/// [`BadKey::Raw`], for which Proxmox drops the value.
pub(crate) fn read(text: &str) -> Result<Vec<String>, Found> {
    let is_raw = |c: char| !is_url_encoded(c.encode_utf8(&mut [0; 4]));
    if let Some(at) = text.find(is_raw) {
        let before = keys(&text[..at]).filter(|key| !key.is_blank()).count();
        let begun = keys(&text[..at]).last().is_some_and(|key| !key.is_blank());
        return Err((at, BadKey::Raw(before + usize::from(!begun))));
    }
    let decoded = percent_decode_str(text).decode_utf8_lossy();
    Ok(decoded.lines().filter(|line| !is_all_blank(line)).map(str::to_owned).collect())
}

/// The first thing in a value that is taken which no guest could use.
pub(crate) fn doubt(text: &str) -> Option<Found> {
    let mut count = 0;
    keys(text).find_map(|key| {
        count += usize::from(!key.is_blank());
        key.doubt(count.max(1))
    })
}

/// A line, still encoded.
struct Key<'t> {
    /// At which byte of the value it begins.
    at: usize,
    text: &'t str,
}

/// The lines of a value.
fn keys(text: &str) -> impl Iterator<Item = Key<'_>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let whole = rest?;
        let at = text.len() - whole.len();
        let is_break = |(at, _): &(usize, &str)| matches!(whole.as_bytes().get(at + 2), Some(b'A' | b'a'));
        let end = whole.match_indices("%0").find(is_break).map(|(at, _)| at);
        rest = end.map(|end| &whole[end + 3..]);
        Some(Key { at, text: end.map_or(whole, |end| &whole[..end]) })
    })
}

impl Key<'_> {
    fn is_blank(&self) -> bool {
        is_all_blank(&percent_decode_str(self.text).decode_utf8_lossy())
    }

    fn doubt(&self, count: usize) -> Option<Found> {
        let encodes = |rest: &str| rest.len() > 2 && rest.as_bytes()[1..3].iter().all(u8::is_ascii_hexdigit);
        let stray = self.text.match_indices('%').find(|(at, _)| !encodes(&self.text[*at..]));
        if let Some((at, _)) = stray {
            return Some((self.at + at, BadKey::Percent(count)));
        }
        let found = |what| Some((self.at, what));
        let Ok(decoded) = percent_decode_str(self.text).decode_utf8() else { return found(BadKey::NotUtf8(count)) };
        let line = decoded.trim_matches(is_blank_char);
        match line {
            "" => None,
            comment if comment.starts_with('#') => None,
            armour if armour.starts_with("-----") => found(BadKey::Private(count)),
            key if is_public(key) => None,
            _ => found(BadKey::NoKey(count)),
        }
    }
}

/// Whether a word is a public key's base64, which begins with the length of its kind's name, and another stands before
/// it: the kind, and perhaps options before that (sshd(8), "AUTHORIZED_KEYS FILE FORMAT").
fn is_public(line: &str) -> bool {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    line.split(is_blank_char)
        .filter(|word| !word.is_empty())
        .skip(1)
        .any(|word| word.starts_with("AAAA") && word.chars().all(is_base64))
}

#[cfg(test)]
mod tests {
    // What is measured here is work, and no clock but the real one knows it.
    #![allow(clippy::disallowed_types)]
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn keys_are_lines() {
        let keys = read("%0Assh-ed25519%20AAAA%20ops%40a%0D%0A%20%0Assh-rsa%20BBBB%0A");
        assert_eq!(keys, Ok(vec!["ssh-ed25519 AAAA ops@a".to_owned(), "ssh-rsa BBBB".to_owned()]));
        for (text, at, key) in [
            ("a b", 1, 1),
            ("ssh-rsa%20AAAA+A", 14, 1),
            ("a%0A%0Ab c", 8, 2),
            ("a%0A c", 4, 2),
            ("a%0a%0A\u{fc}", 7, 2),
            ("/", 0, 1),
        ] {
            assert_eq!(read(text), Err((at, BadKey::Raw(key))), "{text}");
        }
    }

    #[test]
    fn what_no_guest_could_use_is_told_with_its_key() {
        for (text, expected) in [
            ("", None),
            ("%0A%20%0D%0A", None),
            ("ssh-ed25519%20AAAA%20ops%40a%0Aecdsa-sha2-nistp256%20AAAAE2V%2Fa%2B%3D%0A", None),
            ("sk-ssh-ed25519%40openssh.com%20%20AAAAG", None),
            ("from%3D%2210.0.0.1%22%2Cno-pty%20ssh-rsa%20AAAAB%20a%20b", None),
            ("%23%20of%20Kim%0Assh-rsa%20AAAAB", None),
            ("ssh-rsa%20AAAA%0A%0Assh-rsa%2", Some((27, BadKey::Percent(2)))),
            ("ssh-rsa%20AAAA%zz", Some((14, BadKey::Percent(1)))),
            ("%", Some((0, BadKey::Percent(1)))),
            ("ssh-rsa%20AAAA%20100%", Some((20, BadKey::Percent(1)))),
            ("ssh-rsa%20AAAA%0Assh-rsa%20AAAA%20%C3", Some((17, BadKey::NotUtf8(2)))),
            ("ssh-rsa%20AAAA%0ABBBB", Some((17, BadKey::NoKey(2)))),
            ("ssh-rsa%20AAAA%0aBBBB%0A", Some((17, BadKey::NoKey(2)))),
            ("AAAAB3", Some((0, BadKey::NoKey(1)))),
            ("ssh-rsa", Some((0, BadKey::NoKey(1)))),
            ("ssh-rsa%20AAAA%25%250A", Some((0, BadKey::NoKey(1)))),
            ("-----BEGIN%20OPENSSH%20PRIVATE%20KEY-----%0Ab3", Some((0, BadKey::Private(1)))),
        ] {
            assert_eq!(doubt(text), expected, "{text}");
        }
    }
    #[test]
    fn a_megabyte_of_keys_takes_no_time() {
        let start = Instant::now();
        for line in ["%0A", "%0a", "%0", "%", "ssh-rsa%20AAAA%0a", "%23%0A", "a"] {
            let text = line.repeat((1 << 20) / line.len());
            let _ = doubt(&text);
            assert!(read(&text).is_ok() && read(&(text + " ")).is_err());
        }
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}
