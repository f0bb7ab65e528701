//! The two threads that keep the inventory true.
//!
//! One *works*: it alone touches the tree, one look at a time, so a mount that hangs holds this thread and no other. One
//! *waits*: for the poll, for inotify's hints and for the worker; when a look hangs it marks the inventory stale, and the
//! end of that look is the next try. In come hints; out go snapshots, log lines and metrics. Refused: log lines with
//! anything from the Notes.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};

use pve_imds_model::chain;
use pve_imds_model::conf::Warning;
use pve_imds_model::notes::{Oddity, Remark};
use pve_imds_model::vm::VmId;
use tokio::time::Instant;
use tracing::field::display;
use tracing::{debug, error, info, warn};

use super::again::Again;
use super::files::Tree;
use super::hints::Hints;
use super::inventory::{Inventory, Record, Settings};
use super::keyring::{FileNews, Keyring, News, NodeFile};
use super::metrics;
use super::pace::{Act, Pace};
use super::progress::Progress;
use super::reload::{Event, Loader, Look};
use super::serving::{News as PairNews, Pair};
use super::unread::File;

/// Keeps the inventory true for as long as it lives.
#[derive(Debug)]
#[must_use = "when this is dropped, the inventory is not kept up to date any more"]
pub struct Watcher {
    wake: Sender<Wake>,
    threads: [JoinHandle<()>; 2],
}

impl Watcher {
    /// Whether both threads run. If not, no change of a configuration is seen any more: a fault of ours.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Not joined: the worker may hang in a read for as long as the mount does.
        _ = self.wake.send(Wake::Stop);
    }
}

/// What the waiting thread waits for.
#[derive(Debug)]
enum Wake {
    /// inotify's hint; see [`Hints`].
    Touched(Option<VmId>),
    /// The worker is back.
    Looked {
        failed: Option<String>,
        unsettled: bool,
    },
    Stop,
}

impl Inventory {
    /// Starts to watch. The first look has ended when this returns, unless the tree hangs (1 s).
    ///
    /// A directory that is missing or unreadable is no error: the inventory is then empty and stale, the log says so once,
    /// and every poll tries again.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn open(settings: Settings) -> io::Result<(Arc<Self>, Watcher)> {
        let Settings { dir, node, poll, events, resolv_conf, signing, serving } = settings;
        let progress = Arc::new(Progress::default());
        let (wake, wakes) = channel();
        let ask = wake.clone();
        // Comes back as an error once nobody follows.
        let inventory = Self::new(move || _ = ask.send(Wake::Touched(None)));
        let inventory = Arc::new(inventory.reading(Again::new(dir.clone(), &node)));
        let (order, orders) = channel();
        let (ready, opened) = channel();

        let hints = events.then(|| listen(wake.clone())).flatten();
        let loader = Loader::new(Tree::new(dir.clone(), &node), Arc::clone(&progress));
        let worker = Worker {
            dir,
            resolv_conf,
            loader,
            keyring: Keyring::new(&node, signing, inventory.keys().clone(), inventory.token_keys().clone()),
            pair: serving.then(|| Pair::new(&node, inventory.serving_keys().clone())),
            hints,
            inventory: Arc::clone(&inventory),
            progress: Arc::clone(&progress),
            first: true,
            failing: false,
        };
        let report = wake.clone();
        let files = thread::Builder::new().name("pve-files".into()).spawn(move || worker.run(&orders, &report))?;

        let pace = Pace::new(poll, Instant::now());
        let waiter = Waiter { pace, progress, inventory: Arc::clone(&inventory) };
        let watch = thread::Builder::new().name("pve-watch".into()).spawn(move || waiter.run(&wakes, &order, ready))?;

        // Comes back as an error, when the other end is dropped.
        _ = opened.recv();
        Ok((inventory, Watcher { wake, threads: [files, watch] }))
    }
}

fn listen(wake: Sender<Wake>) -> Option<Hints> {
    let hints = Hints::new(move |vmid| _ = wake.send(Wake::Touched(vmid)));
    hints.inspect_err(|error| warn!(error = chain(error), "inotify is not available; changes are seen by polling")).ok()
}

// === impl Waiter ===

/// The waiting thread.
struct Waiter {
    pace: Pace,
    progress: Arc<Progress>,
    inventory: Arc<Inventory>,
}

