//! Options that are words: which ones there are, and what was probably meant by another.
//!
//! In comes what somebody wrote; out comes one of a closed list, or a sentence that names the list and the word that was
//! probably meant. Refused: to take a word that nothing here knows. It would be accepted and do nothing, and where it
//! says which interfaces are guests' that leaves every one of them open.

use pve_imds_model::words;

/// What a list has that is nearly `word`, if anything is: case means nothing, a quarter of the letters may be wrong, and
/// more may follow (`warning`).
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.trim().to_ascii_lowercase();
    let begins_with = |known: &str| {
        word.strip_prefix(known).is_some_and(|rest| rest.bytes().all(|letter| letter.is_ascii_alphabetic()))
    };
    let away = |known: &str| match known.to_ascii_lowercase() {
        known if begins_with(&known) => 0,
        known => strsim::damerau_levenshtein(&word, &known),
    };
    let near = known.into_iter().map(|known| (away(known), known));
    let near = near.filter(|(away, known)| *away <= known.len() / 4 + 1 && *away < known.len());
    near.min().map(|(_, known)| known)
}

/// `; did you mean this?`, or nothing.
pub(super) fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|word| format!("; did you mean {word}?")).unwrap_or_default()
}

/// The one of `words` that is `text`.
///
/// # Errors
/// The rest of a sentence that begins with the option.
pub(super) fn choose<T: Copy>(text: &str, words: &[(&'static str, T)]) -> Result<T, String> {
    if let Some((_, meant)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*meant);
    }
    let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let nearest = suggestion(nearest(text, all.iter().copied()));
    Err(format!("must be {}, not {text:?}{nearest}", listed(&all)))
}

/// `a, b or c`
fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

words! {
    /// A kind of interface that may be a guest's, as the kernel calls it (`ip -d link`). Others can be given a tap's name,
    /// but what a guest sends does not enter the node through them as it does here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// What QEMU holds open: every VM's interface that Proxmox makes.
        Tun => "tun",
        /// One end of a pair: a network namespace that plays a guest.
        Veth => "veth",
    }
}

/// Kinds of interfaces that may be guests', one at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds(Vec<Kind>);

/// Why a list of kinds cannot be meant. The rest of a sentence that begins with the option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KindsError {
    /// There is none in it.
    #[error("names no kind: no VM's interface would be guarded or served; {} is what Proxmox makes", Kind::Tun.word())]
    None,
    /// There is no such kind.
    #[error("{0}")]
    Unknown(String),
}

impl Kinds {
    /// Reads a list of words.
    ///
    /// # Errors
    /// [`KindsError`].
    pub fn read<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, KindsError> {
        let known: Vec<_> = Kind::ALL.iter().map(|kind| (kind.word(), *kind)).collect();
        let kinds = words.into_iter().map(|word| match (choose(word, &known), word) {
            // The word for these interfaces in everybody's mouth, and in their names.
            (Err(why), "tap" | "TAP") => Err(KindsError::Unknown(why + &suggestion(Some(Kind::Tun.word())))),
            (read, _) => read.map_err(KindsError::Unknown),
        });
        match kinds.collect::<Result<Vec<_>, _>>()? {
            none if none.is_empty() => Err(KindsError::None),
            kinds => Ok(Self(kinds)),
        }
    }

    /// Reads words between commas, as a variable or an argument has them.
    ///
    /// # Errors
    /// [`KindsError`].
    pub fn spelled(text: &str) -> Result<Self, KindsError> {
        Self::read(items(text))
    }

    /// The words.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        self.0.iter().map(|kind| kind.word().to_owned()).collect()
    }

    /// Whether an interface of this kind may be a guest's.
    #[must_use]
    pub fn include(&self, kind: &str) -> bool {
        self.0.iter().any(|known| known.word() == kind)
    }
}

impl std::fmt::Display for Kinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words().join(","))
    }
}

/// What stands between commas. A comma too many means nothing.
pub(super) fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_one_of_those_there_are() {
        let unknown = |text: &str, meant: &str| {
            let meant = if meant.is_empty() { String::new() } else { format!("; did you mean {meant}?") };
            Err(format!("must be tun or veth, not {text:?}{meant}"))
        };
        let none =
            || Err("names no kind: no VM's interface would be guarded or served; tun is what Proxmox makes".into());
        for (text, read) in [
            ("tun", Ok("tun".to_owned())),
            ("tun,veth", Ok("tun,veth".to_owned())),
            (" veth , tun,", Ok("veth,tun".to_owned())),
            ("", none()),
            (" , ", none()),
            ("tap", unknown("tap", "tun")),
            ("TUN", unknown("TUN", "tun")),
            ("tunn", unknown("tunn", "tun")),
            ("tun,vethh", unknown("vethh", "veth")),
            ("bridge", unknown("bridge", "")),
            ("macvtap", unknown("macvtap", "")),
        ] {
            assert_eq!(
                Kinds::spelled(text).map(|kinds| kinds.to_string()).map_err(|why| why.to_string()),
                read,
                "{text}"
            );
        }
        assert_eq!(Kinds::read([""]), Err(KindsError::Unknown("must be tun or veth, not \"\"".into())));
    }

    #[test]
    fn what_was_probably_meant_is_near() {
        for (word, meant) in [
            ("jsno", Some("json")),
            ("JSON", Some("json")),
            (" text", Some("text")),
            ("textual", Some("text")),
            ("journal", Some("journald")),
            ("xml", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, ["auto", "journald", "text", "json"]), meant, "{word}");
        }
    }
}
