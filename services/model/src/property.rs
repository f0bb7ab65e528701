//! Property strings: the `field=value,field=value` of options such as `net0` and `smbios1`.
//!
//! In come a [`Format`] and the text; out go the fields, each with a value that passed its check. Refused as a whole,
//! as Proxmox does, for a single bad, unknown, doubled or missing field. There is no way to escape a comma.

use std::collections::BTreeMap;

use crate::format::is_all_blank;

/// Whether a value may stand in its field.
type Check = fn(&str) -> bool;

/// What a property string may hold.
pub(crate) struct Format {
    /// Every field and what its value must pass.
    pub(crate) fields: &'static [(&'static str, Check)],
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
    /// `field=` or `=value`.
    #[error("a field has no name or no value")]
    Incomplete,
    /// A field this option does not have.
    #[error("unknown field")]
    UnknownField,
    /// A field twice, perhaps once by its shorthand.
    #[error("field `{0}` is given twice")]
    Twice(&'static str),
    /// A value without a field, in an option that has no such field.
    #[error("a value has no field name")]
    Nameless,
    /// A value that does not pass its check.
    #[error("the value of field `{0}` is not valid")]
    BadValue(&'static str),
    /// A field that must be there.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
}

/// The fields that are there, with the values as written.
pub(crate) type Fields<'t> = BTreeMap<&'static str, &'t str>;

/// Reads a property string.
pub(crate) fn parse<'t>(format: &Format, text: &'t str) -> Result<Fields<'t>, BadProperty> {
    let mut fields = Fields::new();
    for part in text.split(',').filter(|part| !is_all_blank(part)) {
        match part.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => named(format, name, value, &mut fields)?,
            Some(_) => return Err(BadProperty::Incomplete),
            None => {
                let field = format.nameless.ok_or(BadProperty::Nameless)?;
                put_once(&mut fields, field, part)?;
            }
        }
    }
    for (field, passes) in format.fields {
        match fields.get(field) {
            Some(value) if !passes(value) => return Err(BadProperty::BadValue(field)),
            None if format.required.contains(field) => return Err(BadProperty::Missing(field)),
            _ => {}
        }
    }
    for (field, other) in format.needs {
        if fields.contains_key(field) && !fields.contains_key(other) {
            return Err(BadProperty::Missing(other));
        }
    }
    Ok(fields)
}

fn named<'t>(format: &Format, name: &str, value: &'t str, fields: &mut Fields<'t>) -> Result<(), BadProperty> {
    if let Some((field, _)) = format.fields.iter().find(|(field, _)| *field == name) {
        return put_once(fields, field, value);
    }
    let shorthand = format.shorthand.as_ref().ok_or(BadProperty::UnknownField)?;
    let word = shorthand.words.iter().find(|word| **word == name).ok_or(BadProperty::UnknownField)?;
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
        fields: &[("kind", |kind| kind == "cat" || kind == "dog"), ("name", |_| true), ("collar", |_| true)],
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
            ("cat,name=", Err(Bad::Incomplete)),
            ("=cat", Err(Bad::Incomplete)),
            ("cat,age=3", Err(Bad::UnknownField)),
            ("cat, name=Tom", Err(Bad::UnknownField)),
            ("cow", Err(Bad::BadValue("kind"))),
            ("name=Tom", Err(Bad::Missing("kind"))),
            ("cat,collar=red", Err(Bad::Missing("name"))),
            ("", Err(Bad::Missing("kind"))),
        ] {
            assert_eq!(parse(&PET, text).map(|fields| fields.into_iter().collect::<Vec<_>>()), expected, "{text}");
        }
        assert_eq!(parse(&PLAIN, "cat"), Err(Bad::Nameless));
        assert_eq!(parse(&PLAIN, "cat=Tom"), Err(Bad::UnknownField));
        assert_eq!(parse(&PLAIN, ""), Ok(Fields::new()));
    }
}
