//! The snapshot that requests read.
//!
//! In come whole snapshots from `watch`; out goes "whose interface is this?" in a few dozen nanoseconds: no lock, no wait,
//! no IO. A snapshot is never changed, only replaced.
//!
//! VMIDs are given again. What is known of a VM whose file cannot be read now may be another VM's than the one that has
//! its number by now. But an interface lives as long as the QEMU behind it: who was there at the last look that found
//! everything is still who it was. So looks are numbered, an interface is [met](Inventory::meet) before a certain one,
//! and [`answers`] is the table of what may be told to whom.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use pve_imds_model::conf::Warning;
use pve_imds_model::datacenter::Datacenter;
use pve_imds_model::identity::Lifetime;
use pve_imds_model::pools::{PoolId, Pools};
use pve_imds_model::request::{Directory, Link, UnknownCaller};
use pve_imds_model::vm::{Vm, VmId};
use tokio::sync::watch;
use tokio::time::Instant;

use super::again::Again;
use super::unread::{File, Trouble, Unread};
use super::verdict::Sign;
use crate::keys::{NodeKeys, ServingKeys, TokenKeys};
use crate::resolver::Resolver;

/// Where the configurations are and how often to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `/etc/pve`, or a tree like it.
    pub dir: PathBuf,
    /// This node's name: the host name up to its first dot.
    pub node: String,
    /// The longest time between two looks at the list of VMs.
    pub poll: Duration,
    /// Let inotify shorten that time. Nothing depends on it.
    pub events: bool,
    /// The node's own resolver; see [`Resolver`].
    pub resolv_conf: PathBuf,
    /// See [`Signing`].
    pub signing: Signing,
    /// Whether TLS is going to be spoken with this node's certificate, which is read only then.
    pub serving: bool,
}

/// What identity tokens are signed with, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signing {
    /// The private key; `None`: this node's, `nodes/<node>/pve-ssl.key`.
    pub private_key: Option<PathBuf>,
    /// Where the nodes' certificates are; `None`: `nodes`.
    pub nodes_dir: Option<PathBuf>,
    /// For how long a token is good.
    pub lifetime: Duration,
}

impl Default for Signing {
    fn default() -> Self {
        let lifetime = Duration::from_secs(Lifetime::default().seconds().into());
        Self { private_key: None, nodes_dir: None, lifetime }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dir: "/etc/pve".into(),
            node: String::new(),
            poll: Duration::from_millis(500),
            events: true,
            resolv_conf: "/etc/resolv.conf".into(),
            signing: Signing::default(),
            serving: false,
        }
    }
}

/// SHA-1 of a configuration file: what Proxmox's API calls its `digest`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 20]);

impl Digest {
    /// The digest of a whole file.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(openssl::sha::sha1(bytes))
    }
}

/// Forty lower-case hexadecimal digits.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A VM and how we know it.
#[derive(Clone)]
pub struct Record {
    /// What its configuration says.
    pub vm: Arc<Vm>,
    /// The node whose directory holds the configuration; another than ours while the VM is migrating here.
    pub owner: Arc<str>,
    /// The file that [`Record::vm`] was read from.
    pub path: Arc<Path>,
    /// Of that file.
    pub digest: Digest,
    /// The pool that `user.cfg` puts the VM in, as it could be read last.
    pub pool: Option<PoolId>,
    /// The configuration says something. It does not while a VM is being created, cloned or destroyed.
    pub ready: bool,
    /// The file, or the whole tree, could not be read again when it should have been; this is the last good state.
    pub stale: bool,
    /// What in the configuration could not be used.
    pub warnings: Arc<[Warning]>,
}

/// Notes may hold what should not be in a log.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("vmid", &self.vm.vmid)
            .field("owner", &self.owner)
            .field("digest", &self.digest)
            .field("pool", &self.pool)
            .field("ready", &self.ready)
            .field("stale", &self.stale)
            .finish_non_exhaustive()
    }
}

/// All VMs of the cluster, in memory. Reading never waits.
pub struct Inventory {
    snapshot: ArcSwap<Snapshot>,
    stale: AtomicBool,
    trouble: Mutex<Option<Trouble>>,
    /// How many looks have begun.
    begun: AtomicU64,
    /// The last of them that could list the VMs.
    confirmed: AtomicU64,
    /// Asks for another.
    ask: Box<dyn Fn() + Send + Sync>,
    changes: watch::Sender<u64>,
    resolver: Resolver,
    keys: NodeKeys,
    tokens: TokenKeys,
    serving: ServingKeys,
    again: Option<Again>,
}

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) vms: HashMap<VmId, Entry>,
    /// What should have been read and could not be, or is not whole.
    pub(super) unread: Unread,
    pub(super) pools: Arc<Pools>,
    pub(super) datacenter: Arc<Datacenter>,
    /// Somebody counts what is written: it is pmxcfs, and where it is not to be seen it is down.
    pub(super) counted: bool,
}

