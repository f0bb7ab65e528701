//! The nodes' keys, as `nodes/<node>/pve-ssl.key` and `pve-ssl.pem` have them.
//!
//! In comes the tree, from time to time; out go the keys that seal into [`NodeKeys`], the one that signs and those that
//! signatures are checked with into [`TokenKeys`], and what of that is news. A node that is removed from the cluster
//! ([`Members`]) has no keys any more: what is left behind of it opens and proves nothing. [`known`] says what becomes of
//! one file, [`rota`] which keys are in force.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pve_imds_model::chain;
use tokio::time::Instant;

use self::known::{Files, Known, missing};
use self::rota::Rota;
use super::inventory::Signing;
use super::members::Members;
use crate::keys::{KeySet, NodeKeys, PublicKey, SealingKey, SigningKey, TokenKeys};

pub(super) use self::known::{News as FileNews, NodeFile};

mod known;
mod rota;

/// How long what was read counts: a client whose token a new key does not open just asks for another.
pub(super) const KEEP: Duration = Duration::from_secs(2);

/// What a look at the files found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Of a node's file.
    Of(NodeFile, FileNews),
    /// Nothing of ours can be sealed, since the beginning or from now on.
    Lacking(Arc<str>),
    /// Tokens are signed with this key from now on.
    Signs(Arc<str>),
    /// No token can be signed, since the beginning or from now on.
    CannotSign(Arc<str>),
}

/// Follows the files.
pub(super) struct Keyring {
    own: Arc<str>,
    signing_path: Option<PathBuf>,
    nodes_dir: Option<PathBuf>,
    private: Files<SealingKey>,
    certificates: Files<PublicKey>,
    signing: Known<SigningKey>,
    rota: Rota,
    /// When to look again.
    due: Option<Instant>,
    lacking: bool,
    /// What was told last: which key signs, or why none does.
    signs: Option<Result<Arc<str>, Arc<str>>>,
    /// As they could be read last.
    members: Option<Members>,
    keys: NodeKeys,
    tokens: TokenKeys,
}

impl Keyring {
    pub(super) fn new(own: &str, signing: Signing, keys: NodeKeys, tokens: TokenKeys) -> Self {
        Self {
            own: own.into(),
            signing_path: signing.private_key,
            nodes_dir: signing.nodes_dir,
            private: Files::new(NodeFile::Key, SealingKey::derive),
            certificates: Files::new(NodeFile::Certificate, PublicKey::of_certificate),
            signing: Known::default(),
            rota: Rota::new(signing.lifetime),
            due: None,
            lacking: false,
            signs: None,
            members: None,
            keys,
            tokens,
        }
    }

    /// Reads the files again, if it is time to.
    pub(super) fn look(&mut self, dir: &Path, now: Instant) -> Vec<News> {
        if self.due.is_some_and(|due| now < due) {
            return Vec::new();
        }
        self.due = Some(now + KEEP);
        // What is no tree now, or is one by half, has lost no nodes.
        if let Ok(Some(members)) = Members::read(dir) {
            self.members = Some(members);
        }
        let mut news = self.look_at_private(&dir.join("nodes"));
        news.extend(self.look_at_certificates(&dir.join("nodes"), now));
        news
    }

    /// The keys that seal.
    fn look_at_private(&mut self, dir: &Path) -> Vec<News> {
        let looked = self.private.look(dir, &self.own, self.members.as_ref());
        if looked.iter().flatten().any(FileNews::is_change) {
            let keys = self.private.said().map(|(node, key)| (Arc::clone(node), Arc::clone(key)));
            self.keys.set(keys.collect());
        }
        let lacks = self.private.of(&self.own).is_none();
        let begins = lacks && !std::mem::replace(&mut self.lacking, lacks);
        self.lacking = lacks;
        let lacking = begins.then(|| {
            let why = looked.as_ref().err().map(|error| chain(error).into());
            let why = why.or_else(|| self.private.complaint(&self.own).cloned());
            News::Lacking(why.unwrap_or_else(|| missing(&dir.join(&*self.own).join(NodeFile::Key.word()))))
        });
        let news = looked.unwrap_or_default().into_iter().map(|news| News::Of(NodeFile::Key, news));
        news.chain(lacking).collect()
    }

    /// The key that signs, and those that signatures are checked with.
    fn look_at_certificates(&mut self, dir: &Path, now: Instant) -> Vec<News> {
        let Self { own, members, certificates, signing, .. } = self;
        let nodes_dir = self.nodes_dir.as_deref().unwrap_or(dir);
        // Where there are none to be listed the node's own key will do.
        let looked = certificates.look(nodes_dir, own, members.as_ref());
        let unlisted = looked.as_ref().err().map(|error| Arc::from(chain(error)));
        let mut news: Vec<News> =
            looked.unwrap_or_default().into_iter().map(|news| News::Of(NodeFile::Certificate, news)).collect();
        let path = self.signing_path.clone().unwrap_or_else(|| dir.join(&**own).join(NodeFile::Key.word()));
        _ = signing.look(own, &path, SigningKey::read);
        let lacking = || signing.complaint().cloned().unwrap_or_else(|| missing(&path));
        let unsigned = signing.said().is_none().then(lacking);
        let doubts: Arc<[Arc<str>]> =
            unlisted.into_iter().chain(certificates.doubts(nodes_dir)).chain(unsigned).collect();
        if doubts != self.tokens.doubts() {
            self.tokens.doubt(doubts);
        }

        let held = certificates.said().map(|(node, key)| (Arc::clone(node), PublicKey::clone(key)));
        let is_member = |node: &str| node == &**own || members.as_ref().is_none_or(|members| members.has(node));
        let changes = self.rota.look((own, signing.said()), held, is_member, now);
        let cluster = members.as_ref().and_then(Members::cluster);
        if changes || cluster != self.tokens.cluster().as_deref() {
            let cluster = cluster.map(Arc::from);
            self.tokens.put(self.rota.signing().cloned(), KeySet::of(self.rota.set()), cluster);
        }
        let signs = self.rota.signing().map(|key| Arc::clone(key.public().kid())).ok_or_else(lacking);
        if self.signs.as_ref() != Some(&signs) {
            news.push(match &signs {
                Ok(kid) => News::Signs(Arc::clone(kid)),
                Err(why) => News::CannotSign(Arc::clone(why)),
            });
            self.signs = Some(signs);
        }
        news
    }
}

#[cfg(test)]
mod tests;
