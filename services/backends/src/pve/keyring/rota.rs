//! Which key signs, and which ones tokens are checked with.
//!
//! In come the keys that nodes have now; out go those that are in force. A key is in the set before it signs, for long
//! enough that every node shows it; one that was replaced stays in the set for as long as somebody may hold a token that it
//! has signed, and an hour more. That of a node which is no member any more goes at once. Refused: to hold more of them
//! than [`MAX_RETIRED`]; the oldest goes first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::keys::{PublicKey, SigningKey};

/// How long a key is shown before it signs: two looks of the slowest node, and what pmxcfs needs.
pub(super) const SHOWN: Duration = Duration::from_secs(5);

/// How much longer than a token lives a key is shown that signs no more: those who verify keep the set for an hour or less.
const KEPT: Duration = Duration::from_secs(3600);

/// Most keys that are shown and sign no more: at one every three seconds, those of thirteen minutes.
const MAX_RETIRED: usize = 256;

/// Whose key.
type Held = (Arc<str>, PublicKey);

/// What is in force.
pub(super) struct Rota {
    /// For how long a token is good.
    lifetime: Duration,
    /// This node's keys, by when they were seen first; the first signs.
    signing: Vec<(Instant, Arc<SigningKey>)>,
    shown: BTreeSet<Held>,
    /// Until when, the oldest first.
    retired: Vec<(Instant, Held)>,
}

impl Rota {
    /// Tokens live for `lifetime`.
    pub(super) fn new(lifetime: Duration) -> Self {
        Self { lifetime, signing: Vec::new(), shown: BTreeSet::new(), retired: Vec::new() }
    }

    /// What there is now: this node's private key, and the nodes' public ones; and who is a member. Whether something
    /// changes by that.
    pub(super) fn look(
        &mut self,
        (own, key): (&Arc<str>, Option<&Arc<SigningKey>>),
        certificates: impl IntoIterator<Item = Held>,
        is_member: impl Fn(&str) -> bool,
        now: Instant,
    ) -> bool {
        let before = self.kid().cloned();
        self.sign_with(key, now);
        let shown: BTreeSet<Held> =
            self.signing.iter().map(|(_, key)| (Arc::clone(own), key.public().clone())).chain(certificates).collect();
        let gone: Vec<Held> = self.shown.difference(&shown).cloned().collect();
        let count = self.retired.len();
        let until = now + self.lifetime + KEPT;
        self.retired.extend(gone.into_iter().map(|held| (until, held)));
        self.retired.retain(|(until, held)| *until > now && !shown.contains(held) && is_member(&held.0));
        let excess = self.retired.len().saturating_sub(MAX_RETIRED);
        self.retired.drain(..excess);
        let changes = shown != self.shown || count != self.retired.len() || before.as_ref() != self.kid();
        self.shown = shown;
        changes
    }

    /// The newest key that has been shown for long enough signs; while there is none, the oldest.
    fn sign_with(&mut self, key: Option<&Arc<SigningKey>>, now: Instant) {
        let Some(key) = key else { return self.signing.clear() };
        if self.signing.last().is_none_or(|(_, known)| known.public() != key.public()) {
            self.signing.push((now, Arc::clone(key)));
        }
        let ready = self.signing.iter().rposition(|(since, _)| *since + SHOWN <= now);
        self.signing.drain(..ready.unwrap_or(0));
    }

    fn kid(&self) -> Option<&Arc<str>> {
        self.signing.first().map(|(_, key)| key.public().kid())
    }

    /// The key that signs.
    pub(super) fn signing(&self) -> Option<&Arc<SigningKey>> {
        self.signing.first().map(|(_, key)| key)
    }