/// What is known of a VM before it is [read again](super::again), all of one moment.
pub(super) struct Before {
    pub(super) record: Record,
    /// By what the file is known to be half.
    pub(super) flaw: Option<Sign>,
    pub(super) pools: Arc<Pools>,
    pub(super) datacenter: Arc<Datacenter>,
    pub(super) unread: Unread,
    pub(super) counted: bool,
}

/// A record, and the question asked per request answered in advance.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) record: Record,
    /// Bit `n` for `net<n>`.
    nics: u32,
    /// The last look that found the file as it is here, if one after it could not.
    kept: Option<u64>,
    /// By what that is known to be half of something.
    flaw: Option<Sign>,
}

impl Entry {
    pub(super) fn new(record: Record) -> Self {
        let nics = record.vm.nets.iter().fold(0, |nics, nic| nics | bit(nic.index));
        Self { nics, record, kept: None, flaw: None }
    }

    /// The same, of half a file if this says so.
    pub(super) fn with(self, flaw: Option<Sign>) -> Self {
        Self { flaw, ..self }
    }

    /// The file cannot be read; the look `last` was the last that could be relied on. Whether that is new.
    pub(super) fn keep(&mut self, last: u64) -> bool {
        let new = self.kept.is_none();
        self.kept.get_or_insert(last);
        new
    }

    /// The file is as it is here. Whether that is new.
    pub(super) fn confirm(&mut self) -> bool {
        self.kept.take().is_some()
    }

    pub(super) fn is_stale(&self) -> bool {
        self.kept.is_some()
    }
}

/// The table: whether what is known of a VM may be told to an interface that was met after the look `since` had begun.
/// `kept`: the look that found the VM's file last, if the file cannot be read now. `lost`: the look that found the tree
/// last, if that cannot be read now.
fn answers(since: u64, kept: Option<u64>, lost: Option<u64>) -> bool {
    match (kept, lost) {
        (None, None) => true,
        (Some(last), None) | (None, Some(last)) => since < last,
        (Some(kept), Some(lost)) => since < kept.min(lost),
    }
}

/// The bit of a NIC; none for numbers that no NIC has.
fn bit(nic: u8) -> u32 {
    1u32.checked_shl(nic.into()).unwrap_or(0)
}

impl Inventory {
    /// Without a VM, and stale: nothing has been read yet.
    pub(super) fn empty() -> Self {
        Self::new(|| {})
    }

    /// The same. `ask` has somebody look soon.
    pub(super) fn new(ask: impl Fn() + Send + Sync + 'static) -> Self {
        let trouble = Trouble { since: Instant::now(), why: "nothing has been read yet".into() };
        Self {
            snapshot: ArcSwap::default(),
            stale: AtomicBool::new(true),
            trouble: Mutex::new(Some(trouble)),
            begun: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            ask: Box::new(ask),
            changes: watch::Sender::new(0),
            resolver: Resolver::default(),
            keys: NodeKeys::default(),
            tokens: TokenKeys::default(),
            serving: ServingKeys::default(),
            again: None,
        }
    }

    /// The same, of a tree that can be read again for a request.
    pub(super) fn reading(self, again: Again) -> Self {
        Self { again: Some(again), ..self }
    }

    /// Reads the tree again.
    pub(super) fn reader(&self) -> Option<&Again> {
        self.again.as_ref()
    }

    /// What reading a VM again begins with.
    pub(super) fn before(&self, vmid: VmId) -> Option<Before> {
        let snapshot = self.snapshot.load();
        let entry = snapshot.vms.get(&vmid)?;
        Some(Before {
            record: self.record(entry),
            flaw: entry.flaw,
            pools: Arc::clone(&snapshot.pools),
            datacenter: Arc::clone(&snapshot.datacenter),
            unread: snapshot.unread.clone(),
            counted: snapshot.counted,
        })
    }

    /// What is known about a VM.
    #[must_use]
    pub fn vm(&self, vmid: VmId) -> Option<Record> {
        self.snapshot.load().vms.get(&vmid).map(|entry| self.record(entry))
    }

    /// Why nothing is known about a VM that [`Inventory::vm`] does not have.
    #[must_use]
    pub fn why_unknown(&self, vmid: VmId) -> UnknownCaller {
        match self.snapshot.load().unread.get(File::Config(vmid)) {
            Some(Trouble { why, .. }) => UnknownCaller::Unreadable(Arc::clone(why)),
            None if self.is_stale() => UnknownCaller::NoList,
            None => UnknownCaller::NoConfig,
        }
    }

