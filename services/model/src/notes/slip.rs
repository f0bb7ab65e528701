//! Lines that were meant to open a block and do not.
//!
//! In comes a line that opens nothing and stands in no block; out goes which block it was probably meant to open, and
//! what is the first thing wrong with it. Serving a machine without the user data that stands in its Notes cannot be
//! mended later, so somebody should hear of it. Refused is the ordinary comment: it has no `#`, and says more than a name
//! and attributes.

use super::block::{Name, OPENING};

/// What keeps a line from opening a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Slip {
    /// Blanks before the mark.
    #[error("a blank stands before it")]
    Indented,
    /// Characters before the mark that no editor shows.
    #[error("an invisible character stands before it")]
    Invisible,
    /// Another mark.
    #[error("its mark is another one")]
    Mark,
    /// Another name.
    #[error("its name is another one")]
    Name,
    /// The name goes over into something else.
    #[error("behind the name is neither a blank nor the line's end")]
    Behind,
}

/// A line with its slip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slipped {
    /// What it was probably meant to open.
    pub(super) name: Name,
    pub(super) slip: Slip,
    /// Character of the line, from 1: where the slip is.
    pub(super) column: usize,
    /// Whether mark and name are beyond doubt. Who means to switch a block off writes something else, that can be seen.
    pub(super) plain: bool,
}

/// The slip in `line`, which opens no block.
pub(super) fn of(line: &str) -> Option<Slipped> {
    let line = line.trim_end_matches(['\n', '\r']);
    let begun = line.trim_start_matches(|c: char| c.is_whitespace() || is_invisible(c));
    let (before, marked) = line.split_at(line.len() - begun.len());
    let named = begun.strip_prefix('<')?.trim_start_matches(|c| is_of_mark(c) || is_invisible(c));
    let (mark, _) = begun.split_at(begun.len() - named.len());
    let (name, behind, exact) = meant(named, mark)?;

    let seen_before = before.contains(char::is_whitespace);
    let (slip, at) = match (before.is_empty(), seen_before, mark == OPENING, exact) {
        (false, true, _, _) => (Slip::Indented, line),
        (false, false, _, _) => (Slip::Invisible, line),
        (true, _, false, _) => (Slip::Mark, marked),
        (true, _, true, false) => (Slip::Name, named),
        (true, _, true, true) => (Slip::Behind, behind),
    };
    let plain = mark == OPENING && exact && !seen_before;
    let column = line[..line.len() - at.len()].chars().count() + 1;
    Some(Slipped { name, slip, column, plain: plain && !behind.starts_with('-') })
}

/// The name that `named` begins with or nearly does, what stands behind it, and whether it is the name itself.
fn meant<'l>(named: &'l str, mark: &str) -> Option<(Name, &'l str, bool)> {
    let hash = mark.contains('#');
    let written = named[..end_of(named, |c| c.is_ascii_alphanumeric() || c == '-' || c == '_')].trim_end_matches('-');
    if let Some(name) = Name::parse(written).filter(|_| hash) {
        return Some((name, &named[written.len()..], true));
    }
    let (word, behind) =
        named.split_at(end_of(named, |c| c.is_alphanumeric() || c == '_' || is_dash(c) || is_invisible(c)));
    let spelt = letters(word);
    let near = |name: &Name| {
        let known = letters(name.word());
        spelt == known || hash && is_near(&spelt, &known)
    };
    let name = Name::ALL.iter().copied().find(near)?;
    // Without `#` it may be anybody's comment.
    let alone = mark.trim_end() == "<!--" && !word.ends_with('-') && behind.split_whitespace().all(is_attribute);
    (hash || alone).then_some((name, behind, false))
}

fn end_of(text: &str, is_inside: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_inside(c)).unwrap_or(text.len())
}

fn is_attribute(word: &str) -> bool {
    word.contains('=') && !word.ends_with("-->")
}

/// Letters and digits of a word, as far as a name can go.
fn letters(word: &str) -> String {
    word.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).take(LONGEST).collect()
}

/// More letters than any name has.
const LONGEST: usize = 20;

/// So many letters of a name are no accident.
const SIMILAR: usize = 6;

/// Whether `word` is `name`, the beginning of it, or one letter away: too many, too few, another, or two that have
/// changed places.
fn is_near(word: &str, name: &str) -> bool {
    if word.len() >= SIMILAR && name.starts_with(word) {
        return true;
    }
    let same = word.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    let (word, name) = (&word.as_bytes()[same..], &name.as_bytes()[same..]);
    let same = word.iter().rev().zip(name.iter().rev()).take_while(|(a, b)| a == b).count();
    match (&word[..word.len() - same], &name[..name.len() - same]) {
        ([] | [_], [] | [_]) => true,
        ([a, b], [c, d]) => a == d && b == c,
        _ => false,
    }
}

fn is_of_mark(c: char) -> bool {
    matches!(c, '!' | '#') || is_dash(c) || c.is_whitespace()
}

/// What a keyboard, a word processor or a rendered page makes of `-`.
fn is_dash(c: char) -> bool {
    matches!(c, '-' | '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}')
}

