//! Who is let in where boots begin in OpenStack's and EC2's dialects.
//!
//! In come whether a VM's user data and vendor data can be had whole, and whether they could be once since the interface
//! it asks through came up; out goes a pass or the fault that its client waits on. A 503 on the document alone would not
//! do: cloud-init asks for it a few times, boots without it as the instance that it is, and never asks again. Those first
//! questions it repeats until they are answered, or gives up without having been anybody. NoCloud's clients do as much
//! on the document itself.
//!
//! Once a VM has been let in, an edit that breaks its Notes must not take metadata and session tokens from what runs in it:
//! from then on only the document itself is withheld. That is remembered for each interface, in memory; a daemon that has just
//! started, and a node that a VM has just come to, know of nobody. Refused: to remember a guest whose interface nobody knows.

use std::sync::{Arc, Mutex, PoisonError};

use pve_imds_model::fault::Fault;
use pve_imds_model::request::Link;
use pve_imds_model::tap::TapName;

use crate::book::Book;

/// The interfaces through which a VM has been let in while its documents were whole. Clones share them. Of one name there is
/// the last one: a new interface has another index or came later.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entered(Arc<Mutex<Book<TapName, Link>>>);

impl Entered {
    /// Whether a VM has been let in through `link`.
    pub(crate) fn has(&self, link: Option<Link>) -> bool {
        has(&self.0.lock().unwrap_or_else(PoisonError::into_inner), link)
    }

    /// Lets whoever asks through `link` go on, or says why not.
    ///
    /// # Errors
    /// Why its documents cannot be had, unless they could be had before.
    pub(crate) fn admit(&self, link: Option<Link>, documents: Result<(), Fault>) -> Result<(), Fault> {
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = has(&book, link);
        if let Some(link) = link.filter(|_| documents.is_ok() && !before) {
            book.put(link.tap, link);
        }
        pass(documents, before)
    }
}

fn has(book: &Book<TapName, Link>, link: Option<Link>) -> bool {
    link.is_some_and(|link| book.get(&link.tap) == Some(&link))
}

/// The decision.
fn pass(documents: Result<(), Fault>, entered_before: bool) -> Result<(), Fault> {
    match (documents, entered_before) {
        (Ok(()), _) | (Err(_), true) => Ok(()),
        (Err(fault), false) => Err(fault),
    }
}

#[cfg(test)]
mod tests {
    use pve_imds_model::fault::{Outcome, RetryAfter};

    use super::*;

    fn broken(outcome: Outcome) -> Result<(), Fault> {
        Err(Fault::unavailable(outcome, RetryAfter::DEFAULT))
    }

    #[test]
    fn who_is_let_in() {
        for (documents, entered_before, expected) in [
            (Ok(()), false, Ok(())),
            (Ok(()), true, Ok(())),
            (broken(Outcome::NotesInvalid), false, Err((503, Outcome::NotesInvalid))),
            (broken(Outcome::NotesInvalid), true, Ok(())),
            (broken(Outcome::SecretsDisabled), false, Err((503, Outcome::SecretsDisabled))),
            (broken(Outcome::SecretsDisabled), true, Ok(())),
        ] {
            let got = pass(documents, entered_before).map_err(|fault| (fault.status(), fault.outcome()));
            assert_eq!(got, expected, "{entered_before}");
        }
    }

    #[test]
    fn an_interface_is_remembered_until_another_has_its_name() {
        let entered = Entered::default();
        let link = |tap: &str, index, since| Some(Link { tap: TapName::parse(tap).unwrap(), index, since });
        for (link, is_whole, expected) in [
            (link("tap106i0", 7, 1), false, false),
            (link("tap106i0", 7, 1), true, true),
            (link("tap106i0", 7, 1), false, true),
            // The VM's other interface, another VM, and what comes under the same name.
            (link("tap106i1", 7, 1), false, false),
            (link("tap107i0", 7, 1), false, false),
            (link("tap106i0", 8, 1), false, false),
            (link("tap106i0", 7, 2), false, false),
            (link("tap106i0", 7, 1), false, true),
            (link("tap106i0", 8, 2), true, true),
            (link("tap106i0", 8, 2), false, true),
            (link("tap106i0", 7, 1), false, false),
            // Nobody's.
            (None, true, true),
            (None, false, false),
        ] {
            let documents = if is_whole { Ok(()) } else { broken(Outcome::NotesInvalid) };
            assert_eq!(entered.admit(link, documents).is_ok(), expected, "{link:?} {is_whole}");
        }
    }
}