    /// What is known about all VMs, by VMID.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let mut records: Vec<_> = self.snapshot.load().vms.values().map(|entry| self.record(entry)).collect();
        records.sort_unstable_by_key(|record| record.vm.vmid);
        records
    }

    /// Every pool of the cluster and who is in it, as `user.cfg` could be read last. [`Record::pool`] says the same.
    #[must_use]
    pub fn pools(&self) -> Arc<Pools> {
        Arc::clone(&self.snapshot.load().pools)
    }

    /// What the cluster's tags are worth, as `datacenter.cfg` could be read last.
    #[must_use]
    pub fn datacenter(&self) -> Arc<Datacenter> {
        Arc::clone(&self.snapshot.load().datacenter)
    }

    /// The tree does not answer, or the list of VMs cannot be read: everything here is the last good state.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// Why that is so, if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The files that cannot be read, or are not whole, while the tree as a whole can be read.
    #[must_use]
    pub fn unread(&self) -> Unread {
        self.snapshot.load().unread.clone()
    }

    /// Meets an interface: the number for its [`Link::since`]. A look is asked for, so that the interface soon is one that
    /// was there before.
    #[must_use]
    pub fn meet(&self) -> u64 {
        let begun = self.begun.load(Ordering::SeqCst);
        (self.ask)();
        begun
    }

    /// What is known of the VM behind `link`, if it is certainly known of that one.
    #[must_use]
    pub fn known(&self, link: Link) -> Option<Record> {
        // Before the snapshot, which then is of the same look or a later one.
        let lost = self.lost();
        let snapshot = self.snapshot.load();
        let entry = snapshot.vms.get(&link.tap.vmid)?;
        answers(link.since, entry.kept, lost).then(|| self.record(entry))
    }

    /// A number that grows with each change of what [`Inventory::records`], [`Inventory::pools`] or
    /// [`Inventory::datacenter`] says.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The node's own resolver, read anew with every look.
    #[must_use]
    pub fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// The keys of the cluster's nodes that seal, followed like everything else.
    #[must_use]
    pub fn keys(&self) -> &NodeKeys {
        &self.keys
    }

    /// The keys of identity tokens, followed like everything else.
    #[must_use]
    pub fn token_keys(&self) -> &TokenKeys {
        &self.tokens
    }

    /// What TLS is spoken with, followed like everything else if [`Settings::serving`] says so.
    #[must_use]
    pub fn serving_keys(&self) -> &ServingKeys {
        &self.serving
    }

    /// Who has this UUID, by VMID. Two VMs have one when a backup was restored beside the VM it was made of.
    #[must_use]
    pub fn who_has(&self, uuid: &str) -> Vec<VmId> {
        let snapshot = self.snapshot.load();
        let has = |vm: &Vm| vm.uuid.as_deref().is_some_and(|known| known.eq_ignore_ascii_case(uuid));
        let mut vmids: Vec<_> =
            snapshot.vms.iter().filter(|(_, entry)| has(&entry.record.vm)).map(|(vmid, _)| *vmid).collect();
        vmids.sort_unstable();
        vmids
    }

    fn record(&self, entry: &Entry) -> Record {
        Record { stale: entry.is_stale() || self.is_stale(), ..entry.record.clone() }
    }

    /// The last look that could list the VMs, if one after it cannot.
    fn lost(&self) -> Option<u64> {
        self.is_stale().then(|| self.confirmed.load(Ordering::SeqCst))
    }

    /// A look begins: its number.
    pub(super) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The look `number` could list the VMs, and what it found is published.
    pub(super) fn confirm(&self, number: u64) {
        self.confirmed.store(number, Ordering::SeqCst);
    }

    pub(super) fn publish(&self, snapshot: Snapshot) {
        self.snapshot.store(Arc::new(snapshot));
        self.changes.send_modify(|generation| *generation += 1);
    }

    /// Whether this is the last good state, and if so why.
    pub(super) fn set_stale(&self, why: Option<String>) {
        let stale = why.is_some();
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let since = trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
        *trouble = why.map(|why| Trouble { since, why: why.into() });
        drop(trouble);
        if self.stale.swap(stale, Ordering::Relaxed) != stale {
            self.changes.send_modify(|generation| *generation += 1);
        }
    }

    pub(super) fn unread_count(&self) -> usize {
        self.snapshot.load().unread.len()
    }

    pub(super) fn len(&self) -> usize {
        self.snapshot.load().vms.len()
    }
}

impl Directory for Inventory {
    fn find(&self, link: Link) -> Result<Arc<Vm>, UnknownCaller> {
        let lost = self.lost();
        let snapshot = self.snapshot.load();
        let entry = snapshot.vms.get(&link.tap.vmid).ok_or_else(|| self.why_unknown(link.tap.vmid))?;
        if !answers(link.since, entry.kept, lost) {
            return Err(UnknownCaller::Unconfirmed);
        }
        match (entry.record.ready, entry.nics & bit(link.tap.nic)) {
            (false, _) => Err(UnknownCaller::NotReady),
            (true, 0) => Err(UnknownCaller::NoSuchNic),
            (true, _) => Ok(Arc::clone(&entry.record.vm)),
        }
    }
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventory").field("vms", &self.len()).field("stale", &self.is_stale()).finish()
    }
}

#[cfg(test)]
mod tests;
