//! Whom a token is for, as a request says it.
//!
//! In comes a body and its content type; out go the audiences, each once, in their order. A form is what `curl -d` sends
//! and what the contract names; JSON is for those who have no form. Refused: `multipart/form-data`, whose parts nobody
//! here keeps, and all that is not UTF-8 once it is unpacked.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

/// Most audiences of one token.
pub const MAX_AUDIENCES: usize = 8;

/// Characters of the longest one.
pub const MAX_AUDIENCE: usize = 512;

/// The form's field and the key in JSON.
const FIELD: &str = "audience";

/// Who a token is for: 1 to [`MAX_AUDIENCE`] characters that can be seen: what a log writes as a longer escape is none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Audience(String);

impl Audience {
    /// Reads one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_seen = |c: char| matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1;
        let fits = (1..=MAX_AUDIENCE).contains(&text.chars().count()) && text.chars().all(is_seen);
        fits.then(|| Self(text.to_owned()))
    }

    /// As written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The audiences of one token: 1 to [`MAX_AUDIENCES`], no two of them the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked(Vec<Audience>);

/// Why a body asks for nothing. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAsk {
    /// Neither a form nor JSON.
    #[error("the content type is neither application/x-www-form-urlencoded nor application/json")]
    ContentType,
    /// Not what its content type says.
    #[error("the body is not what its content type says, or not UTF-8")]
    Body,
    /// It names none.
    #[error("no `{FIELD}` is given")]
    Nobody,
    /// It names too many.
    #[error("more than {MAX_AUDIENCES} audiences are given")]
    TooMany,
    /// One is empty, too long or has a control character.
    #[error("an audience is not 1 to {MAX_AUDIENCE} printable characters")]
    Audience,
}

impl Asked {
    /// Reads a body. Without a content type it is a form, as HTTP libraries send one when told nothing.
    ///
    /// # Errors
    /// [`BadAsk`]
    pub fn read(content_type: Option<&str>, body: &[u8]) -> Result<Self, BadAsk> {
        let essence = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        let names = match essence.to_ascii_lowercase().as_str() {
            "" | "application/x-www-form-urlencoded" => form(body)?,
            "application/json" => json(body)?,
            _ => return Err(BadAsk::ContentType),
        };
        let mut asked = Vec::new();
        for name in &names {
            let audience = Audience::parse(name).ok_or(BadAsk::Audience)?;
            if !asked.contains(&audience) {
                asked.push(audience);
            }
            if asked.len() > MAX_AUDIENCES {
                return Err(BadAsk::TooMany);
            }
        }
        if asked.is_empty() { Err(BadAsk::Nobody) } else { Ok(Self(asked)) }
    }

    /// In the order they were asked for.
    #[must_use]
    pub fn audiences(&self) -> &[Audience] {
        &self.0
    }

    /// Whether each of them is in each of these lists; `None` has them all.
    ///
    /// # Errors
    /// The first that is not, and whose list it was.
    pub fn allowed_by(&self, lists: [(Option<&[Audience]>, &'static str); 2]) -> Result<(), NotAllowed> {
        for (list, whose) in lists {
            let Some(list) = list else { continue };
            if let Some(audience) = self.0.iter().find(|audience| !list.contains(audience)) {
                return Err(NotAllowed { audience: audience.clone(), whose });
            }
        }
        Ok(())
    }
}

/// An audience that is in no list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audience {:?} is not among those that {whose} allows", audience.0)]
pub struct NotAllowed {
    audience: Audience,
    whose: &'static str,
}

/// The values of the field. Others are nobody's business here.
fn form(body: &[u8]) -> Result<Vec<Cow<'_, str>>, BadAsk> {
    let text = str::from_utf8(body).map_err(|_| BadAsk::Body)?;
    // The line's end is what a shell leaves behind a body that it reads from a file.
    let pairs = text.trim_end_matches(['\r', '\n']).split('&').filter(|pair| !pair.is_empty());
    let mut values = Vec::new();
    for pair in pairs {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if unpacked(name)? == FIELD {
            values.push(unpacked(value)?);
        }
    }
    Ok(values)
}

/// `application/x-www-form-urlencoded` (WHATWG URL §5.1), but for bytes that are no text, which are refused.
fn unpacked(text: &str) -> Result<Cow<'_, str>, BadAsk> {
    match text.contains('+') {
        true => percent_decode_str(&text.replace('+', " ")).decode_utf8().map(|text| Cow::Owned(text.into_owned())),
        false => percent_decode_str(text).decode_utf8(),
    }
    .map_err(|_| BadAsk::Body)
}

