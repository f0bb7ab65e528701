//! What root may ask the daemon, on a socket beside the claim.
//!
//! In comes a connection from root, or from the user that the daemon itself is, with one question; out goes one answer
//! ([`wire`] says in which bytes). The socket's mode keeps everyone else from connecting, and who connected is asked
//! nevertheless. Refused: questions that are long or slow, and to let what is answered reach the log.

mod wire;

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pve_imds_datasources::Passwords;
use pve_imds_datasources::backends::pve::Inventory;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::claim::{self, Claim};

pub use wire::{Answer, Question, Refusal};

/// The longest question.
const QUESTION: u64 = 1024;

/// How long one may take, and its answer.
const TIME: Duration = Duration::from_secs(2);

/// Asked at once; whoever comes after waits.
const AT_ONCE: usize = 4;

/// What there is to be told.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) inventory: Arc<Inventory>,
    pub(super) passwords: Passwords,
}

impl Known {
    /// Forgets what VMs have said that have left the cluster: their numbers may be given to others.
    pub(super) fn review(&self) {
        self.passwords.keep(|vmid| self.inventory.vm(vmid).is_some());
    }

    fn answer(&self, question: Question) -> Answer {
        match question {
            Question::Password(vmid) => {
                let record = self.inventory.vm(vmid).ok_or(Refusal::VmUnknown)?;
                let password = self.passwords.get(&record.vm).ok_or(Refusal::NothingSaid)?;
                // That it was read is worth a line; what was read is not.
                tracing::info!(%vmid, "the password that the guest has said was asked for and told");
                Ok(password.bytes())
            }
        }
    }
}

/// The socket. Gone when dropped.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    task: AbortHandle,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        // One that stays answers nobody, and the next daemon puts its own there.
        let _ = fs::remove_file(&self.path);
    }
}

impl Control {
    /// Listens beside the claim. Whoever holds that may take away what one that was killed has left.
    pub(super) fn open(claim: &Claim, known: Known) -> io::Result<Self> {
        Self::open_at(claim.socket(), known)
    }