    /// What tokens are checked with: keys of now, then those that were.
    pub(super) fn set(&self) -> impl Iterator<Item = &PublicKey> {
        self.shown.iter().chain(self.retired.iter().map(|(_, held)| held)).map(|(_, key)| key)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::testing::rsa_key_pem;

    /// Making one takes long.
    static KEYS: LazyLock<Vec<Arc<SigningKey>>> =
        LazyLock::new(|| (0..5).map(|_| Arc::new(SigningKey::read(&rsa_key_pem(2048).unwrap()).unwrap())).collect());

    const LIFETIME: Duration = Duration::from_secs(300);

    fn at(rota: &Rota) -> (Option<usize>, Vec<usize>) {
        let number = |key: &PublicKey| KEYS.iter().position(|known| known.public() == key).unwrap();
        let mut set: Vec<_> = rota.set().map(number).collect();
        set.sort_unstable();
        (rota.signing().map(|key| number(key.public())), set)
    }

    /// A node `a` whose private key is one of [`KEYS`], and certificates of nodes.
    #[test]
    fn a_key_is_shown_before_it_signs_and_for_as_long_as_its_tokens_live() {
        let (own, mut now) = (Arc::from("a"), Instant::now());
        let mut rota = Rota::new(LIFETIME);
        let hour = KEPT.as_secs() + LIFETIME.as_secs();
        for (row, (wait, key, certificates, members, signs, set)) in [
            (0, None, &[][..], "ab", None, &[][..]),
            // The first signs at once: there is no other.
            (0, Some(0), &[("a", 0)], "ab", Some(0), &[0]),
            (2, Some(0), &[("a", 0), ("b", 4)], "ab", Some(0), &[0, 4]),
            // Another: shown, and after a while it signs.
            (2, Some(1), &[("a", 0), ("b", 4)], "ab", Some(0), &[0, 1, 4]),
            (2, Some(1), &[("a", 1), ("b", 4)], "ab", Some(0), &[0, 1, 4]),
            (4, Some(1), &[("a", 1), ("b", 4)], "ab", Some(1), &[0, 1, 4]),
            // Others so fast that none is shown for long enough but one.
            (2, Some(2), &[("a", 2), ("b", 4)], "ab", Some(1), &[0, 1, 2, 4]),
            (2, Some(3), &[("a", 3), ("b", 4)], "ab", Some(1), &[0, 1, 2, 3, 4]),
            (4, Some(0), &[("a", 0), ("b", 4)], "ab", Some(2), &[0, 1, 2, 3, 4]),
            (2, Some(0), &[("a", 0), ("b", 4)], "ab", Some(3), &[0, 1, 2, 3, 4]),
            (9, Some(0), &[("a", 0), ("b", 4)], "ab", Some(0), &[0, 1, 2, 3, 4]),
            // The certificate of another node cannot be read for a while, and comes back.
            (2, Some(0), &[("a", 0)], "ab", Some(0), &[0, 1, 2, 3, 4]),
            (2, Some(0), &[("a", 0), ("b", 4)], "ab", Some(0), &[0, 1, 2, 3, 4]),
            // All that was replaced is gone when its time is over.
            (hour, Some(0), &[("a", 0), ("b", 4)], "ab", Some(0), &[0, 4]),
            // A node that is removed.
            (2, Some(0), &[("a", 0)], "a", Some(0), &[0]),
            // No key any more.
            (2, None, &[], "a", None, &[0]),
        ]
        .into_iter()
        .enumerate()
        {
            now += Duration::from_secs(wait);
            let certificates = certificates.iter().map(|(node, key)| (Arc::from(*node), KEYS[*key].public().clone()));
            let key = key.map(|key: usize| &KEYS[key]);
            rota.look((&own, key), certificates.collect::<Vec<_>>(), |node| members.contains(node), now);
            assert_eq!(at(&rota), (signs, set.to_vec()), "row {row}");
            assert!(!rota.look((&own, key), rota.shown.clone(), |node| members.contains(node), now), "row {row} again");
        }
    }

    #[test]
    fn there_are_not_ever_more_of_them() {
        let (own, mut now) = (Arc::from("a"), Instant::now());
        let mut rota = Rota::new(LIFETIME);
        for number in 0..MAX_RETIRED + 10 {
            now += Duration::from_secs(3);
            let held = (Arc::from(format!("n{number:03}")), KEYS[0].public().clone());
            rota.look((&own, None), [held], |_| true, now);
        }
        assert_eq!(rota.retired.len(), MAX_RETIRED);
        assert_eq!(&*rota.retired[0].1.0, "n009");
    }
}
