//! A secret store for everyone's tests and the demo: KV version 2 as OpenBao speaks it, over real TLS on a real socket.
//!
//! In come sets, tokens and what shall go wrong; out go answers as OpenBao gives them, and what was [`Asked`]. Each
//! connection has a thread; all of them have ended when the store is dropped. What it does not pretend: to write over
//! HTTP, to give old versions, to have more than one namespace, tokens in `Authorization`, policies with more than a `*`
//! at their end, mounts (whatever stands before `data/` is one), and time: every version was made in the same moment.

mod asked;
mod authority;
mod content;
mod failure;
mod gate;
mod http;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use openssl::ssl::SslAcceptor;
use tempfile::TempDir;

pub use asked::Asked;
pub use authority::Authority;
use content::Content;
pub use failure::Failure;
use failure::Next;
use gate::Gate;
use http::{Question, Wire};

/// Of all questions the last so many are remembered.
const MAX_ASKED: usize = 10_000;

/// A connection on which nobody moves for this long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// A store that runs until it is dropped.
pub struct Store {
    address: SocketAddr,
    inside: Arc<Inside>,
    /// While it runs: the socket that it listens at.
    latch: Option<TcpStream>,
    /// Dropped before the thread is waited for.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// To the thread that accepts, while it has no listener: bind again, and say what came of it.
struct Order(Sender<io::Result<TcpStream>>);

struct Inside {
    content: Mutex<Content>,
    failure: Mutex<Failure>,
    asked: Mutex<VecDeque<Asked>>,
    connections: AtomicU64,
    door: Mutex<Door>,
}

/// How connections that come now are received.
#[derive(Clone)]
struct Door {
    gate: Arc<Gate>,
    identity: SslAcceptor,
}

impl Store {
    /// One at a port of `127.0.0.1` that the kernel picks.
    ///
    /// # Errors
    /// The system gives no port or no thread, OpenSSL no certificate; so for the next two.
    pub fn start(authority: &Authority) -> io::Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), authority)
    }

    /// One at this address, which may be that of another that has just gone.
    ///
    /// # Errors
    /// As [`Store::start`].
    pub fn start_at(address: SocketAddr, authority: &Authority) -> io::Result<Self> {
        // The standard library sets SO_REUSEADDR.
        Self::on(TcpListener::bind(address)?, authority)
    }

    /// One at a listener that is there already. After [`Store::stop`] its port is bound again in the network namespace of
    /// the thread that calls this.
    ///
    /// # Errors
    /// As [`Store::start`].
    pub fn on(listener: TcpListener, authority: &Authority) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let inside = Arc::new(Inside {
            content: Mutex::default(),
            failure: Mutex::new(Failure::None),
            asked: Mutex::default(),
            connections: AtomicU64::new(0),
            door: Mutex::new(Door { gate: Arc::default(), identity: authority.identity()? }),
        });
        let latch = latch(&listener)?;
        let (orders, ordered) = channel();
        let accepts = Arc::clone(&inside);
        let thread =
            thread::Builder::new().name("kv-store".into()).spawn(move || accept(&accepts, listener, &ordered))?;
        Ok(Self { address, inside, latch: Some(latch), orders: Some(orders), thread: Some(thread) })
    }

    /// One as tests and the demo want it: with a token that may read what `policy` says, and a directory in which the token
    /// stands as `token` and the certificate that vouches for the store as `ca.pem`. The authority is for others like it.
    ///
    /// # Errors
    /// As [`Store::start`], and if a file cannot be written.
    pub fn furnished(token: &str, policy: &[&str]) -> io::Result<(Self, Authority, TempDir)> {
        let authority = Authority::new()?;
        let store = Self::start(&authority)?;
        store.token(token, policy);
        let files = tempfile::tempdir()?;
        fs::write(files.path().join("token"), token)?;
        fs::write(files.path().join("ca.pem"), authority.pem())?;
        Ok((store, authority, files))
    }

    /// Where it listens, or would.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as `https://address:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// From now on it shows a certificate of this authority. All connections are closed.
    ///
    /// # Errors
    /// OpenSSL makes no certificate; nothing has changed then.
    pub fn restart_with(&mut self, authority: &Authority) -> io::Result<()> {
        let identity = authority.identity()?;
        self.inside.lock_up(Some(identity)).close();
        Ok(())
    }

    /// Its port is closed, and all connections.
    pub fn stop(&mut self) {
        let gate = Arc::clone(&lock(&self.inside.door).gate);
        if let Some(latch) = self.latch.take() {
            // Wakes whoever accepts; the kernel refuses connections from here on.
            _ = latch.shutdown(Shutdown::Both);
        }
        gate.close();
    }

    /// The same port is open again, with the same content.
    ///
    /// # Errors
    /// Somebody else has the port.
    pub fn go_on(&mut self) -> io::Result<()> {
        if self.latch.is_some() {
            return Ok(());
        }
        self.inside.lock_up(None);
        let (answers, answered) = channel();
        let gone = || io::Error::other("the thread that accepts is gone");
        self.orders.as_ref().and_then(|orders| orders.send(Order(answers)).ok()).ok_or_else(gone)?;
        self.latch = Some(answered.recv().map_err(|_| gone())??);
        Ok(())
    }

    /// This token may read these paths from now on, and no others: paths below `/v1/`, with `*` at the end of those that
    /// stand for all that begin so.
    pub fn token(&self, token: &str, policy: &[&str]) {
        lock(&self.inside.content).grant(token, policy);
    }

    /// This token is none any more.
    pub fn revoke(&self, token: &str) {
        lock(&self.inside.content).revoke(token);
    }

    /// From now on everything is in this namespace, and nothing outside of it.
    pub fn namespace(&self, name: &str) {
        lock(&self.inside.content).namespace(name);
    }

    /// A new version of the set at this path below `/v1/`, `data/` included.
    ///
    /// # Panics
    /// No engine has such a path, or `fields` is no object.
    pub fn put(&self, path: &str, fields: serde_json::Value) {
        lock(&self.inside.content).put(path, fields);
    }

    /// The latest version is deleted, and could be brought back.
    pub fn delete(&self, path: &str) {
        lock(&self.inside.content).delete(path);
    }

    /// The latest version is destroyed.
    pub fn destroy(&self, path: &str) {
        lock(&self.inside.content).destroy(path);
    }

    /// From now on this goes wrong, with connections that are there too. Those are closed if it is in how they begin.
    pub fn fail(&self, failure: Failure) {
        let mut now = lock(&self.inside.failure);
        let begins_anew = now.is_at_the_door() || failure.is_at_the_door();
        *now = failure;
        drop(now);
        if begins_anew && self.latch.is_some() {
            self.inside.lock_up(None).close();
        }
    }

    /// The last 10,000 questions, the oldest first.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.inside.asked).iter().cloned().collect()
    }

    /// How many connections it has accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.inside.connections.load(Ordering::Relaxed)
    }
}