    fn open_at(path: PathBuf, known: Known) -> io::Result<Self> {
        match fs::remove_file(&path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        // Whoever slips in before that is asked who it is.
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let owner = fs::metadata(&path)?.uid();
        let task = tokio::spawn(serve(listener, owner, known)).abort_handle();
        Ok(Self { path, task })
    }
}

async fn serve(listener: UnixListener, owner: u32, known: Known) {
    let mut attended = JoinSet::new();
    loop {
        while attended.try_join_next().is_some() || attended.len() >= AT_ONCE && attended.join_next().await.is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let known = known.clone();
                attended.spawn(async move {
                    let end = timeout(TIME, attend(stream, owner, &known)).await;
                    if let Err(error) = end.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                        tracing::debug!(%error, "a question on the control socket was not answered");
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "the control socket cannot accept; trying again");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn attend(mut stream: UnixStream, owner: u32, known: &Known) -> io::Result<()> {
    if !may_ask(stream.peer_cred()?.uid(), owner) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = Vec::new();
    BufReader::new((&mut stream).take(QUESTION)).read_until(b'\n', &mut line).await?;
    let whole = line.ends_with(b"\n").then(|| str::from_utf8(&line).ok().and_then(Question::parse)).flatten();
    let answer = whole.ok_or(Refusal::UnknownQuestion).and_then(|question| known.answer(question));
    stream.write_all(&wire::write(&answer)).await?;
    stream.shutdown().await
}

/// Root, or who could read the daemon's memory anyway.
fn may_ask(uid: u32, owner: u32) -> bool {
    uid == 0 || uid == owner
}

/// Asks the daemon of this network namespace.
///
/// # Errors
/// It cannot be reached, or what came back is no answer.
pub fn ask(question: Question) -> io::Result<Answer> {
    ask_at(&claim::socket()?, question)
}

fn ask_at(path: &Path, question: Question) -> io::Result<Answer> {
    let mut stream = net::UnixStream::connect(path)?;
    // It answers from memory: whoever takes longer than it gives us has died.
    stream.set_read_timeout(Some(2 * TIME))?;
    stream.set_write_timeout(Some(2 * TIME))?;
    stream.write_all(format!("{question}\n").as_bytes())?;
    let mut received = Vec::new();
    stream.take(wire::LONGEST).read_to_end(&mut received)?;
    wire::read(&received).ok_or_else(|| io::Error::other("half an answer, or one of another version"))
}

#[cfg(test)]
mod tests {
    use pve_imds_datasources::backends::testing::PveTree;
    use pve_imds_model::vm::VmId;

    use super::*;

    /// A daemon that knows VM 106, and where it is asked.
    struct Daemon {
        dir: tempfile::TempDir,
        tree: PveTree,
    }

    impl Daemon {
        fn new() -> Self {
            let mut tree = PveTree::cluster("pve1").unwrap();
            tree.put(106, "name: web\n").unwrap();
            Self { dir: tempfile::tempdir().unwrap(), tree }
        }

        fn socket(&self) -> PathBuf {
            self.dir.path().join("net-1.sock")
        }

        fn open(&self) -> Control {
            let (inventory, _watcher) = Inventory::open(self.tree.settings()).unwrap();
            Control::open_at(self.socket(), Known { inventory, passwords: Passwords::default() }).unwrap()
        }

        /// What comes back when this is sent and nothing more.
        async fn says(&self, sent: &[u8]) -> Vec<u8> {
            let mut stream = UnixStream::connect(self.socket()).await.unwrap();
            stream.write_all(sent).await.unwrap();
            let mut received = Vec::new();
            // A question that is too long is not read to its end, and then the close is a reset.
            let _ = stream.read_to_end(&mut received).await;
            received
        }
    }

    #[test]
    fn root_may_ask_and_who_the_daemon_is() {
        for (uid, owner, may) in [(0, 0, true), (0, 990, true), (990, 990, true), (1000, 990, false), (1000, 0, false)]
        {
            assert_eq!(may_ask(uid, owner), may, "{uid} {owner}");
        }
    }

    #[tokio::test]
    async fn a_question_is_answered_and_anything_else_is_not_understood() {
        let daemon = Daemon::new();
        let _control = daemon.open();
        for (sent, expected) in [
            (&b"password 106\n"[..], &b"no nothing_said\n"[..]),
            (b"password 107\n", b"no vm_unknown\n"),
            (b"password 106\npassword 106\n", b"no nothing_said\n"),
            (b"passwords 106\n", b"no unknown_question\n"),
            (b"\xff\n", b"no unknown_question\n"),
            (&[b'x'; 1024], b"no unknown_question\n"),
        ] {
            assert_eq!(daemon.says(sent).await, expected, "{}", sent.escape_ascii());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_keeps_nobody_from_asking() {
        let daemon = Daemon::new();
        let _control = daemon.open();
        let mut silent = Vec::new();
        for _ in 0..=2 * AT_ONCE {
            silent.push(UnixStream::connect(daemon.socket()).await.unwrap());
        }
        assert_eq!(daemon.says(b"password 106\n").await, b"no nothing_said\n");
    }

    #[tokio::test]
    async fn it_is_roots_alone_and_goes_with_the_daemon() {
        let daemon = Daemon::new();
        fs::write(daemon.socket(), "left").unwrap();
        let control = daemon.open();
        assert_eq!(fs::metadata(daemon.socket()).unwrap().permissions().mode() & 0o777, 0o600);
        let (question, socket) = (VmId::new(106).map(Question::Password).unwrap(), daemon.socket());
        let asked = tokio::task::spawn_blocking(move || ask_at(&socket, question)).await.unwrap();
        assert_eq!(asked.unwrap(), Err(Refusal::NothingSaid));
        drop(control);
        assert!(!daemon.socket().exists());
        assert_eq!(ask_at(&daemon.socket(), question).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
