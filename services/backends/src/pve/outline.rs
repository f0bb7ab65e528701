//! Whether a file is the beginning of what it was.
//!
//! In come lines; out goes a number for each, which stands for it and for all lines before it. Two editions are compared by
//! these, so nobody keeps the bytes of the earlier one. Pure.

use std::hash::{DefaultHasher, Hasher};

/// So many lines less are no ordinary edit. One less is what Proxmox leaves when the last option is taken away.
const CUT: usize = 2;

/// A file's lines. Eight bytes for each.
#[derive(Debug, Default)]
pub(super) struct Outline(Box<[u64]>);

impl Outline {
    /// Of these lines.
    pub(super) fn of<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut hasher = DefaultHasher::new();
        let until = |line: &[u8]| {
            hasher.write(line);
            hasher.write_u8(b'\n');
            hasher.finish()
        };
        Self(lines.map(until).collect())
    }

    /// Whether it has a line.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these are the first lines of `before`, and so many of its last ones are gone that nobody edits like this.
    pub(super) fn is_cut_from(&self, before: &Self) -> bool {
        let same = self.0.len().checked_sub(1).is_none_or(|last| before.0.get(last) == self.0.last());
        same && self.0.len() + CUT <= before.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_keeps_the_first_lines_and_loses_several() {
        let outline = |text: &str| Outline::of(text.split_inclusive(' ').map(str::as_bytes));
        for (before, now, expected) in [
            ("a b c ", "a ", true),
            ("a b c ", "", true),
            ("a b c ", "a b ", false),
            ("a b c ", "a b c ", false),
            ("a b c ", "b ", false),
            ("a b c ", "a c ", false),
            ("a a a ", "a ", true),
            ("a b c d ", "b a ", false),
            ("a b c d ", "ab ", false),
            ("a ", "a b c ", false),
            ("", "", false),
        ] {
            assert_eq!(outline(now).is_cut_from(&outline(before)), expected, "{before:?} {now:?}");
        }
        assert!(outline("").is_empty() && !outline("a").is_empty());
    }
}
