//! OpenBao and Vault: sets of secrets (KV version 2), over HTTPS.
//!
//! In comes the path of a set; out goes the set, or the [`FetchError`] that says what is in the way and what mends it. A set
//! that was fetched is used again for a while; whoever asks for one that is just being fetched waits for that; and a store
//! that fails is asked again once a second and set ([`shelf`]). All of it happens on a thread of its own, which a handshake
//! or a name that does not resolve may hold. Refused: plain HTTP, redirects, proxies, answers over 256 KiB, and to wait
//! for longer than [`TOTAL`]. No text of an answer is ever in an error.

mod address;
mod answer;
mod credentials;
mod error;
mod lookup;
mod shelf;
mod store;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use metrics::{counter, describe_counter};
use pve_imds_model::fault::Outcome;
use pve_imds_model::secrets::SecretPath;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

pub use address::{Address, BadAddress, BadNamespace, Namespace};
pub use answer::{SecretSet, Value};
pub use credentials::{BadAuthority, BadToken, check_authority, check_token};
pub use error::{Failure, FetchError, Missing};
use shelf::{Shelf, Turn};
use store::Store;

/// For a connection to the store: name, TCP and TLS.
const CONNECT: Duration = Duration::from_millis(300);

/// For all of one attempt, the token's file included: clients wait for an answer for a second.
pub const TOTAL: Duration = Duration::from_millis(900);

/// For each file that is read.
const FILE: Duration = Duration::from_millis(100);

/// Bytes of the largest answer.
const MAX_BODY: usize = 256 << 10;

/// Bytes of the largest token's file.
const MAX_TOKEN: usize = 4 << 10;

const FETCHES: &str = "pve_imds_secret_fetches_total";

/// Where the store is and how it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where it is.
    pub address: Address,
    /// Which part of it is meant.
    pub namespace: Option<Namespace>,
    /// The certificates that vouch for it; `None`: the system's.
    pub authority: Option<PathBuf>,
    /// What this node shows it.
    pub token: PathBuf,
    /// For how long a set is used again.
    pub cache: Duration,
}

/// A store. Clones are the same one; with the last of them its thread ends.
#[derive(Clone, Debug)]
pub struct OpenBao(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shelf: Mutex<Shelf>,
    store: Arc<Store>,
    /// Begins with the first question. `None`: it could not.
    desk: OnceLock<Option<Desk>>,
}

/// The thread that asks.
#[derive(Debug)]
struct Desk {
    runtime: Handle,
    /// Dropped with us, and then the thread ends.
    _ends: oneshot::Sender<()>,
}

/// What an attempt came to.
type Landed = Result<Arc<SecretSet>, Arc<FetchError>>;

/// Says what is counted here. Once, after the recorder is installed.
pub fn describe() {
    describe_counter!(
        FETCHES,
        "Attempts to fetch a set of secrets by outcome: `ok`, or the word that guests are answered. What was at hand is \
         not counted."
    );
    // A series that begins with its first event hides that event from `increase()`.
    for outcome in
        [Outcome::Ok, Outcome::TokenUnreadable, Outcome::SecretFetchFailed, Outcome::SecretDenied, Outcome::SetMissing]
    {
        counter!(FETCHES, "outcome" => outcome.word()).absolute(0);
    }
}

impl OpenBao {
    /// One that nobody has been asked of yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let shelf = Mutex::new(Shelf::new(settings.cache, Instant::now()));
        Self(Arc::new(Inner { shelf, store: Arc::new(Store::new(settings)), desk: OnceLock::new() }))
    }

    /// The set at `path`. One that is at hand and not `enough`, because somebody may have added to it since, is fetched again
    /// if its turn has come.
    ///
    /// # Errors
    /// [`FetchError`]; it may be that of another who asked within the same second.
    pub async fn set(&self, path: &SecretPath, enough: impl Fn(&SecretSet) -> bool) -> Landed {
        let turn = self.0.shelf().turn(path, enough, Instant::now());
        let landing = match turn {
            Turn::Have(set) => return Ok(set),
            Turn::Failed(error) => return Err(error),
            Turn::Join(landing) => landing,
            Turn::Begin(lands) => {
                let landing = lands.subscribe();
                self.begin(path.clone(), lands);
                landing
            }
        };
        land(landing).await
    }

    /// Asks the store, whatever is at hand: for whoever looks for faults.
    ///
    /// # Errors
    /// [`FetchError`]
    pub async fn ask(&self, path: &SecretPath) -> Landed {
        let (lands, landing) = watch::channel(None);
        self.begin(path.clone(), lands);
        land(landing).await
    }

    fn begin(&self, path: SecretPath, lands: watch::Sender<Option<Landed>>) {
        // It goes on if whoever asked leaves.
        let inner = Arc::clone(&self.0);
        match self.0.desk.get_or_init(|| Desk::open().ok()) {
            Some(desk) => _ = desk.runtime.spawn(inner.fly(path, lands)),
            None => _ = inner.land(&path, &Err(Failure::Broke.into()), &lands),
        }
    }
}

impl Inner {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One attempt, and later the end of what it brought.
    async fn fly(self: Arc<Self>, path: SecretPath, lands: watch::Sender<Option<Landed>>) {
        let (store, asked) = (Arc::clone(&self.store), path.clone());
        // Whatever falls over in it lands too.
        let landed = match tokio::spawn(async move { store.fetch(&asked).await }).await {
            Ok(fetched) => fetched.map(Arc::new).map_err(Arc::new),
            Err(_) => Err(Failure::Broke.into()),
        };
        let until = self.land(&path, &landed, &lands);
        let (Some(until), this) = (until, Arc::downgrade(&self)) else { return };
        drop((self, landed, lands));
        // Values are wiped when their time is over, whether or not somebody asks again.
        sleep_until(until).await;
        if let Some(this) = this.upgrade() {
            this.shelf().forget(Instant::now());
        }
    }

    /// Puts it where those who wait and those who come later find it. Until when it is kept.
    fn land(&self, path: &SecretPath, landed: &Landed, lands: &watch::Sender<Option<Landed>>) -> Option<Instant> {
        let outcome = landed.as_ref().map_or_else(|error| error.outcome(), |_| Outcome::Ok);
        counter!(FETCHES, "outcome" => outcome.word()).increment(1);
        let until = self.shelf().landed(path, landed, Instant::now());
        // Comes back as an error if nobody waits any more.
        _ = lands.send(Some(landed.clone()));
        until
    }
}

impl Desk {
    fn open() -> io::Result<Self> {
        // One token, one authority and one name are read at a time; see there.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
        let handle = runtime.handle().clone();
        let (ends, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("openbao".into()).spawn(move || {
            // Comes back as an error once nobody asks any more.
            _ = runtime.block_on(ended);
            // What hangs in a file or a name is left to itself.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, _ends: ends })
    }
}

async fn land(mut landing: watch::Receiver<Option<Landed>>) -> Landed {
    let landed = landing.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone());
    landed.unwrap_or_else(|| Err(Failure::Broke.into()))
}

#[cfg(test)]
mod tests;
