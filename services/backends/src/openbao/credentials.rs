//! The files that a store is asked with: a token, and the certificates that vouch for the store.
//!
//! In comes a path; out goes what the file says now. Both are written by others while we run: an agent renews the token,
//! somebody replaces the certificates. So both are read for every attempt. Refused: anything that is no regular file, what
//! is too large, a token that no header can hold, and to wait for a file system that hangs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use openssl::x509::X509;
use reqwest::header::HeaderValue;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::{FILE, MAX_TOKEN};
use crate::bounded::{self, Links, Unread};

/// Bytes of the largest file of certificates: those of the whole system have a quarter of that.
const MAX_AUTHORITY: usize = 1 << 20;

/// Why a token's file cannot be used. Nothing of it is repeated.
#[derive(Debug, thiserror::Error)]
pub enum BadToken {
    /// It cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    Unreadable(PathBuf, Unreadable),
    /// Nothing is in it.
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    /// It holds what no token does.
    #[error("{} holds more than one word, or what is no text: it must be one token", .0.display())]
    NoToken(PathBuf),
}

/// Why the certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadAuthority {
    /// The file cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    Unreadable(PathBuf, Unreadable),
    /// No certificate is in it.
    #[error("{} holds no certificate (PEM)", .0.display())]
    NoCertificate(PathBuf),
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It cannot be opened or read.
    #[error("{0}")]
    Io(io::Error),
    /// A directory, a device, a FIFO.
    #[error("it is no regular file")]
    NotRegular,
    /// Larger than any.
    #[error("it is larger than {0} bytes")]
    TooLarge(usize),
    /// Its file system does not answer.
    #[error("it cannot be read within {0:?}")]
    Hangs(Duration),
}

impl BadToken {
    /// What mends it.
    #[must_use]
    pub fn mend(&self) -> &'static str {
        match self {
            Self::Unreadable(_, Unreadable::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                "does the agent run that writes it (secrets.token_file)?"
            }
            Self::Unreadable(_, Unreadable::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                "let the group pve-imds-token read it: mode 0640, in a directory of mode 2750"
            }
            Self::Unreadable(..) => "secrets.token_file must be a small regular file",
            Self::Empty(_) | Self::NoToken(_) => "it must hold one token and nothing else; has its agent logged in?",
        }
    }
}

impl BadAuthority {
    /// What mends it.
    #[must_use]
    pub fn mend(&self) -> &'static str {
        "secrets.ca_file must be the certificate, in PEM, that the store's own is signed by; empty, the system's count"
    }
}

/// Reads one file at a time: one that hangs keeps one thread, and whoever waits gives up.
#[derive(Debug)]
pub(super) struct Reading {
    path: PathBuf,
    limit: usize,
    line: Arc<Semaphore>,
}

impl Reading {
    fn of(path: PathBuf, limit: usize) -> Self {
        Self { path, limit, line: Arc::new(Semaphore::new(1)) }
    }

    async fn read(&self) -> Result<Zeroizing<Vec<u8>>, Unreadable> {
        let (path, limit) = (self.path.clone(), self.limit);
        let read = async {
            let place = Arc::clone(&self.line).acquire_owned().await.ok()?;
            let read = spawn_blocking(move || {
                let _taken = place;
                read(&path, limit)
            });
            read.await.ok()
        };
        // `None`: we end, or it fell over.
        timeout(FILE, read).await.ok().flatten().unwrap_or(Err(Unreadable::Hangs(FILE)))
    }
}

/// The token's file.
#[derive(Debug)]
pub(super) struct TokenFile(Reading);

impl TokenFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(Reading::of(path, MAX_TOKEN))
    }

    /// The token it holds now, for a header.
    pub(super) async fn token(&self) -> Result<HeaderValue, BadToken> {
        let path = &self.0.path;
        let bytes = self.0.read().await.map_err(|error| BadToken::Unreadable(path.clone(), error))?;
        token(path, bytes)
    }
}

/// The file of certificates.
#[derive(Debug)]
pub(super) struct AuthorityFile(Reading);

impl AuthorityFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(Reading::of(path, MAX_AUTHORITY))
    }

    /// The certificates it holds now, as PEM.
    pub(super) async fn pem(&self) -> Result<Zeroizing<Vec<u8>>, BadAuthority> {
        let path = &self.0.path;
        let pem = self.0.read().await.map_err(|error| BadAuthority::Unreadable(path.clone(), error))?;
        certified(path, pem)
    }
}

/// Whether a file of certificates can be used, for whoever starts with one.
///
/// # Errors
/// [`BadAuthority`]
pub fn check_authority(path: &Path) -> Result<(), BadAuthority> {
    let pem = read(path, MAX_AUTHORITY).map_err(|error| BadAuthority::Unreadable(path.to_owned(), error))?;
    certified(path, pem).map(drop)
}

/// Whether a token's file can be used by whoever asks that.
///
/// # Errors
/// [`BadToken`]
pub fn check_token(path: &Path) -> Result<(), BadToken> {
    let bytes = read(path, MAX_TOKEN).map_err(|error| BadToken::Unreadable(path.to_owned(), error))?;
    token(path, bytes).map(drop)
}

