//! One line of a configuration, without its line feed: what kind of line Proxmox takes it for.
//!
//! The order of the questions is Proxmox's and matters: a `#` line is Notes and not a comment, and a line that ends in
//! a snapshot's state is swallowed wherever the words stand. Bytes in, slices of them out.

use crate::format::is_blank;

/// A line, told by its form alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// Nothing, or white space.
    Blank,
    /// `[…]`
    Header(Header<'a>),
    /// `#…`: a line of Notes, still percent-encoded.
    Notes(&'a [u8]),
    /// `description: …`: Notes without a line break, still percent-encoded.
    Description(&'a [u8]),
    /// `snapstate: prepare` or `delete`.
    SnapshotState,
    /// `delete: …`
    Delete,
    /// `key: value`, trimmed.
    Option(&'a str, &'a [u8]),
    /// None of these.
    Other,
}

/// A section's first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header<'a> {
    /// `[PENDING]` in any letter case.
    Pending,
    /// `[special:cloudinit]` and its like.
    Special(&'a str),
    /// A snapshot's name.
    Snapshot(&'a str),
    /// Any other text in brackets.
    Unknown,
}

const SPECIAL: [&str; 2] = ["cloudinit", "fleecing"];

impl<'a> Line<'a> {
    pub(super) fn read(line: &'a [u8]) -> Self {
        let trimmed = trim_end(line);
        if trimmed.is_empty() {
            return Self::Blank;
        }
        if let Some(header) = Header::read(trimmed) {
            return Self::Header(header);
        }
        if let Some(text) = line.strip_prefix(b"#") {
            return Self::Notes(text);
        }
        // A key with nothing but white space after it is an ordinary option, whose value is one blank.
        let filled = |key: &[u8]| trimmed.strip_prefix(key).map(trim_start).filter(|text| !text.is_empty());
        if let Some(text) = filled(b"description:") {
            return Self::Description(text);
        }
        if is_snapshot_state(trimmed) {
            return Self::SnapshotState;
        }
        if filled(b"delete:").is_some() {
            return Self::Delete;
        }
        option(line).map_or(Self::Other, |(key, value)| Self::Option(key, value))
    }
}

impl<'a> Header<'a> {
    fn read(trimmed: &'a [u8]) -> Option<Self> {
        let name = trimmed.strip_prefix(b"[")?.strip_suffix(b"]")?;
        if name.contains(&b']') {
            return None;
        }
        let Ok(name) = str::from_utf8(name) else { return Some(Self::Unknown) };
        let special =
            name.split_once(':').filter(|(word, name)| word.eq_ignore_ascii_case("special") && SPECIAL.contains(name));
        Some(match special {
            _ if name.eq_ignore_ascii_case("pending") => Self::Pending,
            Some((_, name)) => Self::Special(name),
            None if is_snapshot_name(name) => Self::Snapshot(name),
            None => Self::Unknown,
        })
    }
}

fn is_snapshot_name(name: &str) -> bool {
    name.len() > 1
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn is_snapshot_state(trimmed: &[u8]) -> bool {
    let before = trimmed.strip_suffix(b"prepare").or_else(|| trimmed.strip_suffix(b"delete"));
    before.is_some_and(|before| trim_end(before).ends_with(b"snapstate:"))
}

/// A key is a lower-case letter, then lower-case letters, `_` and `-`, then digits; the colon follows at once.
fn option(line: &[u8]) -> Option<(&str, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let key = str::from_utf8(&line[..colon]).ok()?;
    let stem = key.trim_end_matches(|c: char| c.is_ascii_digit());
    let stem_ok = stem.starts_with(|c: char| c.is_ascii_lowercase())
        && stem.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b == b'-');
    let rest = &line[colon + 1..];
    let value = match trim_start(trim_end(rest)) {
        [] => &rest[rest.len().checked_sub(1)?..],
        value => value,
    };
    stem_ok.then_some((key, value))
}

fn trim_end(line: &[u8]) -> &[u8] {
    let length = line.iter().rposition(|byte| !is_blank(*byte)).map_or(0, |last| last + 1);
    &line[..length]
}

fn trim_start(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|byte| !is_blank(*byte)).unwrap_or(line.len());
    &line[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_in_the_order_of_proxmox() {
        use Header as H;
        use Line as L;
        let option = |key, value: &'static str| L::Option(key, value.as_bytes());
        for (line, expected) in [
            ("", L::Blank),
            (" \t\r", L::Blank),
            ("[PENDING]", L::Header(H::Pending)),
            ("[pending] \r", L::Header(H::Pending)),
            ("[special:cloudinit]", L::Header(H::Special("cloudinit"))),
            ("[SPECIAL:fleecing]", L::Header(H::Special("fleecing"))),
            ("[special:Cloudinit]", L::Header(H::Unknown)),
            ("[special:future]", L::Header(H::Unknown)),
            ("[before_upgrade-2]", L::Header(H::Snapshot("before_upgrade-2"))),
            ("[Ab]", L::Header(H::Snapshot("Ab"))),
            ("[cloudinit]", L::Header(H::Snapshot("cloudinit"))),
            ("[x]", L::Header(H::Unknown)),
            ("[1a]", L::Header(H::Unknown)),
            ("[]", L::Header(H::Unknown)),
            ("[a b]", L::Header(H::Unknown)),
            ("[ab]]", L::Other),
            ("[ab", L::Other),
            (" [ab]", L::Other),
            ("#", L::Notes(b"")),
            ("# a \r", L::Notes(b" a \r")),
            ("#snapstate: delete", L::Notes(b"snapstate: delete")),
            (" # a", L::Other),
            ("description: a b ", L::Description(b"a b")),
            ("description:a", L::Description(b"a")),
            ("description: ", option("description", " ")),
            ("snapstate: prepare", L::SnapshotState),
            ("name: xsnapstate:delete ", L::SnapshotState),
            ("snapstate: done", option("snapstate", "done")),
            ("delete: tags", L::Delete),
            ("delete: ", option("delete", " ")),
            ("name: web", option("name", "web")),
            ("name:web", option("name", "web")),
            ("name:\t web \t\r", option("name", "web")),
            ("name: a: b", option("name", "a: b")),
            ("name: \t", option("name", "\t")),
            ("name:", L::Other),
            ("net10: x", option("net10", "x")),
            ("a_b-c0: x", option("a_b-c0", "x")),
            ("a0b: x", L::Other),
            ("-a: x", L::Other),
            ("0: x", L::Other),
            ("Name: x", L::Other),
            (" name: x", L::Other),
            ("name : x", L::Other),
            ("\u{feff}name: x", L::Other),
            ("no colon", L::Other),
            (": x", L::Other),
        ] {
            assert_eq!(L::read(line.as_bytes()), expected, "{line:?}");
        }
        assert_eq!(L::read(b"[\xff]"), L::Header(H::Unknown));
        assert_eq!(L::read(b"\xff: x"), L::Other);
    }
}
