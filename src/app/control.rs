//! The control socket: who serves in this network namespace, and from where.
//!
//! Its name, `@pve-imds`, is an abstract one (unix(7)): each network namespace has it once, and it ends with the process
//! that holds it, in whatever way that dies. So it is two things. To hold it is the right to serve here, which the lock of
//! the pins alone cannot give: two daemons may have been told of two directories, and would take each guest from one
//! another. To connect to it is how a command learns which directory it is, whatever environment it was started in.
//!
//! In comes nothing but connections; out goes one line of JSON to each. Refused is the word of a process that is neither
//! root's nor our own user's: an abstract name is free to anyone who comes first.

use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// As unix(7) counts it: without the NUL in front.
const NAME: &str = "pve-imds";

/// How long whoever asks waits for the line. A thread that does nothing else sends it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest line that is read: two options' worth, many times over.
const LINE: usize = 16 * 1024;

/// What a daemon says of itself: options that commands must share with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Says {
    /// Where it pins the guard.
    pub pin_dir: PathBuf,
    /// Which kinds of links it takes for guests' interfaces.
    pub accept_kinds: Vec<String>,
}

/// Who holds the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody serves here.
    Nobody,
    /// A daemon; `None`: it did not say what it should in time.
    Daemon {
        /// Its process.
        pid: u32,
        /// Its options.
        says: Option<Says>,
    },
    /// A process that is not to be believed.
    Stranger {
        /// It.
        pid: u32,
        /// Whose it is.
        uid: u32,
    },
}

/// The right to serve in this network namespace, for as long as the process lives.
#[derive(Debug)]
pub struct Control(UnixListener);

impl Control {
    /// Takes the name without waiting.
    ///
    /// # Errors
    /// `AddrInUse`: somebody has it ([`Holder::ask`]).
    pub fn take() -> io::Result<Self> {
        Ok(Self(UnixListener::bind_addr(&SocketAddr::from_abstract_name(NAME)?)?))
    }

    /// Answers whoever connects, on a thread of its own: the daemon's own may be held up by the kernel, and a command
    /// that guards a newborn interface must not wait for that.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn answer(self, says: &Says) -> io::Result<()> {
        let line = serde_json::to_string(says)? + "\n";
        let answer = move || {
            loop {
                match self.0.accept() {
                    // A fresh socket has room for a line, and who does not want it is not missed.
                    Ok((mut stream, _)) => drop(stream.write_all(line.as_bytes())),
                    Err(error) => {
                        tracing::warn!(%error, "the control socket cannot accept");
                        #[expect(
                            clippy::disallowed_methods,
                            reason = "no event says that there are descriptors again"
                        )]
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        };
        std::thread::Builder::new().name("control".into()).spawn(answer)?;
        Ok(())
    }
}

impl Holder {
    /// Asks who it is.
    ///
    /// # Errors
    /// The kernel refuses what it never should.
    pub async fn ask() -> io::Result<Self> {
        let stream = match UnixStream::connect(format!("\0{NAME}")).await {
            Ok(stream) => stream,
            Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => return Ok(Self::Nobody),
            Err(why) => return Err(why),
        };
        // Of the process that made the socket a listener (SO_PEERCRED in unix(7)).
        let peer = stream.peer_cred()?;
        // Of a process in a namespace of processes that we do not see the kernel says 0.
        let pid = peer.pid().and_then(|pid| pid.try_into().ok()).unwrap_or(0);
        let uid = peer.uid();
        if !is_believed(uid, own_user()?) {
            return Ok(Self::Stranger { pid, uid });
        }
        Ok(Self::Daemon { pid, says: timeout(PATIENCE, read(&stream)).await.ok().flatten() })
    }

    /// The options of the daemon that serves here.
    #[must_use]
    pub fn says(&self) -> Option<&Says> {
        match self {
            Self::Daemon { says, .. } => says.as_ref(),
            Self::Nobody | Self::Stranger { .. } => None,
        }
    }
}

/// Whose word counts.
fn is_believed(theirs: u32, ours: u32) -> bool {
    theirs == 0 || theirs == ours
}

/// The user we are: of a socket pair one end is told the other's.
fn own_user() -> io::Result<u32> {
    let (one, _other) = UnixStream::pair()?;
    Ok(one.peer_cred()?.uid())
}

async fn read(stream: &UnixStream) -> Option<Says> {
    let mut line = Vec::new();
    loop {
        stream.ready(Interest::READABLE).await.ok()?;
        let mut bytes = [0; 1024];
        match stream.try_read(&mut bytes) {
            Ok(0) => return serde_json::from_slice(&line).ok(),
            Ok(count) => line.extend_from_slice(&bytes[..count]),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
        if line.len() > LINE {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_ourselves_are_believed() {
        for (theirs, ours, believed) in
            [(0, 0, true), (0, 1000, true), (1000, 1000, true), (1000, 0, false), (1, 2, false)]
        {
            assert_eq!(is_believed(theirs, ours), believed, "{theirs} by {ours}");
        }
    }

    #[test]
    fn what_is_said_is_understood() {
        let says = Says { pin_dir: "/run/x".into(), accept_kinds: vec!["tun".into(), "veth".into()] };
        let line = serde_json::to_string(&says).unwrap();
        assert_eq!(line, r#"{"pin_dir":"/run/x","accept_kinds":["tun","veth"]}"#);
        // A later version may say more.
        let more = line.replace('}', r#","more":1}"#);
        assert_eq!(serde_json::from_str::<Says>(&more).unwrap(), says);
    }
}
