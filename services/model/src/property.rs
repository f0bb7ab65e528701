//! Property strings: the `field=value,field=value` of options such as `net0` and `smbios1`.
//!
//! In come a [`Format`] and the text; out go the fields, each with a value that passed its check. Refused as a whole,
//! as Proxmox does, for a single bad, unknown, doubled or missing field. There is no way to escape a comma.

use std::collections::BTreeMap;
use std::fmt;

use crate::format::is_all_blank;

/// Whether a value may stand in its field.
type Check = fn(&str) -> bool;

/// A field: its name, what its value must be, in words, and the check that it must pass.
pub(crate) type Field = (&'static str, &'static str, Check);

/// What a property string may hold.
pub(crate) struct Format {
    /// Every field.
    pub(crate) fields: &'static [Field],
    /// The field that a value without a name belongs to.
    pub(crate) nameless: Option<&'static str>,
    /// Other names that stand for two fields at once.
    pub(crate) shorthand: Option<Shorthand>,
    /// Fields that must be there.
    pub(crate) required: &'static [&'static str],
    /// Fields that make no sense without another.
    pub(crate) needs: &'static [(&'static str, &'static str)],
}

/// `virtio=BC:24:…` says `model=virtio` and `macaddr=BC:24:…`.
pub(crate) struct Shorthand {
    /// The names that can be used so.
    pub(crate) words: &'static [&'static str],
    /// The field the name itself is a value of.
    pub(crate) word_field: &'static str,
    /// The field the value belongs to.
    pub(crate) value_field: &'static str,
}

/// Why Proxmox drops a property string. Names fields of ours only, never a text from the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProperty {
    /// `=value`, or `field=` of a field that this option does not have.
    #[error("a field has no name or no value")]
    Incomplete,
    /// `field=`
    #[error("`{0}` has no value")]
    NoValue(&'static str),
    /// A field this option does not have.
    #[error("unknown field; there are {0}")]
    UnknownField(Names),
    /// A field twice, perhaps once by its shorthand.
    #[error("`{0}` is given twice")]
    Twice(&'static str),
    /// A value without a field, in an option that has no such field.
    #[error("a value has no field name; there are {0}")]
    Nameless(Names),
    /// A value that does not pass its check.
    #[error("`{field}` must be {wanted}")]
    BadValue {
        /// Whose value.
        field: &'static str,
        /// What it must be.
        wanted: &'static str,
    },
    /// A field that must be there.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A field that makes no sense without another.
    #[error("`{field}` needs `{other}` beside it")]
    Needs {
        /// The one that is there.
        field: &'static str,
        /// The one that is not.
        other: &'static str,
    },
}

/// The names of the fields that an option has.
#[derive(Clone, Copy)]
pub struct Names(&'static [Field]);

impl Names {
    fn all(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, ..)| *name)
    }
}

/// `a, b and c`
impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.len().saturating_sub(1);
        self.all().enumerate().try_for_each(|(at, name)| match at {
            0 => f.write_str(name),
            at if at == last => write!(f, " and {name}"),
            _ => write!(f, ", {name}"),
        })
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.all().eq(other.all())
    }
}

impl Eq for Names {}

/// The fields that are there, with the values as written.
pub(crate) type Fields<'t> = BTreeMap<&'static str, &'t str>;

impl Format {
    fn names(&self) -> Names {
        Names(self.fields)
    }

    fn field(&self, name: &str) -> Option<&'static str> {
        self.fields.iter().map(|(field, ..)| *field).find(|field| *field == name)
    }
}

/// Reads a property string.
pub(crate) fn parse<'t>(format: &Format, text: &'t str) -> Result<Fields<'t>, BadProperty> {
    let mut fields = Fields::new();
    for part in text.split(',').filter(|part| !is_all_blank(part)) {
        match part.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => named(format, name, value, &mut fields)?,
            Some((name, _)) => return Err(format.field(name).map_or(BadProperty::Incomplete, BadProperty::NoValue)),
            None => {
                let field = format.nameless.ok_or_else(|| BadProperty::Nameless(format.names()))?;
                put_once(&mut fields, field, part)?;
            }
        }
    }
    for (field, wanted, passes) in format.fields {
        match fields.get(field) {
            Some(value) if !passes(value) => return Err(BadProperty::BadValue { field, wanted }),
            None if format.required.contains(field) => return Err(BadProperty::Missing(field)),
            _ => {}
        }
    }
    for (field, other) in format.needs {
        if fields.contains_key(field) && !fields.contains_key(other) {
            return Err(BadProperty::Needs { field, other });
        }
    }
    Ok(fields)
}

