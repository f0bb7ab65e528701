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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;

use pve_imds_model::fault::Outcome;
use pve_imds_model::vm::VmId;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::files::Tree;
use super::hints::Hints;
use super::inventory::{Inventory, Record, Settings};
use super::metrics;
use super::pace::{Act, Pace};
use super::reload::{Event, Loader, Look, chain};

/// Keeps the inventory true for as long as it lives.
#[derive(Debug)]
#[must_use = "when this is dropped, the inventory is not kept up to date any more"]
pub struct Watcher {
    wake: Sender<Wake>,
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
        failed: bool,
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
        let Settings { dir, node, poll, events } = settings;
        let inventory = Arc::new(Self::empty());
        let progress = Arc::new(AtomicU64::new(0));
        let (wake, wakes) = channel();
        let (order, orders) = channel();
        let (ready, opened) = channel();

        let hints = events.then(|| listen(wake.clone())).flatten();
        let loader = Loader::new(Tree::new(dir.clone(), &node), Arc::clone(&progress));
        let worker = Worker { dir, loader, hints, inventory: Arc::clone(&inventory), first: true, failing: false };
        let report = wake.clone();
        thread::Builder::new().name("pve-files".into()).spawn(move || worker.run(&orders, &report))?;

        let pace = Pace::new(poll, Instant::now());
        let waiter = Waiter { pace, progress, inventory: Arc::clone(&inventory) };
        thread::Builder::new().name("pve-watch".into()).spawn(move || waiter.run(&wakes, &order, ready))?;

