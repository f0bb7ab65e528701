//! Where blocks begin and end.
//!
//! In come the Notes with LF line ends; out goes every block of a known name in order, with its text if it is closed, and
//! each line outside of them that was probably meant to open or to end one. What stands in a block is text and nothing
//! else.
//! An opening stands at the start of a line: `<!--#name`, then a blank or the line's end, then attributes. The next
//! known opening bounds a block, so a block that was left open never swallows its neighbour. Within that bound the
//! block ends at the first line that is only `-->`, or else at the last `-->` if a line ends there. An arrow within a line
//! is text: whoever forgot the end must not be served what stands before one.

use std::mem;

use super::Flaw;
use super::slip::{self, Meant, Slipped};
use crate::fault::Outcome;
use crate::words;

/// With which an opening begins, before its name.
pub(super) const OPENING: &str = "<!--#";

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
    pub(super) fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|name| name.word() == word)
    }

    /// What the guest is told while a block of this name is broken. `None`: nothing of it, it gets what it would get
    /// without the block.
    pub(super) fn broken(self, flaw: Flaw) -> Option<Outcome> {
        match self {
            Self::UserData | Self::VendorData => Some(flaw.outcome()),
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
    /// What stands after the name on the opening line, if that is an opening and not only plainly meant for one.
    pub(super) attributes: Result<&'t str, Slipped>,
    /// What stands between the marks, without the line breaks next to them. `None`: the block is not closed.
    pub(super) text: Option<&'t str>,
}

/// What the Notes hold for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Block(Block<'t>),
    /// A line, from 1, that was probably meant to open a block. What stands below it is no block's.
    Misspelt(usize, Slipped),
    /// A line that holds nothing but the mark of an end, and ends nothing. Line and character, from 1.
    Stray {
        line: usize,
        column: usize,
    },
}

/// The mark that ends a block, and every other comment.
const END: &str = "-->";

/// All blocks in order, and the lines between them that look like one.
pub(super) fn parts(notes: &str) -> impl Iterator<Item = Part<'_>> {
    pieces(notes)
        .scan(Comment::default(), |comment, piece| {
            Some(match piece {
                Piece::Block(block) => Some(Part::Block(block)),
                Piece::Outside(line, text) => comment.part(line, text),
            })
        })
        .flatten()
}

/// What the Notes consist of.
enum Piece<'t> {
    Block(Block<'t>),
    /// A line, from 1, that is no block's.
    Outside(usize, &'t str),
}

fn pieces(notes: &str) -> impl Iterator<Item = Piece<'_>> {
    stretches(notes).flat_map(|(number, stretch)| {
        let head = stretch.split_inclusive('\n').next().unwrap_or_default();
        let opened = opening(head);
        let inside = if opened.is_some() { &stretch[head.len()..] } else { stretch };
        let (text, outside) =
            opened.and_then(|_| closed(inside)).map_or((None, inside), |(text, rest)| (Some(text), rest));
        let block = opened.map(|(name, attributes)| Block { name, line: number, attributes: Ok(attributes), text });
        let first = number + breaks(&stretch[..stretch.len() - outside.len()]);
        let outside = (first..).zip(outside.split_inclusive('\n')).map(|(line, text)| Piece::Outside(line, text));
        block.map(Piece::Block).into_iter().chain(outside)
    })
}

/// The Notes, cut before each opening, with the number of each piece's first line.
fn stretches(notes: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut rest, mut number) = (notes, 1);
    std::iter::from_fn(move || {
        let mut lines = rest.split_inclusive('\n');
        let head = lines.next()?;
        let length: usize = lines.take_while(|line| opening(line).is_none()).map(str::len).sum();
        let (stretch, after) = rest.split_at(head.len() + length);
        let first = number;
        (rest, number) = (after, number + breaks(stretch));
        Some((first, stretch))
    })
}

/// Whether one of the operator's own comments is open. A block within it changes nothing about that: whoever puts one
/// there ends both.
#[derive(Default)]
struct Comment {
    open: bool,
}

impl Comment {
    /// What a line outside of blocks is to us.
    fn part<'t>(&mut self, line: usize, text: &'t str) -> Option<Part<'t>> {
        if is_end(text) {
            let column = text.len() - text.trim_start().len() + 1;
            return (!mem::take(&mut self.open)).then_some(Part::Stray { line, column });
        }
        let slipped = slip::of(text);
        self.open = is_open_after(text, self.open || slipped.is_some());
        let slipped = slipped?;
        Some(match slipped {
            Slipped { meant: Meant::Block(name), plain: true, .. } => {
                Part::Block(Block { name, line, attributes: Err(slipped), text: None })
            }
            _ => Part::Misspelt(line, slipped),
        })
    }
}

fn is_open_after(line: &str, mut open: bool) -> bool {
    let mut rest = line;
    while let Some((_, behind)) = rest.split_once(if open { END } else { "<!--" }) {
        (rest, open) = (behind, !open);
    }
    open
}

/// Whether the line holds the mark of an end and nothing else.
fn is_end(line: &str) -> bool {
    line.trim_matches([' ', '\t', '\r', '\n']) == END
}

fn breaks(text: &str) -> usize {
    text.matches('\n').count()
}

fn opening(line: &str) -> Option<(Name, &str)> {
    let rest = line.strip_prefix(OPENING)?.trim_end_matches(['\n', '\r']);
    let (name, attributes) = rest.split_at(rest.find([' ', '\t']).unwrap_or(rest.len()));
    Some((Name::parse(name)?, attributes))
}

/// In a stretch that begins after the opening line: the text before the mark that closes the block, and the lines below
/// that mark.
fn closed(stretch: &str) -> Option<(&str, &str)> {
    let mut start = 0;
    for line in stretch.split_inclusive('\n') {
        let end = start + line.len();
        if is_end(line) {
            return Some((without_break(&stretch[..start]), &stretch[end..]));
        }
        start = end;
    }
    let (text, rest) = stretch.split_at(stretch.rfind(END)?);
    let (last, below) = rest.split_once('\n').unwrap_or((rest, ""));
    is_end(last).then(|| (without_break(text), below))
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
            // Ends: else the last mark, if its line ends there.
            ("<!--#pxe\na -->", &[(N::Pxe, 1, "", Some("a "))]),
            ("<!--#pxe\na--> \t\r\nb", &[(N::Pxe, 1, "", Some("a"))]),
            ("<!--#pxe\na --> b -->\nc", &[(N::Pxe, 1, "", Some("a --> b "))]),
            ("<!--#pxe\na\n----->", &[(N::Pxe, 1, "", Some("a\n---"))]),
            // Not closed.
            ("<!--#pxe\na\n--> b", &[(N::Pxe, 1, "", None)]),
            ("<!--#pxe\na\necho \"a --> b\"\nc\n", &[(N::Pxe, 1, "", None)]),
            ("<!--#pxe\na-->\nmine --> yours", &[(N::Pxe, 1, "", None)]),
            ("<!--#user-data\na --> b\n<!--#pxe\nc\n-->", &[(N::UserData, 1, "", None), (N::Pxe, 3, "", Some("c"))]),
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
            let blocks = parts(notes).filter_map(|part| match part {
                Part::Block(Block { name, line, attributes: Ok(attributes), text }) => {
                    Some((name, line, attributes, text))
                }
                _ => None,
            });
            assert_eq!(blocks.collect::<Vec<_>>(), *expected, "{notes:?}");
        }
    }
}