/// One text or a list of them.
fn json(body: &[u8]) -> Result<Vec<Cow<'_, str>>, BadAsk> {
    #[derive(Deserialize)]
    struct Document {
        #[serde(default)]
        audience: Named,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Named {
        One(String),
        Many(Vec<String>),
    }
    impl Default for Named {
        fn default() -> Self {
            Self::Many(Vec::new())
        }
    }
    // A list is a structure too, to a reader of structures.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(BadAsk::Body);
    }
    let Document { audience } = serde_json::from_slice(body).map_err(|_| BadAsk::Body)?;
    let names = match audience {
        Named::One(name) => vec![name],
        Named::Many(names) => names,
    };
    Ok(names.into_iter().map(Cow::Owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_its_audiences_or_is_refused() {
        const FORM: Option<&str> = Some("application/x-www-form-urlencoded");
        const JSON: Option<&str> = Some("application/json; charset=utf-8");
        let nine = |between: &str| (0..9).map(|n| format!("audience={n}")).collect::<Vec<_>>().join(between);
        let (long, longer) = ("x".repeat(MAX_AUDIENCE), "ü".repeat(MAX_AUDIENCE + 1));
        for (kind, body, expected) in [
            (FORM, "audience=https://vault.example.com".into(), Ok(&["https://vault.example.com"][..])),
            (None, "audience=a".into(), Ok(&["a"])),
            (Some("APPLICATION/X-WWW-Form-Urlencoded ; charset=UTF-8"), "audience=a\r\n".into(), Ok(&["a"])),
            (FORM, "audience=https%3A%2F%2Fa%3Fx%3D1%26y&x=1&audience=b+c%2B".into(), Ok(&["https://a?x=1&y", "b c+"])),
            (FORM, "%61udience=a&&audience=b=c&audience=a".into(), Ok(&["a", "b=c"])),
            (FORM, "audience=%C3%BC".into(), Ok(&["ü"])),
            (FORM, "audience=%".into(), Ok(&["%"])),
            (FORM, format!("audience={long}"), Ok(&[long.as_str()])),
            (FORM, String::new(), Err(BadAsk::Nobody)),
            (FORM, "Audience=a".into(), Err(BadAsk::Nobody)),
            (FORM, "audience=".into(), Err(BadAsk::Audience)),
            (FORM, "audience".into(), Err(BadAsk::Audience)),
            (FORM, "audience=a&audience=".into(), Err(BadAsk::Audience)),
            (FORM, "audience=a%00b".into(), Err(BadAsk::Audience)),
            (FORM, "audience=a%E2%80%AEb".into(), Err(BadAsk::Audience)),
            (FORM, "audience=a\nb".into(), Err(BadAsk::Audience)),
            (FORM, format!("audience={longer}"), Err(BadAsk::Audience)),
            (FORM, "audience=%FF".into(), Err(BadAsk::Body)),
            (FORM, "%FF=a&audience=b".into(), Err(BadAsk::Body)),
            (FORM, nine("&"), Err(BadAsk::TooMany)),
            (FORM, "audience=a&".repeat(100), Ok(&["a"])),
            (JSON, r#"{"audience":"a"}"#.into(), Ok(&["a"])),
            (JSON, r#"{"audience":["a","b","a"],"x":{}}"#.into(), Ok(&["a", "b"])),
            (JSON, r#"{"audience":[]}"#.into(), Err(BadAsk::Nobody)),
            (JSON, "{}".into(), Err(BadAsk::Nobody)),
            (JSON, r#"{"audience":null}"#.into(), Err(BadAsk::Body)),
            (JSON, r#"["a"]"#.into(), Err(BadAsk::Body)),
            (JSON, r#"[["a"]]"#.into(), Err(BadAsk::Body)),
            (JSON, " {\"audience\":\"\\\"a\\\\\"}".into(), Ok(&["\"a\\"])),
            (JSON, r#"{"audience":7}"#.into(), Err(BadAsk::Body)),
            (JSON, r#"{"audience":["a",7]}"#.into(), Err(BadAsk::Body)),
            (JSON, r#"{"audience":"a","audience":"b"}"#.into(), Err(BadAsk::Body)),
            (JSON, r#"{"audience":"a\u0000"}"#.into(), Err(BadAsk::Audience)),
            (JSON, "audience=a".into(), Err(BadAsk::Body)),
            (JSON, "[".repeat(8000), Err(BadAsk::Body)),
            (JSON, String::new(), Err(BadAsk::Body)),
            (Some("multipart/form-data; boundary=x"), "audience=a".into(), Err(BadAsk::ContentType)),
            (Some("text/plain"), "audience=a".into(), Err(BadAsk::ContentType)),
        ] {
            let got = Asked::read(kind, body.as_bytes());
            let got = got.map(|asked| asked.0.into_iter().map(|audience| audience.0).collect::<Vec<_>>());
            assert_eq!(got, expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect()), "{body}");
        }
        assert_eq!(Asked::read(FORM, b"audience=\xff"), Err(BadAsk::Body));
    }

    #[test]
    fn a_list_allows_what_is_in_it_and_no_list_allows_all() {
        let audiences = |names: &[&str]| names.iter().map(|name| Audience::parse(name).unwrap()).collect::<Vec<_>>();
        for (asked, node, vm, refused) in [
            ("audience=a", None, None, None),
            ("audience=a&audience=b", Some(&["b", "a", "c"][..]), Some(&["a", "b"][..]), None),
            ("audience=a&audience=b", Some(&["a"]), None, Some(("b", "the node"))),
            ("audience=a", Some(&["a"]), Some(&["b"]), Some(("a", "the policy"))),
            ("audience=a", None, Some(&[]), Some(("a", "the policy"))),
            ("audience=A", Some(&["a"]), None, Some(("A", "the node"))),
            ("audience=a/", Some(&["a"]), None, Some(("a/", "the node"))),
        ] {
            let asked = Asked::read(None, asked.as_bytes()).unwrap();
            let (node, vm) = (node.map(audiences), vm.map(audiences));
            let got = asked.allowed_by([(node.as_deref(), "the node"), (vm.as_deref(), "the policy")]);
            let got = got.err().map(|refused| (refused.audience.0, refused.whose));
            assert_eq!(got, refused.map(|(audience, whose)| (audience.to_owned(), whose)));
        }
    }
}
