//! Lines that were meant to open a block and do not.
//!
//! In comes a line that opens nothing and stands in no block; out goes which block it was probably meant to open, and
//! what is the first thing wrong with it. Serving a machine without the user data that stands in its Notes cannot be
//! mended later, so somebody should hear of it. Refused is the ordinary comment: it has no `#`, and says more than a name
//! and attributes. Refused, too, is the sentence about blocks, in a list or a quotation: it goes on behind the name.

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
    /// What marks a quotation stands before the mark.
    #[error("a `>` stands before it, as in a quotation")]
    Quoted,
    /// What marks an item of a list stands before the mark.
    #[error("the mark of a list's item stands before it")]
    Listed,
    /// An editor has made characters of it that are shown like the mark.
    #[error("its `<` is written as `&lt;` or `\\<`")]
    Escaped,
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
    pub(super) meant: Meant,
    pub(super) slip: Slip,
    /// Character of the line, from 1: where the slip is.
    pub(super) column: usize,
    /// Whether mark and name are beyond doubt. Who means to switch a block off writes something else, that can be seen.
    pub(super) plain: bool,
}

/// What a line was to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meant {
    Block(Name),
    /// NoCloud's other file, of which there is no block.
    MetaData,
}

/// What NoCloud calls what it has besides user data.
pub(super) const META_DATA: &str = "meta-data";

/// What others call what is in a block, letters and digits only, and which block it is.
const ALSO_CALLED: &[(&str, Meant)] = &[
    ("metadata", Meant::MetaData),
    ("cloudconfig", Meant::Block(Name::UserData)),
    ("cloudinit", Meant::Block(Name::UserData)),
    ("ignition", Meant::Block(Name::UserData)),
    ("machineconfig", Meant::Block(Name::UserData)),
    ("networkdata", Meant::Block(Name::NetworkConfig)),
    ("netplan", Meant::Block(Name::NetworkConfig)),
    ("policy", Meant::Block(Name::Imds)),
    ("pveimds", Meant::Block(Name::Imds)),
];

/// The slip in `line`, which opens no block.
pub(super) fn of(line: &str) -> Option<Slipped> {
    let line = line.trim_end_matches(['\n', '\r']);
    let begun = line.trim_start_matches(is_unseen);
    let (framed, marked) = unframed(begun);
    let (escaped, rest) = less_than(marked)?;
    let named = rest.trim_start_matches(|c| is_of_mark(c) || is_invisible(c));
    let (mark, _) = rest.split_at(rest.len() - named.len());
    let Found { meant, behind, exact } = meant(named, mark)?;

    // What an editor has put around it stands around sentences too.
    let made = framed.or(escaped);
    if made.is_some() && !(mark.contains('#') && behind.split_whitespace().all(is_attribute)) {
        return None;
    }
    let before = &line[..line.len() - begun.len()];
    let seen_before = before.contains(char::is_whitespace);
    let right = mark == &OPENING[1..];
    let (slip, at) = match (made, before.is_empty(), seen_before, right, exact) {
        (Some(slip), ..) => (slip, begun),
        (None, false, true, _, _) => (Slip::Indented, line),
        (None, false, false, _, _) => (Slip::Invisible, line),
        (None, true, _, false, _) => (Slip::Mark, marked),
        (None, true, _, true, false) => (Slip::Name, named),
        (None, true, _, true, true) => (Slip::Behind, behind),
    };
    let plain = right && exact && made.is_none() && !seen_before && !behind.starts_with('-');
    let column = line[..line.len() - at.len()].chars().count() + 1;
    Some(Slipped { meant, slip, column, plain })
}

/// What stands behind the marks of quotations and of lists' items, and what the first of them marks.
fn unframed(begun: &str) -> (Option<Slip>, &str) {
    let (mut first, mut rest) = (None, begun);
    loop {
        let (slip, behind) = if let Some(behind) = rest.strip_prefix('>') {
            (Slip::Quoted, behind)
        } else if let Some(behind) = item(rest) {
            (Slip::Listed, behind)
        } else {
            return (first, rest);
        };
        first = first.or(Some(slip));
        rest = behind.trim_start_matches(is_unseen);
    }
}

/// What stands behind the mark of a list's item, which a blank ends: `-`, `*`, `+`, `1.` or `1)`.
fn item(text: &str) -> Option<&str> {
    let numbered = || text.trim_start_matches(|c: char| c.is_ascii_digit());
    let behind = match text.strip_prefix(['-', '*', '+']) {
        Some(behind) => behind,
        None => Some(numbered()).filter(|rest| rest.len() < text.len())?.strip_prefix(['.', ')'])?,
    };
    behind.starts_with(char::is_whitespace).then_some(behind)
}

/// What stands behind `<`, and how that is written.
fn less_than(marked: &str) -> Option<(Option<Slip>, &str)> {
    if let Some(rest) = marked.strip_prefix('<') {
        return Some((None, rest));
    }
    let rest = marked.strip_prefix("&lt;").or_else(|| marked.strip_prefix("\\<"))?;
    Some((Some(Slip::Escaped), rest))
}

struct Found<'l> {
    meant: Meant,
    /// What stands behind the name.
    behind: &'l str,
    /// Whether it is the name itself.
    exact: bool,
}

/// What `named` begins with, or nearly does.
fn meant<'l>(named: &'l str, mark: &str) -> Option<Found<'l>> {
    let hash = mark.contains('#');
    let written = named[..end_of(named, |c| c.is_ascii_alphanumeric() || c == '-' || c == '_')].trim_end_matches('-');
    if let Some(name) = Name::parse(written).filter(|_| hash) {
        return Some(Found { meant: Meant::Block(name), behind: &named[written.len()..], exact: true });
    }
    let (word, behind) =
        named.split_at(end_of(named, |c| c.is_alphanumeric() || c == '_' || is_dash(c) || is_invisible(c)));
    let spelt = letters(word);
    let near = |name: &Name| {
        let known = letters(name.word());
        spelt == known || hash && is_near(&spelt, &known)
    };
    let called = || ALSO_CALLED.iter().find(|(called, _)| hash && *called == spelt).map(|(_, meant)| *meant);
    let meant = Name::ALL.iter().copied().find(near).map(Meant::Block).or_else(called)?;
    // Without `#` it may be anybody's comment.
    let alone = mark.trim_end() == "!--" && !word.ends_with('-') && behind.split_whitespace().all(is_attribute);
    (hash || alone).then_some(Found { meant, behind, exact: false })
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

/// What may stand at the beginning of a line without being seen.
fn is_unseen(c: char) -> bool {
    c.is_whitespace() || is_invisible(c)
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
mod tests;