impl Waiter {
    /// Drops `opened` when the first look has ended or hangs.
    fn run(mut self, wakes: &Receiver<Wake>, order: &Sender<BTreeSet<VmId>>, opened: Sender<()>) {
        let mut opened = Some(opened);
        loop {
            match receive(wakes, self.pace.wake_at()) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) | Ok(Wake::Stop) => return,
                Ok(Wake::Touched(vmid)) => self.pace.touched(vmid, Instant::now()),
                Ok(Wake::Looked { failed, unsettled }) => {
                    self.inventory.set_stale(failed);
                    if self.pace.looked(unsettled, Instant::now()) {
                        info!("reading the configurations goes on");
                    }
                    metrics::stands(&self.inventory);
                    drop(opened.take());
                }
            }
            match self.pace.elapsed(self.progress.files(), Instant::now()) {
                Act::Wait => {}
                Act::Look(touched) => {
                    if order.send(touched).is_err() {
                        return;
                    }
                }
                Act::Hung => {
                    let file = self.progress.at();
                    error!(%file, "reading the configurations hangs; serving the last good ones");
                    self.inventory.set_stale(Some(format!("reading {file} does not end")));
                    metrics::stands(&self.inventory);
                    drop(opened.take());
                }
            }
        }
    }
}

fn receive(wakes: &Receiver<Wake>, until: Option<Instant>) -> Result<Wake, RecvTimeoutError> {
    match until {
        Some(until) => wakes.recv_timeout(until.saturating_duration_since(Instant::now())),
        None => wakes.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

// === impl Worker ===

/// The working thread.
struct Worker {
    dir: PathBuf,
    resolv_conf: PathBuf,
    loader: Loader,
    keyring: Keyring,
    /// `None`: nobody serves with it.
    pair: Option<Pair>,
    hints: Option<Hints>,
    inventory: Arc<Inventory>,
    progress: Arc<Progress>,
    first: bool,
    failing: bool,
}

impl Worker {
    fn run(mut self, orders: &Receiver<BTreeSet<VmId>>, report: &Sender<Wake>) {
        while let Ok(touched) = orders.recv() {
            self.progress.reads("resolv.conf");
            self.inventory.resolver().read(&self.resolv_conf);
            let number = self.inventory.begin();
            let mut look = self.loader.look(number, &touched, Instant::now());
            let deaf = self.listen(&look);
            metrics::looked(&look);
            if let Some(snapshot) = look.snapshot.take() {
                self.inventory.publish(snapshot);
            }
            if look.failed.is_none() {
                self.inventory.confirm(number);
            }
            self.tell(&look);
            self.progress.reads("the nodes' keys");
            tell_of_keys(&self.keyring.look(&self.dir, Instant::now()));
            if let Some(news) = self.pair.as_mut().and_then(|pair| pair.look(&self.dir, Instant::now())) {
                tell_of_pair(&news);
            }
            let done = Wake::Looked {
                failed: look.failed.as_ref().map(|error| chain(error)),
                unsettled: look.unsettled || deaf,
            };
            if report.send(done).is_err() {
                return;
            }
        }
    }

    /// Listens to where this look has found configurations; whether something could have gone unheard.
    fn listen(&mut self, look: &Look) -> bool {
        match (&mut self.hints, &look.failed) {
            (None, _) => false,
            (Some(hints), None) => hints.arm(&look.dirs, look.start_time),
            (Some(hints), Some(_)) => {
                hints.disarm_all();
                false
            }
        }
    }

    /// Logs what a look has found.
    fn tell(&mut self, look: &Look) {
        for event in &look.events {
            match event {
                Event::Loaded(record) => self.tell_of(record),
                Event::Moved { vmid, owner } => info!(%vmid, %owner, "configuration moved"),
                Event::Unusable { vmid, reason } => warn!(%vmid, %reason, "configuration cannot be read"),
                Event::Usable { vmid } => info!(%vmid, "configuration can be read again"),
                Event::Forgotten { vmid } => info!(%vmid, "configuration gone"),
                Event::Pooled { pools, moved } => {
                    info!(pools = pools.all().count(), vms = pools.members().count(), moved, "pools changed");
                }
                Event::Settings(datacenter) => {
                    let tags = datacenter.registered_tags.len();
                    info!(registered_tags = tags, "the cluster's settings changed");
                }
                Event::Unread { file, reason } => warn!(file, %reason, "what it said last stays in force"),
                Event::Believed { file: File::Config(vmid), reason } => {
                    warn!(%vmid, %reason, "configuration is not whole and counts as it stands");
                }
                Event::Believed { file: File::Cluster(file), reason } => {
                    warn!(file, %reason, "it is not whole and counts as it stands");
                }
            }
        }
        if let Some(error) = &look.failed {
            if !self.failing {
                error!(error = chain(error), "the VMs cannot be listed; serving what is known, trying again");
            }
        } else if self.first || self.failing {
            info!(vms = self.inventory.len(), dir = %self.dir.display(), "configurations loaded");
        }
        self.failing = look.failed.is_some();
        self.first &= self.failing;
    }

    fn tell_of(&self, record: &Record) {
        let Record { vm, owner, digest, .. } = record;
        let vmid = vm.vmid;
        // A node has up to a thousand of them, and their number is told at the end.
        if self.first {
            debug!(%vmid, %owner, %digest, "configuration loaded");
        } else {
            info!(%vmid, %owner, %digest, "configuration changed");
        }
        for warning in record.warnings.iter() {
            let Warning { line, column, reason } = warning;
            if reason.is_dropped() {
                warn!(%vmid, line, column, %reason, "line of the configuration not used");
            } else {
                warn!(%vmid, line, column, %reason, "line of the configuration doubted");
            }
        }
        for Remark { line, column, block, what, outcome } in &vm.notes.remarks {
            let outcome = outcome.map(display);
            match what {
                Oddity::Broken(_) => {
                    warn!(%vmid, block, outcome, line, column, reason = %what, "block of the Notes not used")
                }
                Oddity::NobodysNetwork(_) | Oddity::Unfilled => {
                    warn!(%vmid, block, line, column, reason = %what, "block of the Notes doubted");
                }
                Oddity::Unheeded | Oddity::Misspelt { .. } | Oddity::NoSuchBlock | Oddity::Stray | Oddity::More(_) => {
                    warn!(%vmid, block, outcome, line, column, reason = %what, "line of the Notes not used")
                }
            }
        }
    }
}

/// Logs what became of the nodes' keys.
fn tell_of_keys(news: &[News]) {
    for news in news {
        match news {
            News::Of(NodeFile::Key, FileNews::Read(node)) => info!(%node, "the node's key is known"),
            News::Of(NodeFile::Key, FileNews::Unreadable(node, reason)) => {
                warn!(%node, %reason, "the node's key cannot be read");
            }
            News::Of(NodeFile::Key, FileNews::Gone(node)) => {
                warn!(%node, "the node's key is gone; session tokens that it sealed are not good any more")
            }
            News::Of(NodeFile::Certificate, FileNews::Read(node)) => info!(%node, "the node's certificate is known"),
            News::Of(NodeFile::Certificate, FileNews::Unreadable(node, reason)) => {
                warn!(%node, %reason, "the node's certificate cannot be used; who has the key set may refuse its tokens");
            }
            News::Of(NodeFile::Certificate, FileNews::Gone(node)) => {
                info!(%node, "the node's certificate is gone; its key leaves the key set");
            }
            News::Lacking(reason) => {
                warn!(%reason, "this node has no key: session tokens are refused to everybody who asks for one");
            }
            News::Signs(kid) => info!(%kid, "identity tokens are signed with this key"),
            News::CannotSign(reason) => {
                error!(%reason, "identity tokens are refused to everybody and all else is served; `pvecm updatecerts` makes a key for a node \
                     that has none, and jwtsvid.private_key_path names another");
            }
        }
        if let News::Signs(_) | News::CannotSign(_) = news {
            metrics::signs(matches!(news, News::Signs(_)));
        }
    }
}

/// Logs what became of the pair that TLS is spoken with.
fn tell_of_pair(news: &PairNews) {
    match news {
        PairNews::Read => info!("the key set is served with the certificate that the node has now (jwks.listen)"),
        PairNews::Kept(reason) => warn!(
            %reason,
            "the node's certificate and its key cannot be used as they are; the key set is served with those from before \
             (jwks.listen; `pvecm updatecerts --force` makes new ones)"
        ),
        PairNews::Lacking(reason) => error!(
            %reason,
            "nobody can fetch the key set over TLS until this node has a certificate and its key (jwks.listen; `pvecm \
             updatecerts` makes them)"
        ),
    }
}

#[cfg(test)]
mod tests;