/// Waits until its threads have ended.
impl Drop for Store {
    fn drop(&mut self) {
        self.stop();
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // It has told about its own panic.
            _ = thread.join();
        }
    }
}

/// Nothing of what it holds.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Inside {
    /// Whoever comes now passes another gate. Returned is the one before.
    fn lock_up(&self, identity: Option<SslAcceptor>) -> Arc<Gate> {
        let mut door = lock(&self.door);
        if let Some(identity) = identity {
            door.identity = identity;
        }
        std::mem::take(&mut door.gate)
    }

    fn receive(self: &Arc<Self>, stream: TcpStream) -> io::Result<()> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let Door { gate, identity } = lock(&self.door).clone();
        let inside = Arc::clone(self);
        gate.enter(stream, move |gate, stream| {
            // It ends in an error whenever the other side does not behave.
            drop(inside.serve(gate, &identity, stream));
        })
    }

    fn serve(&self, gate: &Gate, identity: &SslAcceptor, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IDLE))?;
        stream.set_write_timeout(Some(IDLE))?;
        let failure = lock(&self.failure).clone();
        match failure {
            Failure::SilentBeforeTls => Wire::new(stream).swallow(),
            Failure::PlainHttp => self.talk(gate, Wire::new(stream)),
            _ => self.talk(gate, Wire::new(identity.accept(stream).map_err(io::Error::other)?)),
        }
    }

    fn talk<S: io::Read + io::Write>(&self, gate: &Gate, mut wire: Wire<S>) -> io::Result<()> {
        while let Some(question) = wire.question()? {
            let failure = lock(&self.failure).clone();
            let right = match &question {
                Question::Good(asked) => {
                    self.remember(asked);
                    lock(&self.content).answer(asked)
                }
                Question::Bad => http::Answer::errors(400, &[]),
            };
            let next = match &question {
                Question::Good(_) => failure.meet(&mut wire, gate, right)?,
                Question::Bad => {
                    wire.write(&right.bytes(0))?;
                    Next::Close
                }
            };
            if next == Next::Close || wire.is_last() {
                break;
            }
        }
        Ok(())
    }

    fn remember(&self, asked: &Asked) {
        let mut all = lock(&self.asked);
        if all.len() == MAX_ASKED {
            all.pop_front();
        }
        all.push_back(asked.clone());
    }
}

/// A handle on a listener by which it can be woken and closed: `shutdown` is a stream's alone in the standard library.
fn latch(listener: &TcpListener) -> io::Result<TcpStream> {
    Ok(OwnedFd::from(listener.try_clone()?).into())
}

/// Accepts until the latch falls, and then waits for orders.
fn accept(inside: &Arc<Inside>, mut listener: TcpListener, orders: &Receiver<Order>) {
    let Ok(address) = listener.local_addr() else { return };
    loop {
        loop {
            match listener.accept() {
                // Without a thread it is closed at once.
                Ok((stream, _)) => drop(inside.receive(stream)),
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                Err(_) => {
                    // The other side left in between, or descriptors are short.
                    let gate = Arc::clone(&lock(&inside.door).gate);
                    gate.pause(Duration::from_millis(10));
                }
            }
        }
        drop(listener);
        listener = loop {
            let Ok(Order(answer)) = orders.recv() else { return };
            let bound = TcpListener::bind(address).and_then(|listener| Ok((latch(&listener)?, listener)));
            match bound {
                Ok((latch, listener)) => {
                    _ = answer.send(Ok(latch));
                    break listener;
                }
                Err(error) => _ = answer.send(Err(error)),
            }
        };
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
