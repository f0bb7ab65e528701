//! Where blocks begin and end.
//!
//! In come the Notes with LF line ends; out goes every block of a known name in order, with its text if it is closed.
//! An opening stands at the start of a line: `<!--#name`, then a blank or the line's end, then attributes. The next
//! known opening bounds a block, so a block that was left open never swallows its neighbour. Within that bound the
//! block ends at the first line that is only `-->`, or else at the last `-->`.

use crate::fault::Outcome;
use crate::words;

/// With which an opening begins, before its name.
const OPENING: &str = "<!--#";

words! {
    /// A name that opens a block, as it is written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Name {
        UserData => "user-data",
        NetworkConfig => "network-config",
        VendorData => "vendor-data",
        Pxe => "pxe",
        Imds => "imds",
    }
}

impl Name {
    fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|name| name.word() == word)
    }

    /// What the guest is told while a block of this name is broken. `None`: nothing of it, it gets what it would get
    /// without the block.
    pub(super) fn broken(self) -> Option<Outcome> {
        match self {
            Self::UserData | Self::VendorData => Some(Outcome::NotesInvalid),
            Self::Imds => Some(Outcome::PolicyInvalid),
            Self::NetworkConfig | Self::Pxe => None,
        }
    }

    /// How a line begins that opens such a block.
    pub(super) fn opening(self) -> String {
        format!("{OPENING}{}", self.word())
    }
}

/// A block, as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block<'t> {
    pub(super) name: Name,
    /// The opening's line, from 1.
    pub(super) line: usize,
    /// What stands after the name on the opening line.
    pub(super) attributes: &'t str,
    /// What stands between the marks, without the line breaks next to them. `None`: the block is not closed.
    pub(super) text: Option<&'t str>,
}

/// Finds all blocks.
pub(super) fn find(notes: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    // Where the text of the last block begins.
    let mut inside = 0;
    let mut start = 0;
    for (number, line) in (1..).zip(notes.split_inclusive('\n')) {
        let end = start + line.len();
        if let Some((name, attributes)) = opening(line) {
            if let Some(last) = blocks.last_mut() {
                last.text = closed(&notes[inside..start]);
            }
            blocks.push(Block { name, line: number, attributes, text: None });
            inside = end;
        }
        start = end;
    }
    if let Some(last) = blocks.last_mut() {
        last.text = closed(&notes[inside..]);
    }
    blocks
}

fn opening(line: &str) -> Option<(Name, &str)> {
    let rest = line.strip_prefix(OPENING)?.trim_end_matches(['\n', '\r']);
    let (name, attributes) = rest.split_at(rest.find([' ', '\t']).unwrap_or(rest.len()));
    Some((Name::parse(name)?, attributes))
}

/// Lines that were probably meant to open a block and do not: another case, a blank too many, a dash too few. Serving a
/// machine without the user data that stands in its Notes cannot be mended later, so somebody should hear of it.
pub(super) fn misspelt(notes: &str) -> Vec<(usize, Name)> {
    let plain = |word: &str| {
        word.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect::<String>()
    };
    let meant = |line: &str| {
        let rest = line.trim_start().strip_prefix("<!--")?.trim_start();
        let rest = rest.strip_prefix('#').unwrap_or(rest).trim_start();
        let word = plain(rest.split([' ', '\t', '\r', '\n', '>', '=']).next()?);
        Name::ALL.iter().copied().find(|name| {
            let known = plain(name.word());
            word == known || word.len() >= SIMILAR && known.starts_with(&word)
        })
    };
    (1..)
        .zip(notes.lines())
        .filter(|(_, line)| opening(line).is_none())
        .filter_map(|(n, line)| Some((n, meant(line)?)))
        .collect()
}

/// So many letters of a name are no accident.
const SIMILAR: usize = 6;