fn certified(path: &Path, pem: Zeroizing<Vec<u8>>) -> Result<Zeroizing<Vec<u8>>, BadAuthority> {
    match X509::stack_from_pem(&pem) {
        Ok(stack) if !stack.is_empty() => Ok(pem),
        _ => Err(BadAuthority::NoCertificate(path.to_owned())),
    }
}

/// The one word in a file. The header keeps it, and it is wiped with the header.
fn token(path: &Path, mut bytes: Zeroizing<Vec<u8>>) -> Result<HeaderValue, BadToken> {
    let begins = bytes.len() - bytes.trim_ascii_start().len();
    let ends = begins + bytes.trim_ascii().len();
    if begins == ends {
        return Err(BadToken::Empty(path.to_owned()));
    }
    if !bytes[begins..ends].iter().all(u8::is_ascii_graphic) {
        return Err(BadToken::NoToken(path.to_owned()));
    }
    bytes.truncate(ends);
    bytes.drain(..begins);
    let mut token = HeaderValue::from_maybe_shared(bytes::Bytes::from_owner(Wiped(bytes)))
        .map_err(|_| BadToken::NoToken(path.to_owned()))?;
    token.set_sensitive(true);
    Ok(token)
}

struct Wiped(Zeroizing<Vec<u8>>);

impl AsRef<[u8]> for Wiped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of one file. Links are followed: whoever says where the file is may say so by one.
fn read(path: &Path, limit: usize) -> Result<Zeroizing<Vec<u8>>, Unreadable> {
    // Room for all of a token from the start, so that none of it is left behind where it was first.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_TOKEN + 1));
    bounded::read_into(&mut bytes, path, Links::Followed, limit).map_err(|unread| match unread {
        Unread::Io(error) => Unreadable::Io(error),
        Unread::NotRegular => Unreadable::NotRegular,
        Unread::TooLarge => Unreadable::TooLarge(limit),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;
    use crate::testing::{certificate_pem, node_key};

    #[tokio::test]
    async fn a_token_is_one_word_in_a_small_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let file = TokenFile::new(path.clone());
        let long = "t".repeat(MAX_TOKEN);
        for (content, expected) in [
            ("s.token", Ok("s.token")),
            ("s.token\n", Ok("s.token")),
            ("\r\n  s.token \n\n", Ok("s.token")),
            (&long, Ok(&*long)),
            (&format!("{long}\n"), Err("it is larger than 4096 bytes")),
            ("", Err("is empty")),
            (" \n", Err("is empty")),
            ("canary one", Err("more than one word")),
            ("canary\ncanary", Err("more than one word")),
            ("canary\u{fc}", Err("more than one word")),
            ("canary\0", Err("more than one word")),
        ] {
            fs::write(&path, content).unwrap();
            let checked = check_token(&path);
            match (file.token().await, expected) {
                (Ok(token), Ok(expected)) => {
                    assert_eq!(token.to_str().unwrap(), expected);
                    assert_eq!(format!("{token:?}"), "Sensitive");
                    assert!(checked.is_ok());
                }
                (Err(error), Err(why)) => {
                    let told = format!("{error} {error:?}");
                    assert!(told.contains(why) && !told.contains("canary"), "{told}");
                    assert!(checked.is_err());
                }
                (got, expected) => panic!("{content:?}: {:?} {expected:?}", got.map(|_| ())),
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_file_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        fs::write(at("real"), "s.token").unwrap();
        symlink(at("real"), at("link")).unwrap();
        symlink(at("link2"), at("link2")).unwrap();
        for (path, why) in [
            (at("absent"), "No such file"),
            (at("fifo"), "no regular file"),
            (dir.path().to_owned(), "no regular file"),
            ("/dev/zero".into(), "no regular file"),
            (at("link2"), "symbolic links"),
            (at("real").join("x"), "Not a directory"),
        ] {
            let error = TokenFile::new(path.clone()).token().await.unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(path.to_str().unwrap()), "{error}");
        }
        assert_eq!(TokenFile::new(at("link")).token().await.unwrap(), "s.token");
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_hangs_is_given_up() {
        let file = TokenFile::new("/nonexistent".into());
        // As if one reading of it did not end.
        let hangs = Arc::clone(&file.0.line).acquire_owned().await.unwrap();
        let error = file.token().await.unwrap_err().to_string();
        assert!(error.contains("cannot be read within 100ms"), "{error}");
        drop(hangs);
        assert!(file.token().await.unwrap_err().to_string().contains("No such file"));
    }

    #[tokio::test]
    async fn certificates_are_pem() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let one = certificate_pem(node_key()).unwrap();
        let half = &one[..one.len() / 2];
        for (content, is_good) in [
            (&one[..], true),
            (&[&one[..], &one].concat(), true),
            (&[b"# the lab's\n", &one[..]].concat(), true),
            (b"", false),
            (half, false),
            (&[&one[..], half].concat(), false),
            (node_key(), false),
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(AuthorityFile::new(path.clone()).pem().await.is_ok(), is_good, "{}", content.len());
            assert_eq!(check_authority(&path).is_ok(), is_good);
        }
        assert!(check_authority(&dir.path().join("absent")).is_err());
    }
}
