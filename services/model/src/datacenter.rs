//! `/etc/pve/datacenter.cfg`: what a cluster's tags are worth.
//!
//! In come the file's bytes; out go the settings that decide who may give a VM which tag. A value that Proxmox drops
//! counts as absent here too: where we are in doubt we are the stricter one, for a setting that is taken for safer than
//! it is would open somebody's secrets. Refused: nothing; the file is Proxmox's.

use serde::Serialize;

use crate::format::{boolean, is_blank_char, is_tag};
use crate::property::{self, Format};

/// Who may set which tags on a VM, without rights on the datacenter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UserAllow {
    /// None.
    None,
    /// Those of `user-allow-list`.
    List,
    /// Those that are in use, and those of the list.
    Existing,
    /// Any but registered ones.
    #[default]
    Free,
}

impl UserAllow {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "none" => Self::None,
            "list" => Self::List,
            "existing" => Self::Existing,
            "free" => Self::Free,
            _ => return None,
        })
    }
}

/// The settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Datacenter {
    /// Tags that only an administrator may set; in the file's order, as written.
    pub registered_tags: Vec<String>,
    /// Tags that differ in letter case are different tags.
    pub case_sensitive: bool,
    /// What others may set.
    pub user_allow: UserAllow,
    /// See [`UserAllow::List`].
    pub user_allow_list: Vec<String>,
}

const TAG_STYLE: Format = Format {
    fields: &[
        ("shape", "full, circle, dense or none", |shape| matches!(shape, "full" | "circle" | "dense" | "none")),
        ("color-map", "tags with their colours", |colors| colors.split(';').all(is_colored)),
        ("ordering", "config or alphabetical", |ordering| matches!(ordering, "config" | "alphabetical")),
        ("case-sensitive", "0 or 1", |value| boolean(value).is_some()),
    ],
    nameless: None,
    shorthand: None,
    required: &[],
    needs: &[],
};

const USER_TAG_ACCESS: Format = Format {
    fields: &[
        ("user-allow", "none, list, existing or free", |word| UserAllow::parse(word).is_some()),
        ("user-allow-list", "tags", |list| tags(list).is_some()),
    ],
    nameless: None,
    shorthand: None,
    required: &[],
    needs: &[],
};

impl Datacenter {
    /// Reads `datacenter.cfg`.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let lines = text.lines().map(|line| line.trim_matches(is_blank_char));
        let lines = lines.filter_map(|line| line.split_once(':'));
        // The last line that says it counts, even if what it says is dropped.
        let value = |key: &str| {
            let line = lines.clone().rfind(|(name, _)| *name == key);
            line.map(|(_, value)| value.trim_start_matches(is_blank_char)).unwrap_or_default()
        };
        let style = property::parse(&TAG_STYLE, value("tag-style")).unwrap_or_default();
        let access = property::parse(&USER_TAG_ACCESS, value("user-tag-access")).unwrap_or_default();
        Self {
            registered_tags: tags(value("registered-tags")).unwrap_or_default(),
            case_sensitive: style.get("case-sensitive").is_some_and(|value| boolean(value) == Some(true)),
            user_allow: access.get("user-allow").and_then(|word| UserAllow::parse(word)).unwrap_or_default(),
            user_allow_list: access.get("user-allow-list").and_then(|list| tags(list)).unwrap_or_default(),
        }
    }
}

/// Tags joined by `;`. One that is none spoils them all.
fn tags(list: &str) -> Option<Vec<String>> {
    list.split(';').map(|tag| is_tag(tag).then(|| tag.to_owned())).collect()
}

/// `tag:RRGGBB` or `tag:RRGGBB:RRGGBB`.
fn is_colored(text: &str) -> bool {
    let mut parts = text.split(':');
    let is_color = |part: &str| part.len() == 6 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let (tag, colors) = (parts.next().unwrap_or_default(), parts.collect::<Vec<_>>());
    is_tag(tag) && matches!(colors.len(), 1 | 2) && colors.into_iter().all(is_color)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proxmox_drops_is_absent() {
        let default = Datacenter::default;
        let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
        for (text, expected) in [
            ("", default()),
            ("registered-tags: a;b", Datacenter { registered_tags: tags(&["a", "b"]), ..default() }),
            ("  registered-tags:a \r\n", Datacenter { registered_tags: tags(&["a"]), ..default() }),
            ("registered-tags: a;-b", default()),
            ("registered-tags: a,b", default()),
            ("registered-tags: a;", default()),
            ("registered-tags: a\nregistered-tags: -", default()),
            ("#registered-tags: a", default()),
            ("registered-tags : a", default()),
            ("Registered-tags: a", default()),
            ("tag-style: case-sensitive=1", Datacenter { case_sensitive: true, ..default() }),
            ("tag-style: case-sensitive=yes,shape=dense", Datacenter { case_sensitive: true, ..default() }),
            ("tag-style: case-sensitive=0", default()),
            ("tag-style: case-sensitive=2", default()),
            ("tag-style: case-sensitive=1,shape=round", default()),
            ("tag-style: case-sensitive=1,color-map=a:12345", default()),
            (
                "tag-style: case-sensitive=1,color-map=a:123456:abcdef;b:ABCDEF",
                Datacenter { case_sensitive: true, ..default() },
            ),
            ("tag-style: case-sensitive=1,case-sensitive=1", default()),
            ("tag-style: case-sensitive=1,new=1", default()),
            ("user-tag-access: user-allow=none", Datacenter { user_allow: UserAllow::None, ..default() }),
            ("user-tag-access: user-allow=existing", Datacenter { user_allow: UserAllow::Existing, ..default() }),
            (
                "user-tag-access: user-allow=list,user-allow-list=a;b",
                Datacenter { user_allow: UserAllow::List, user_allow_list: tags(&["a", "b"]), ..default() },
            ),
            ("user-tag-access: user-allow=List", default()),
            ("user-tag-access: user-allow=list,user-allow-list=a,b", default()),
        ] {
            assert_eq!(Datacenter::parse(text.as_bytes()), expected, "{text:?}");
        }
    }
}
