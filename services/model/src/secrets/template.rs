//! User data with places for secrets.
//!
//! In come the block's bytes, and then the values of one set; out goes the document. `{{ secret "field" }}` is a place,
//! blanks within the braces as you like; nothing else in braces is. It is gone through once: a value is put in as it is and
//! never looked at. Refused: a document in which a place is left. Nothing here prints a value.

use std::collections::BTreeSet;
use std::fmt;

use zeroize::Zeroizing;

/// A field's name: anything but a quotation mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Field(String);

impl Field {
    /// As written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// User data, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct Template<'t>(Vec<Piece<'t>>);

#[derive(Clone, PartialEq, Eq)]
enum Piece<'t> {
    Text(&'t [u8]),
    Place(Field),
}

impl Piece<'_> {
    fn field(&self) -> Option<&Field> {
        match self {
            Self::Text(_) => None,
            Self::Place(field) => Some(field),
        }
    }
}

/// Why there is no document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfilled<E> {
    /// A place for which there is no value, and why.
    #[error(transparent)]
    Value(E),
    /// See [`Overflow`].
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

/// The document would be larger than any may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("with its secrets it has {bytes} bytes, and {limit} at most are served")]
pub struct Overflow {
    /// What it would have.
    pub bytes: usize,
    /// What it may have.
    pub limit: usize,
}

/// What a place looks like. Blanks are those of ASCII.
const OPENING: &[u8] = b"{{";
const WORD: &[u8] = b"secret";
const CLOSING: &[u8] = b"}}";

impl<'t> Template<'t> {
    /// Takes user data apart. Text is not copied.
    #[must_use]
    pub fn parse(text: &'t [u8]) -> Self {
        let (mut pieces, mut begun, mut at) = (Vec::new(), 0, 0);
        while let Some(found) = text[at..].windows(OPENING.len()).position(|window| window == OPENING) {
            let opening = at + found;
            match place(&text[opening..]) {
                Some((field, length)) => {
                    pieces.extend((begun < opening).then(|| Piece::Text(&text[begun..opening])));
                    pieces.push(Piece::Place(field));
                    (begun, at) = (opening + length, opening + length);
                }
                // `{{{ secret "a" }}` has one at its second brace.
                None => at = opening + 1,
            }
        }
        pieces.extend((begun < text.len()).then(|| Piece::Text(&text[begun..])));
        Self(pieces)
    }

    /// The fields there are places for, each once.
    #[must_use]
    pub fn fields(&self) -> BTreeSet<&Field> {
        self.0.iter().filter_map(Piece::field).collect()
    }

    /// The document, of `limit` bytes at most. There is room for all of it from the start, so that no part of a value is
    /// left behind elsewhere.
    ///
    /// # Errors
    /// [`Unfilled`], and then nothing of the document.
    pub fn fill<'v, E>(
        &self,
        limit: usize,
        value: impl Fn(&Field) -> Result<&'v str, E>,
    ) -> Result<Zeroizing<Vec<u8>>, Unfilled<E>> {
        let parts = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => Ok(*text),
            Piece::Place(field) => value(field).map(str::as_bytes),
        });
        let parts = parts.collect::<Result<Vec<_>, _>>().map_err(Unfilled::Value)?;
        // A place takes twenty bytes, and a value may have a quarter of a million.
        let bytes = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        if bytes > limit {
            return Err(Overflow { bytes, limit }.into());
        }
        let mut document = Zeroizing::new(Vec::with_capacity(bytes));
        parts.iter().for_each(|part| document.extend_from_slice(part));
        Ok(document)
    }
}

/// Whether there is a place in it.
#[must_use]
pub fn has_places(text: &[u8]) -> bool {
    !Template::parse(text).fields().is_empty()
}

/// The field of the place that `text` begins with, and the place's length.
fn place(text: &[u8]) -> Option<(Field, usize)> {
    let rest = text.strip_prefix(OPENING)?.trim_ascii_start().strip_prefix(WORD)?;
    let rest = rest.trim_ascii_start().strip_prefix(b"\"")?;
    let length = rest.iter().position(|byte| *byte == b'"')?;
    let (name, rest) = rest.split_at(length);
    let name = str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('\n'))?;
    let rest = rest[1..].trim_ascii_start().strip_prefix(CLOSING)?;
    Some((Field(name.to_owned()), text.len() - rest.len()))
}