        // Comes back as an error, when the other end is dropped.
        _ = opened.recv();
        Ok((inventory, Watcher { wake }))
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
    progress: Arc<AtomicU64>,
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
                    self.pace.looked(unsettled, Instant::now());
                    metrics::stands(&self.inventory);
                    drop(opened.take());
                }
            }
            match self.pace.elapsed(self.progress.load(Ordering::Relaxed), Instant::now()) {
                Act::Wait => {}
                Act::Look(touched) => {
                    if order.send(touched).is_err() {
                        return;
                    }
                }
                Act::Hung => {
                    error!("reading the configurations hangs; serving the last good ones");
                    self.inventory.set_stale(true);
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
    loader: Loader,
    hints: Option<Hints>,
    inventory: Arc<Inventory>,
    first: bool,
    failing: bool,
}

impl Worker {
    fn run(mut self, orders: &Receiver<BTreeSet<VmId>>, report: &Sender<Wake>) {
        while let Ok(touched) = orders.recv() {
            let mut look = self.loader.look(&touched, Instant::now());
            let deaf = self.listen(&look);
            metrics::looked(&look);
            if let Some(snapshot) = look.snapshot.take() {
                self.inventory.publish(snapshot);
            }
            self.tell(&look);
            let done = Wake::Looked { failed: look.failed.is_some(), unsettled: look.unsettled || deaf };
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
                Event::Unusable { vmid, reason } => warn!(%vmid, reason, "configuration cannot be read"),
                Event::Forgotten { vmid } => info!(%vmid, "configuration gone"),
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
            warn!(%vmid, line = warning.line, reason = %warning.reason, "line of the configuration not used");
        }
        let user_data = vm.notes.user_data.as_ref().and_then(|block| block.as_ref().err());
        let network_config = vm.notes.network_config.as_ref().and_then(|block| block.as_ref().err());
        for (block, error) in [("user-data", user_data), ("network-config", network_config)] {
            if let Some(error) = error {
                warn!(%vmid, block, outcome = %Outcome::NotesInvalid, reason = %error, "block of the Notes not used");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pve_imds_model::request::{Directory, Link, UnknownCaller};
    use pve_imds_model::tap::TapName;
    use tokio::time::timeout;

    use super::super::overheard::overhear;
    use super::super::pace::READ_LIMIT;
    use super::*;
    use crate::testing::{PveTree, sample_config};

    /// How soon a change is served when inotify tells of it, and when nothing does.
    const WITH_EVENT: Duration = Duration::from_millis(250);
    const WITHOUT_EVENT: Duration = Duration::from_secs(2);

    /// A poll that never comes.
    const NEVER: Duration = Duration::from_secs(3600);

    fn id(vmid: u32) -> VmId {
        VmId::new(vmid).unwrap()
    }

    fn config(name: &str) -> String {
        format!("name: {name}\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n")
    }

    fn name(inventory: &Inventory, vmid: u32) -> Option<String> {
        inventory.vm(id(vmid)).map(|record| record.vm.name.clone().unwrap_or_default())
    }

    /// How long it takes until `condition` holds.
    async fn until(inventory: &Inventory, mut condition: impl FnMut(&Inventory) -> bool) -> Duration {
        let start = Instant::now();
        let mut changes = inventory.changes();
        let wait = async {
            while !condition(inventory) {
                changes.changed().await.unwrap();
            }
        };
        timeout(WITHOUT_EVENT, wait).await.expect("the change is not served");
        start.elapsed()
    }

    /// Every way in which a configuration changes, and how long each takes to be served.
    async fn changes(mut pve: PveTree, settings: Settings) -> Vec<Duration> {
        let mut took = Vec::new();
        pve.put(106, &config("a")).unwrap();
        let (inventory, _watcher) = Inventory::open(settings).unwrap();
        assert_eq!(
            name(&inventory, 106).as_deref(),
            Some("a"),
            "the first look ends before the inventory is given out"
        );
        assert!(!inventory.is_stale());

        pve.put(106, &config("b")).unwrap();
        took.push(until(&inventory, |it| name(it, 106).as_deref() == Some("b")).await);
        pve.put_in_place(106, &config("c")).unwrap();
        took.push(until(&inventory, |it| name(it, 106).as_deref() == Some("c")).await);
        pve.put(107, &config("d")).unwrap();
        took.push(until(&inventory, |it| name(it, 107).as_deref() == Some("d")).await);
        pve.remove(107).unwrap();
        took.push(until(&inventory, |it| name(it, 107).is_none()).await);
        took
    }

    #[tokio::test]
    async fn a_change_through_this_node_is_served_at_once() {
        for pve in [PveTree::cluster("pve1"), PveTree::uncounted("pve1"), PveTree::plain("pve1")] {
            let pve = pve.unwrap();
            let settings = Settings { poll: NEVER, ..pve.settings() };
            let mut took = changes(pve, settings).await;
            took.sort_unstable();
            // The median, because a busy machine may keep any one of them waiting.
            assert!(took[took.len() / 2] < WITH_EVENT, "{took:?}");
        }
    }

    #[tokio::test]
    async fn a_change_that_nothing_tells_of_is_served_by_the_poll() {
        for pve in [PveTree::cluster("pve1"), PveTree::uncounted("pve1")] {
            let pve = pve.unwrap();
            let settings = Settings { events: false, ..pve.settings() };
            assert_eq!(settings.poll, Duration::from_millis(500));
            let took = changes(pve, settings).await;
            assert!(took.iter().all(|took| *took < WITHOUT_EVENT), "{took:?}");
        }
    }

    #[tokio::test]
    async fn what_goes_to_another_node_is_followed_there() {
        let mut pve = PveTree::cluster("pve1").unwrap();
        pve.put(106, &config("a")).unwrap();
        let (inventory, _watcher) = Inventory::open(Settings { poll: NEVER, ..pve.settings() }).unwrap();
        pve.migrate(106, "pve2").unwrap();
        until(&inventory, |it| it.vm(id(106)).is_some_and(|record| *record.owner == *"pve2")).await;
        pve.put(106, &config("b")).unwrap();
        until(&inventory, |it| name(it, 106).as_deref() == Some("b")).await;
    }

    #[tokio::test]
    async fn a_directory_that_is_missing_is_waited_for() {
        let mut pve = PveTree::cluster("pve1").unwrap();
        pve.put(106, &config("a")).unwrap();
        let stopped = pve.stop().unwrap();
        let (inventory, _watcher) = Inventory::open(pve.settings()).unwrap();
        assert!(inventory.is_stale());
        assert!(inventory.records().is_empty());
        let link = Link { tap: TapName::parse("tap106i0").unwrap(), index: 7 };
        assert_eq!(inventory.find(link), Err(UnknownCaller::NoConfig));
        pve.start(&stopped).unwrap();
        until(&inventory, |it| !it.is_stale()).await;
        assert_eq!(inventory.find(link).unwrap().name.as_deref(), Some("a"));
    }

    #[tokio::test]
    async fn a_file_system_that_goes_leaves_the_last_good_state() {
        let mut pve = PveTree::cluster("pve1").unwrap();
        pve.put(106, &config("a")).unwrap();
        let (inventory, _watcher) = Inventory::open(pve.settings()).unwrap();
        let stopped = pve.stop().unwrap();
        until(&inventory, Inventory::is_stale).await;
        assert_eq!(name(&inventory, 106).as_deref(), Some("a"));
        pve.start(&stopped).unwrap();
        until(&inventory, |it| !it.is_stale()).await;
    }

    #[tokio::test]
    async fn both_threads_end_with_the_watcher() {
        let pve = PveTree::cluster("pve1").unwrap();
        let (inventory, watcher) = Inventory::open(pve.settings()).unwrap();
        assert_eq!(Arc::strong_count(&inventory), 3);
        drop(watcher);
        let ended = async {
            while Arc::strong_count(&inventory) > 1 {
                tokio::task::yield_now().await;
            }
        };
        timeout(WITHOUT_EVENT, ended).await.expect("a thread goes on");
    }

    /// The waiting thread with a worker that never comes back: the test plays its part.
    #[tokio::test]
    async fn a_mount_that_hangs_holds_one_look_and_nobody_else() {
        let inventory = Arc::new(Inventory::empty());
        inventory.set_stale(false);
        let (wake, wakes) = channel();
        let (order, orders) = channel();
        let (ready, opened) = channel::<()>();
        let pace = Pace::new(Duration::from_millis(10), Instant::now());
        let waiter = Waiter { pace, progress: Arc::default(), inventory: Arc::clone(&inventory) };
        let thread = thread::spawn(move || waiter.run(&wakes, &order, ready));

        let start = Instant::now();
        assert_eq!(orders.recv().unwrap(), BTreeSet::new());
        assert!(opened.recv().is_err(), "whoever opens the inventory is let go");
        assert!(inventory.is_stale());
        assert!(start.elapsed() >= READ_LIMIT);
        wake.send(Wake::Touched(VmId::new(106))).unwrap();
        assert!(orders.recv_timeout(Duration::from_millis(100)).is_err(), "one look at a time");

        wake.send(Wake::Looked { failed: false, unsettled: false }).unwrap();
        assert_eq!(orders.recv().unwrap(), BTreeSet::from([id(106)]));
        assert!(!inventory.is_stale());
        wake.send(Wake::Stop).unwrap();
        thread.join().unwrap();
    }

    /// Looks once, on this thread, and says what was logged and counted.
    fn look_once(pve: &PveTree) -> (String, Vec<String>) {
        let inventory = Arc::new(Inventory::empty());
        let loader = Loader::new(Tree::new(pve.path().to_owned(), "pve1"), Arc::default());
        let dir = pve.path().to_owned();
        let worker =
            Worker { dir, loader, hints: None, inventory: Arc::clone(&inventory), first: true, failing: false };
        let (order, orders) = channel();
        order.send(BTreeSet::new()).unwrap();
        drop(order);
        let (report, _reports) = channel();
        let (log, meters) = overhear(|| {
            worker.run(&orders, &report);
            metrics::stands(&inventory);
        });
        (log.join("\n"), meters)
    }

    #[test]
    fn the_log_names_vm_owner_and_line_and_nothing_that_is_written_there() {
        let mut pve = PveTree::cluster("pve1").unwrap();
        let notes = "<!--#user-data canary=1\ncanary\n-->\n<!--#network-config\ncanary: 3\n-->\ncanary";
        pve.put(106, &format!("{}canary\nboot: canary=\n", sample_config(id(106), notes))).unwrap();
        let (log, _) = look_once(&pve);
        for said in [
            "vmid=106 owner=pve1 digest=",
            "WARN message=line of the configuration not used vmid=106 line=13 ",
            "vmid=106 block=\"user-data\" outcome=notes_invalid ",
            "vmid=106 block=\"network-config\" outcome=notes_invalid ",
            "vms=1",
        ] {
            assert!(log.contains(said), "{said} is not in\n{log}");
        }
        assert!(!log.contains("canary"), "{log}");
    }

    #[test]
    fn looks_and_vms_are_counted() {
        let mut pve = PveTree::cluster("pve1").unwrap();
        pve.put(106, &config("a")).unwrap();
        // The worker alone vouches for nothing: fresh is what the waiting thread has seen it come back from.
        assert_eq!(
            look_once(&pve).1,
            [
                "pve_imds_inventory_reloads_total{result=changed} 1",
                "pve_imds_inventory_stale{} 1",
                "pve_imds_inventory_vms{} 1",
            ]
        );
        pve.put(107, &"#".repeat((1 << 20) + 1)).unwrap();
        assert_eq!(look_once(&pve).1[0], "pve_imds_inventory_reloads_total{result=incomplete} 1");
        let _stopped = pve.stop().unwrap();
        assert_eq!(look_once(&pve).1[0], "pve_imds_inventory_reloads_total{result=failed} 1");
    }
}