fn named<'t>(format: &Format, name: &str, value: &'t str, fields: &mut Fields<'t>) -> Result<(), BadProperty> {
    if let Some(field) = format.field(name) {
        return put_once(fields, field, value);
    }
    let unknown = BadProperty::UnknownField(format.names());
    let shorthand = format.shorthand.as_ref().ok_or(unknown)?;
    let word = shorthand.words.iter().find(|word| **word == name).ok_or(unknown)?;
    put_once(fields, shorthand.word_field, word)?;
    // Proxmox looks for a double only under the name as written, so a shorthand silently wins over an earlier field.
    fields.insert(shorthand.value_field, value);
    Ok(())
}

fn put_once<'t>(fields: &mut Fields<'t>, field: &'static str, value: &'t str) -> Result<(), BadProperty> {
    match fields.insert(field, value) {
        None => Ok(()),
        Some(_) => Err(BadProperty::Twice(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PET: Format = Format {
        fields: &[
            ("kind", "cat or dog", |kind| kind == "cat" || kind == "dog"),
            ("name", "a name", |_| true),
            ("collar", "a colour", |_| true),
        ],
        nameless: Some("kind"),
        shorthand: Some(Shorthand { words: &["cat", "dog"], word_field: "kind", value_field: "name" }),
        required: &["kind"],
        needs: &[("collar", "name")],
    };
    const PLAIN: Format = Format { nameless: None, shorthand: None, required: &[], needs: &[], ..PET };

    #[test]
    fn one_bad_field_drops_the_whole() {
        use BadProperty as Bad;
        for (text, expected) in [
            ("cat", Ok(vec![("kind", "cat")])),
            ("kind=cat,name=Tom", Ok(vec![("kind", "cat"), ("name", "Tom")])),
            (", ,cat=Tom,,", Ok(vec![("kind", "cat"), ("name", "Tom")])),
            ("name==,cat", Ok(vec![("kind", "cat"), ("name", "=")])),
            ("name=Ann,cat=Tom", Ok(vec![("kind", "cat"), ("name", "Tom")])),
            ("cat=Tom,name=Ann", Err(Bad::Twice("name"))),
            ("cat=Tom,kind=dog", Err(Bad::Twice("kind"))),
            ("kind=dog,cat=Tom", Err(Bad::Twice("kind"))),
            ("cat=Tom,dog", Err(Bad::Twice("kind"))),
            ("cat,name=", Err(Bad::NoValue("name"))),
            ("cat,age=", Err(Bad::Incomplete)),
            ("=cat", Err(Bad::Incomplete)),
            ("cat,age=3", Err(Bad::UnknownField(PET.names()))),
            ("cat, name=Tom", Err(Bad::UnknownField(PET.names()))),
            ("cow", Err(Bad::BadValue { field: "kind", wanted: "cat or dog" })),
            ("name=Tom", Err(Bad::Missing("kind"))),
            ("cat,collar=red", Err(Bad::Needs { field: "collar", other: "name" })),
            ("", Err(Bad::Missing("kind"))),
        ] {
            assert_eq!(parse(&PET, text).map(|fields| fields.into_iter().collect::<Vec<_>>()), expected, "{text}");
        }
        assert_eq!(parse(&PLAIN, "cat"), Err(Bad::Nameless(PLAIN.names())));
        assert_eq!(parse(&PLAIN, "cat=Tom"), Err(Bad::UnknownField(PET.names())));
        assert_eq!(parse(&PLAIN, ""), Ok(Fields::new()));
    }
    #[test]
    fn a_reason_names_the_field_and_what_is_wanted() {
        let said = |format: &Format, text: &str| parse(format, text).unwrap_err().to_string();
        assert_eq!(said(&PET, "cow"), "`kind` must be cat or dog");
        assert_eq!(said(&PET, "cat,age=3"), "unknown field; there are kind, name and collar");
        assert_eq!(said(&PLAIN, "cat"), "a value has no field name; there are kind, name and collar");
        assert_eq!(said(&PET, "cat,collar=red"), "`collar` needs `name` beside it");
        assert_eq!(said(&PET, "cat,name="), "`name` has no value");
    }
}