/// Neither the text, which stands in Notes, nor anything of a value.
impl fmt::Debug for Template<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.fields()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fill(text: &str) -> Result<String, String> {
        let value = |field: &Field| match field.as_str() {
            "a" => Some("A"),
            "empty" => Some(""),
            "nested" => Some("{{ secret \"a\" }}"),
            "lines" => Some("1\n2"),
            "x y.z/ü" => Some("odd"),
            _ => None,
        };
        let filled =
            Template::parse(text.as_bytes()).fill(1 << 20, |field| value(field).ok_or_else(|| field.0.clone()));
        filled.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).map_err(|unfilled| match unfilled {
            Unfilled::Value(field) => field,
            Unfilled::Overflow(overflow) => panic!("{overflow}"),
        })
    }

    #[test]
    fn places_are_filled_and_nothing_else_is_touched() {
        for (text, expected) in [
            ("", Ok("")),
            ("plain", Ok("plain")),
            ("{{ secret \"a\" }}", Ok("A")),
            ("x{{secret \"a\"}}y{{   secret\t\"a\"\n}}z", Ok("xAyAz")),
            ("{{ secret \"empty\" }}", Ok("")),
            ("{{ secret \"x y.z/ü\" }}", Ok("odd")),
            // Values are never looked at.
            ("{{ secret \"nested\" }}", Ok("{{ secret \"a\" }}")),
            ("{{ secret \"lines\" }}!", Ok("1\n2!")),
            // Braces of others.
            ("{{ secrets \"a\" }}", Ok("{{ secrets \"a\" }}")),
            ("{{ secret a }}", Ok("{{ secret a }}")),
            ("{{ secret 'a' }}", Ok("{{ secret 'a' }}")),
            ("{{ secret \"\" }}", Ok("{{ secret \"\" }}")),
            ("{{ secret \"a\" | upper }}", Ok("{{ secret \"a\" | upper }}")),
            ("{{ secret \"a\" }", Ok("{{ secret \"a\" }")),
            ("{{ secret \"a", Ok("{{ secret \"a")),
            ("{{ secret \"a\nb\" }}", Ok("{{ secret \"a\nb\" }}")),
            ("{{- secret \"a\" -}}", Ok("{{- secret \"a\" -}}")),
            ("{ { secret \"a\" } }", Ok("{ { secret \"a\" } }")),
            ("{{ ds.meta_data }}{{ secret \"a\" }}", Ok("{{ ds.meta_data }}A")),
            ("{{{ secret \"a\" }}}", Ok("{A}")),
            ("{{ {{ secret \"a\" }}", Ok("{{ A")),
            ("ü{{ secret \"a\" }}ü", Ok("üAü")),
            ("{{ secret \"b\" }}", Err("b")),
            ("{{ secret \"a\" }}{{ secret \"b\" }}", Err("b")),
        ] {
            assert_eq!(fill(text), expected.map(str::to_owned).map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let text = b"\xff{{ secret \"a\" }}\x00{{ secret \"\xff\" }}";
        let filled = Template::parse(text).fill(64, |_| Ok::<_, ()>("A")).unwrap();
        assert_eq!(**filled, *b"\xffA\x00{{ secret \"\xff\" }}");
    }

    #[test]
    fn fields_are_named_and_nothing_is_shown() {
        let template = Template::parse(b"canary {{ secret \"b\" }}{{ secret \"a\" }}{{ secret \"b\" }}");
        assert_eq!(template.fields().into_iter().map(Field::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert!(!format!("{template:?}").contains("canary"));
    }

    #[test]
    fn a_document_has_an_end() {
        let template = Template::parse(b"12{{ secret \"a\" }}{{ secret \"a\" }}");
        let fill = |limit, value| template.fill(limit, |_| Ok::<_, ()>(value)).map(|bytes| bytes.len());
        assert_eq!(fill(8, "abc"), Ok(8));
        assert_eq!(fill(7, "abc"), Err(Overflow { bytes: 8, limit: 7 }.into()));
        assert_eq!(fill(2, ""), Ok(2));
    }

    #[test]
    fn a_megabyte_of_braces_is_gone_through_once() {
        let text = "{{ secret \"".repeat(100_000);
        assert!(Template::parse(text.as_bytes()).fields().is_empty());
    }
}
