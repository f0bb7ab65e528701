//! The name of an attribute that nobody knows, for whoever has to mend it.
//!
//! In comes a word of an opening line; out comes its name, if it certainly is no more than that. Somebody may have put
//! there what belongs into the block, so refused is whatever could be a value: what stands after `=`, capitals and
//! digits (base64), more than 16 letters.

use std::fmt;

/// The longest name that is told.
const LONGEST: usize = 16;

/// The attributes there are.
const KNOWN: [&str; 2] = ["secrets", "encoding"];

/// 1 to 16 ASCII letters, `-` and `_`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AttributeName {
    bytes: [u8; LONGEST],
    length: usize,
}

impl AttributeName {
    /// The name in `word`, which is as it stands on the line.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        let meant = KNOWN.iter().any(|known| known.eq_ignore_ascii_case(name));
        let is_name = |b: u8| b.is_ascii_lowercase() || b == b'-' || b == b'_';
        let told = meant || name.len() < word.len() && name.bytes().all(is_name);
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..name.len()).filter(|_| told && !name.is_empty())?.copy_from_slice(name.as_bytes());
        Some(Self { bytes, length: name.len() })
    }
}

/// As it stands there.
impl fmt::Display for AttributeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All of it is ASCII.
        f.write_str(std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default())
    }
}

impl fmt::Debug for AttributeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_and_nothing_that_could_be_more() {
        for (word, expected) in [
            ("secret=canary", Some("secret")),
            ("user_data-x=", Some("user_data-x")),
            ("Secrets=canary", Some("Secrets")),
            ("ENCODING", Some("ENCODING")),
            ("secrets", Some("secrets")),
            ("sixteen-letters-=x", Some("sixteen-letters-")),
            ("seventeen-letters=x", None),
            ("canary", None),
            ("Canary=", None),
            ("c2VjcmV0=", None),
            ("c4nary=x", None),
            ("canäry=x", None),
            ("=canary", None),
            ("#cloud-config", None),
            ("-->", None),
            ("", None),
        ] {
            assert_eq!(AttributeName::of(word).map(|name| name.to_string()).as_deref(), expected, "{word}");
        }
    }
}
