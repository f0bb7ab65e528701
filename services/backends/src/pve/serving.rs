//! The pair of files that TLS is spoken with: `nodes/<node>/pve-ssl.pem` and `pve-ssl.key`.
//!
//! In comes the tree, from time to time; out goes a [`ServingKey`] into [`ServingKeys`], and what of that is news. Proxmox
//! renews a certificate in place and some tools write its key first: whatever two files are found that do not go together,
//! or not at all, the pair that did stays. Refused: to keep the bytes of either, and to look where nobody serves.

use std::path::Path;
use std::sync::Arc;

use pve_imds_model::chain;
use tokio::time::Instant;

use super::files;
use super::inventory::Digest;
use super::keyring::{KEEP, NodeFile};
use crate::keys::{BadPair, ServingKey, ServingKeys};

/// What a look at the pair found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It is served with from now on.
    Read,
    /// It cannot be used; the one before stays. Told once per reason.
    Kept(Arc<str>),
    /// The same, and there is none before.
    Lacking(Arc<str>),
}

/// Follows the two files.
pub(super) struct Pair {
    own: Arc<str>,
    keys: ServingKeys,
    /// When to look again.
    due: Option<Instant>,
    /// Of the pair in force.
    digests: Option<[Digest; 2]>,
    complaint: Option<Arc<str>>,
}

impl Pair {
    pub(super) fn new(own: &str, keys: ServingKeys) -> Self {
        Self { own: own.into(), keys, due: None, digests: None, complaint: None }
    }

    /// Reads the files again, if it is time to.
    pub(super) fn look(&mut self, dir: &Path, now: Instant) -> Option<News> {
        if self.due.is_some_and(|due| now < due) {
            return None;
        }
        self.due = Some(now + KEEP);
        let reason = match self.read(&dir.join("nodes").join(&*self.own)) {
            Ok(None) => {
                self.complaint = None;
                return None;
            }
            Ok(Some((digests, key))) => {
                self.keys.put(key);
                (self.digests, self.complaint) = (Some(digests), None);
                return Some(News::Read);
            }
            Err(reason) => Arc::<str>::from(reason),
        };
        if self.complaint.as_ref() == Some(&reason) {
            return None;
        }
        self.complaint = Some(Arc::clone(&reason));
        Some(if self.digests.is_some() { News::Kept(reason) } else { News::Lacking(reason) })
    }

    /// `None`: the pair is the one in force.
    fn read(&self, dir: &Path) -> Result<Option<([Digest; 2], ServingKey)>, String> {
        let paths = [NodeFile::Certificate, NodeFile::Key].map(|file| dir.join(file.word()));
        let read = |path: &Path| files::read_secret(path).map_err(|error| chain(&error));
        let (certificate, key) = (read(&paths[0])?, read(&paths[1])?);
        let digests = [Digest::of(&certificate), Digest::of(&key)];
        if self.digests == Some(digests) {
            return Ok(None);
        }
        match ServingKey::read(&certificate, &key) {
            Ok(serving) => Ok(Some((digests, serving))),
            Err(error) => {
                let at = if matches!(error, BadPair::Key(_)) { &paths[1] } else { &paths[0] };
                Err(format!("{}: {error}", at.display()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::{certificate_pem, rsa_key_pem};

    #[test]
    fn a_pair_is_served_with_until_there_is_another() {
        let tree = tempfile::tempdir().unwrap();
        let dir = tree.path().join("nodes/a");
        fs::create_dir_all(&dir).unwrap();
        let keys = [(), ()].map(|()| rsa_key_pem(2048).unwrap());
        let [one, renewed] = [(), ()].map(|()| certificate_pem(&keys[0]).unwrap());
        let other = certificate_pem(&keys[1]).unwrap();
        let (certificate, key) = (dir.join("pve-ssl.pem"), dir.join("pve-ssl.key"));
        let serving = ServingKeys::default();
        let mut pair = Pair::new("a", serving.clone());
        let mut now = Instant::now();
        let mut before = None;
        // Each row: what is written where, the file that is complained of, whether the pair in force is another one.
        for (at, (path, bytes, said, changes)) in [
            (None, &b""[..], Some("lacking pve-ssl.pem"), false),
            (None, b"", None, false),
            (Some(&certificate), &one, Some("lacking pve-ssl.key"), false),
            (Some(&key), &keys[0][..200], Some("lacking pve-ssl.key"), false),
            (Some(&key), &keys[0], Some("read"), true),
            (None, b"", None, false),
            (Some(&certificate), &renewed[..300], Some("kept pve-ssl.pem"), false),
            (None, b"", None, false),
            (Some(&certificate), &one, None, false),
            (Some(&certificate), &renewed[..300], Some("kept pve-ssl.pem"), false),
            (Some(&certificate), &renewed, Some("read"), true),
            (Some(&key), &keys[1], Some("kept pve-ssl.pem"), false),
            (Some(&certificate), &other, Some("read"), true),
        ]
        .into_iter()
        .enumerate()
        {
            if let Some(path) = path {
                fs::write(path, bytes).unwrap();
            }
            let early = pair.look(tree.path(), now);
            assert!(at == 0 || early.is_none(), "row {at}: not yet");
            now += KEEP;
            let news = if at == 0 { early } else { pair.look(tree.path(), now) };
            let file = |reason: &str| if reason.contains("pve-ssl.pem") { "pve-ssl.pem" } else { "pve-ssl.key" };
            let word = news.map(|news| match news {
                News::Read => "read".to_owned(),
                News::Kept(reason) => format!("kept {}", file(&reason)),
                News::Lacking(reason) => format!("lacking {}", file(&reason)),
            });
            assert_eq!(word.as_deref(), said, "row {at}");
            let in_force = serving.now();
            let same = match (&before, &in_force) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            assert_eq!(!same, changes, "row {at}");
            before = in_force;
        }
        // Missing is not another pair either.
        fs::remove_dir_all(&dir).unwrap();
        now += KEEP;
        assert!(matches!(pair.look(tree.path(), now), Some(News::Kept(_))));
        assert!(serving.now().is_some());
    }
}