/// The text before the mark that closes a block, in a stretch that begins after the opening line.
fn closed(stretch: &str) -> Option<&str> {
    let mut start = 0;
    for line in stretch.split_inclusive('\n') {
        if line.trim_matches([' ', '\t', '\r', '\n']) == "-->" {
            return Some(without_break(&stretch[..start]));
        }
        start += line.len();
    }
    stretch.rfind("-->").map(|mark| without_break(&stretch[..mark]))
}

fn without_break(text: &str) -> &str {
    text.strip_suffix('\n').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_begin_and_end_by_the_rules() {
        use Name as N;
        type Expected = &'static [(Name, usize, &'static str, Option<&'static str>)];
        let rows: &[(&str, Expected)] = &[
            ("", &[]),
            ("only notes\n--> and arrows", &[]),
            // Openings.
            ("<!--#user-data\na\n-->", &[(N::UserData, 1, "", Some("a"))]),
            ("text\n<!--#network-config\na\n-->\ntail", &[(N::NetworkConfig, 2, "", Some("a"))]),
            ("<!--#user-data secrets=a\tx\nb\n-->", &[(N::UserData, 1, " secrets=a\tx", Some("b"))]),
            ("<!--#user-data\r\na\n-->", &[(N::UserData, 1, "", Some("a"))]),
            (" <!--#user-data\na\n-->", &[]),
            ("x<!--#user-data\na\n-->", &[]),
            ("<!-- #user-data\na\n-->", &[]),
            ("<!--#user-data-x\na\n-->", &[]),
            ("<!--#user-data-->", &[]),
            ("<!--#User-Data\na\n-->", &[]),
            ("<!--#other\na\n-->", &[]),
            // Ends: the first line that is only the mark.
            ("<!--#pxe\na\n \t--> \r\nb -->\n-->", &[(N::Pxe, 1, "", Some("a"))]),
            ("<!--#pxe\na --> b\nc\n-->", &[(N::Pxe, 1, "", Some("a --> b\nc"))]),
            ("<!--#pxe\n-->", &[(N::Pxe, 1, "", Some(""))]),
            ("<!--#pxe\n\n\n-->", &[(N::Pxe, 1, "", Some("\n"))]),
            ("<!--#pxe\n  a \n\n-->", &[(N::Pxe, 1, "", Some("  a \n"))]),
            // Ends: else the last mark.
            ("<!--#pxe\na -->", &[(N::Pxe, 1, "", Some("a "))]),
            ("<!--#pxe\na --> b --> c", &[(N::Pxe, 1, "", Some("a --> b "))]),
            ("<!--#pxe\na\n--> b", &[(N::Pxe, 1, "", Some("a"))]),
            ("<!--#pxe\na\n----->", &[(N::Pxe, 1, "", Some("a\n---"))]),
            // Not closed.
            ("<!--#pxe", &[(N::Pxe, 1, "", None)]),
            ("<!--#pxe\na\n-- >", &[(N::Pxe, 1, "", None)]),
            ("<!--#pxe -->\na", &[(N::Pxe, 1, " -->", None)]),
            // The next known opening bounds a block, an unknown one does not.
            ("<!--#user-data\na\n<!--#imds\nb\n-->", &[(N::UserData, 1, "", None), (N::Imds, 3, "", Some("b"))]),
            (
                "<!--#user-data\na -->\n<!--#vendor-data\nb\n-->",
                &[(N::UserData, 1, "", Some("a ")), (N::VendorData, 3, "", Some("b"))],
            ),
            ("<!--#user-data\na\n<!--#other\nb\n-->", &[(N::UserData, 1, "", Some("a\n<!--#other\nb"))]),
            (
                "<!--#user-data\na\n-->\n<!-- a remark -->\n<!--#user-data\nb\n-->",
                &[(N::UserData, 1, "", Some("a")), (N::UserData, 5, "", Some("b"))],
            ),
        ];
        for (notes, expected) in rows {
            let found: Vec<_> =
                find(notes).iter().map(|block| (block.name, block.line, block.attributes, block.text)).collect();
            assert_eq!(found, *expected, "{notes:?}");
        }
    }
}