/// Characters without a shape of their own: controls, joiners, marks of direction and of byte order.
fn is_invisible(c: char) -> bool {
    c.is_control() && !c.is_whitespace()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_told_with_the_first_thing_wrong_with_it() {
        use {Name as N, Slip as S};
        for (line, expected) in [
            // Nobody can have meant anything else.
            ("<!--#user-data\u{a0}encoding=base64", Some((N::UserData, S::Behind, 15, true))),
            ("<!--#user-data,encoding=base64", Some((N::UserData, S::Behind, 15, true))),
            ("<!--#imds:", Some((N::Imds, S::Behind, 10, true))),
            ("<!--#network-config>", Some((N::NetworkConfig, S::Behind, 20, true))),
            ("<!--#vendor-data\u{b}x", Some((N::VendorData, S::Behind, 17, true))),
            ("<!--#user-data\u{200b}", Some((N::UserData, S::Behind, 15, true))),
            ("<!--#user-data\rsecrets=a", Some((N::UserData, S::Behind, 15, true))),
            ("\u{feff}<!--#user-data", Some((N::UserData, S::Invisible, 1, true))),
            ("\u{200b}<!--#imds\n", Some((N::Imds, S::Invisible, 1, true))),
            ("\u{feff}<!--#user-data,x", Some((N::UserData, S::Invisible, 1, true))),
            ("\u{1}<!--#network-config encoding=base64", Some((N::NetworkConfig, S::Invisible, 1, true))),
            // Here somebody may have.
            (" <!--#user-data", Some((N::UserData, S::Indented, 1, false))),
            ("\u{a0}<!--#user-data", Some((N::UserData, S::Indented, 1, false))),
            ("\u{feff}\t<!--#imds", Some((N::Imds, S::Indented, 1, false))),
            ("\u{feff}<!--#userdata", Some((N::UserData, S::Invisible, 1, false))),
            ("<!-#user-data", Some((N::UserData, S::Mark, 1, false))),
            ("<--#user-data", Some((N::UserData, S::Mark, 1, false))),
            ("<!--# user-data", Some((N::UserData, S::Mark, 1, false))),
            ("<!-- #network-config", Some((N::NetworkConfig, S::Mark, 1, false))),
            ("<!--##vendor-data", Some((N::VendorData, S::Mark, 1, false))),
            ("<!\u{2014}#imds", Some((N::Imds, S::Mark, 1, false))),
            ("<!--user-data", Some((N::UserData, S::Mark, 1, false))),
            ("<!-- imds encoding=base64", Some((N::Imds, S::Mark, 1, false))),
            ("<!--#userdata", Some((N::UserData, S::Name, 6, false))),
            ("<!--#User-Data", Some((N::UserData, S::Name, 6, false))),
            ("<!--#network_config", Some((N::NetworkConfig, S::Name, 6, false))),
            ("<!--#network", Some((N::NetworkConfig, S::Name, 6, false))),
            ("<!--#user\u{2013}data", Some((N::UserData, S::Name, 6, false))),
            ("<!--#user\u{200b}-data", Some((N::UserData, S::Name, 6, false))),
            ("<!--#usr-data", Some((N::UserData, S::Name, 6, false))),
            ("<!--#userdatas", Some((N::UserData, S::Name, 6, false))),
            ("<!--#vendro-data", Some((N::VendorData, S::Name, 6, false))),
            ("<!--#idms", Some((N::Imds, S::Name, 6, false))),
            ("<!--#imd", Some((N::Imds, S::Name, 6, false))),
            ("<!--#user-data-->", Some((N::UserData, S::Behind, 15, false))),
            // Comments, directives of others, and what only speaks of blocks.
            ("", None),
            ("<!-- a comment -->", None),
            ("<!-- vendor: Dell -->", None),
            ("<!-- network: vlan 7 -->", None),
            ("<!-- network -->", None),
            ("<!-- user-data -->", None),
            ("<!--user-data-->", None),
            ("<!-- user-data: ask Kim", None),
            ("<!-- imds of the shop", None),
            ("<!-- userdat", None),
            ("<!-- pxe encoding=base64 -->", None),
            ("<!--#", None),
            ("<!--#other", None),
            ("<!--#include file=\"x\" -->", None),
            ("<!--#user", None),
            ("<user-data>", None),
            ("- user-data", None),
            ("# user-data", None),
            ("the block `<!--#user-data` is below", None),
            ("-->", None),
        ] {
            let found = of(line).map(|Slipped { name, slip, column, plain }| (name, slip, column, plain));
            assert_eq!(found, expected, "{line:?}");
        }
    }

    #[test]
    fn a_letter_may_be_wrong_and_two_may_not() {
        for (word, near) in [
            ("userdata", true),
            ("userdat", true),
            ("userda", true),
            ("userd", false),
            ("serdata", true),
            ("userxdata", true),
            ("uzerdata", true),
            ("usredata", true),
            ("uzerdatas", false),
            ("serdat", false),
            ("atadresu", false),
            ("", false),
        ] {
            assert_eq!(is_near(word, "userdata"), near, "{word}");
        }
    }
}
