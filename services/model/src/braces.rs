//! Texts with words in braces, as administrators write templates.
//!
//! In comes a text; out go its parts in their order. What the words mean is for whoever has the template. Refused: a brace
//! without its other.

/// A part of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    /// What stands there as it is, never empty.
    Text(&'t str),
    /// What stands between a brace and the next that closes.
    Word(&'t str),
}

/// The parts of `text`. `None`: a brace has no other.
pub(crate) fn parts(text: &str) -> Option<Vec<Part<'_>>> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, braced) = rest.split_at(at);
        parts.extend((!before.is_empty()).then_some(Part::Text(before)));
        let (word, behind) = braced.strip_prefix('{')?.split_once('}')?;
        parts.push(Part::Word(word));
        rest = behind;
    }
    parts.extend((!rest.is_empty()).then_some(Part::Text(rest)));
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_apart_at_its_braces() {
        use Part::{Text, Word};
        for (text, expected) in [
            ("", Some(&[][..])),
            ("a", Some(&[Text("a")])),
            ("{a}", Some(&[Word("a")])),
            ("a/{b}-{c}d", Some(&[Text("a/"), Word("b"), Text("-"), Word("c"), Text("d")])),
            ("{}", Some(&[Word("")])),
            ("{{a}", Some(&[Word("{a")])),
            ("{a", None),
            ("a}", None),
            ("{{a}}", None),
        ] {
            assert_eq!(parts(text).as_deref(), expected, "{text}");
        }
    }
}
