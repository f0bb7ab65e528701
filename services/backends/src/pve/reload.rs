//! One look at the tree: what is new, what stays, what is forgotten.
//!
//! In comes the tree as it is now and what was known before; out comes a [`Look`]: the next snapshot if anything changed,
//! and what happened, for `watch` to log and count. The rules are two tables, that of [`Doubt`] for files and the loss of
//! VMs in [`Loader::forget`]. Refused: to replace a good state by a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use pve_imds_model::datacenter::Datacenter;
use pve_imds_model::pools::Pools;
use pve_imds_model::vm::VmId;
use pve_imds_model::words;
use tokio::time::Instant;

use super::fetch::{Before, Fresh};
use super::files::{Counts, Listed, Listing, ReadError, Tree};
use super::follow::{DATACENTER, Follow, Followed, USERS};
use super::inventory::{Entry, Record, Snapshot};
use super::outline::Outline;
use super::progress::Progress;
use super::unread::{File, Stance};
use super::verdict::{Doubt, Found, Verdict};

/// What one look found.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// The new state, if it is another.
    pub(super) snapshot: Option<Snapshot>,
    /// What happened: to the cluster's files, then by VMID.
    pub(super) events: Vec<Event>,
    /// Why nothing at all could be said.
    pub(super) failed: Option<ReadError>,
    /// Some listed VM's file, or one of the cluster's, could not be used.
    pub(super) unusable: bool,
    /// Something is in motion: look again soon.
    pub(super) unsettled: bool,
    /// The directories the configurations are in.
    pub(super) dirs: BTreeSet<PathBuf>,
    /// Which life of pmxcfs this was.
    pub(super) start_time: Option<u64>,
}

words! {
    /// A look that found something, in a word.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Tidings {
        /// There was something new.
        Changed => "changed",
        /// Some file could not be used.
        Incomplete => "incomplete",
        /// The VMs could not be listed.
        Failed => "failed",
    }
}

impl Look {
    /// `None`: nothing was found.
    pub(super) fn tidings(&self) -> Option<Tidings> {
        match self {
            Self { failed: Some(_), .. } => Some(Tidings::Failed),
            Self { unusable: true, .. } => Some(Tidings::Incomplete),
            Self { snapshot: Some(_), .. } => Some(Tidings::Changed),
            _ => None,
        }
    }

    /// Takes in how a file of the cluster was; whether it says something else.
    fn follows(&mut self, file: &'static str, followed: Followed) -> bool {
        if let Followed::Kept(reason) = followed {
            self.unusable = true;
            self.unsettled = true;
            self.events.extend(reason.map(|reason| Event::Unread { file, reason }));
            return false;
        }
        followed == Followed::Changed
    }
}

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    /// A new configuration is served.
    Loaded(Record),
    /// The same configuration belongs to another node.
    Moved { vmid: VmId, owner: Arc<str> },
    /// The configuration cannot be used; the last good one, if any, stays. Told once per reason.
    Unusable { vmid: VmId, reason: Arc<str> },
    /// It can again, and says what it said.
    Usable { vmid: VmId },
    /// There is no such VM any more.
    Forgotten { vmid: VmId },
    /// The pools are others, or others are in them; how many VMs have changed theirs.
    Pooled { pools: Arc<Pools>, moved: usize },
    /// The cluster's settings are others.
    Settings(Arc<Datacenter>),
    /// A file of the cluster cannot be used; what it said last stays. Told once per reason.
    Unread { file: &'static str, reason: Arc<str> },
    /// A file looks like half of something, and counts as it stands because it has stayed so. Told once per reason.
    Believed { file: File, reason: Arc<str> },
}

/// Looks at the tree, and remembers between looks.
pub(super) struct Loader {
    tree: Tree,
    /// The list that was read last. Once a `.vmlist` has been read it alone decides: its absence means that pmxcfs is
    /// being restarted, and not that a walk over the empty mount point would tell the truth.
    listing: Listing,
    /// Where the list's files are.
    dirs: BTreeSet<PathBuf>,
    start_time: Option<u64>,
    known: Snapshot,
    users: Follow<Pools>,
    datacenter: Follow<Datacenter>,
    memory: BTreeMap<VmId, Memory>,
    /// The last look that could list the VMs.
    last: u64,
    progress: Arc<Progress>,
}

/// What is remembered about a VM besides its record.
#[derive(Default)]
struct Memory {
    /// As it was listed when its file was last read well.
    seen: Option<Listed>,
    /// The options of the edition that is served.
    outline: Outline,
    doubt: Doubt,
    /// The walk before this one did not come by it.
    missed: bool,
}

impl Loader {
    pub(super) fn new(tree: Tree, progress: Arc<Progress>) -> Self {
        Self {
            tree,
            listing: Listing::default(),
            dirs: BTreeSet::new(),
            start_time: None,
            known: Snapshot::default(),
            users: Follow::new(Pools::parse),
            datacenter: Follow::often_blank(Datacenter::parse),
            memory: BTreeMap::new(),
            last: 0,
            progress,
        }
    }

    /// Looks at the list, if `.version` says that it is another, and at every file that may have changed: those whose
    /// count did, those that could not be read, those in `touched`, all where nobody counts or all counts began anew.
    /// `number`: which look this is.
    pub(super) fn look(&mut self, number: u64, touched: &BTreeSet<VmId>, now: Instant) -> Look {
        // Before the list: a restart between the two is then seen by the next look at the latest.
        self.progress.reads(".version");
        let counts = self.tree.counts().ok();
        let mut look = Look { start_time: counts.map(|counts| counts.start_time), ..Look::default() };
        let anew = look.start_time != self.start_time;
        let mut changed = false;
        // Compared with what the list itself said: of two files that are read one after the other, one may be older.
        let same = !anew && self.listing.version.is_some() && self.listing.version == counts.and_then(|it| it.vmlist);
        if !same {
            let counted = self.listing.version.is_some();
            self.progress.reads(".vmlist");
            match if counted { self.tree.counted() } else { self.tree.list() } {
                Ok(listing) => self.listing = listing,
                Err(error) => {
                    look.failed = Some(error);
                    look.unsettled = true;
                    return look;
                }
            }
            self.start_time = look.start_time;
            self.known.counted |= look.start_time.is_some();
            self.dirs = self.tree.dirs(&self.listing);
            changed |= self.forget(&mut look);
        }
        look.dirs.clone_from(&self.dirs);
        changed |= self.follow(counts, now, &mut look);
        let (listing, memory) = (&self.listing, &self.memory);
        let due = listing.vms.iter().filter(|(vmid, listed)| {
            let seen = memory.get(vmid).and_then(|memory| memory.seen.as_ref());
            anew || listed.version.is_none() || seen != Some(*listed) || touched.contains(vmid)
        });
        for (vmid, listed) in due.map(|(vmid, listed)| (*vmid, listed.clone())).collect::<Vec<_>>() {
            changed |= self.reload(vmid, &listed, now, &mut look);
        }
        changed |= self.doubt(now, &mut look);
        self.last = number;
        look.snapshot = changed.then(|| self.known.clone());
        look
    }

    /// Looks at the files of the cluster; whether they say something else.
    fn follow(&mut self, counts: Option<Counts>, now: Instant, look: &mut Look) -> bool {
        let edition = |count: fn(Counts) -> Option<u64>| counts.and_then(|all| Some((all.start_time, count(all)?)));
        let mut changed = false;
        self.progress.reads(USERS);
        let users = self.users.look(&self.tree.file(USERS), edition(|counts| counts.users), now);
        if look.follows(USERS, users) {
            let pools = Arc::clone(self.users.said());
            let mut moved = 0;
            for (vmid, entry) in &mut self.known.vms {
                let pool = pools.of(*vmid).cloned();
                moved += usize::from(entry.record.pool != pool);
                entry.record.pool = pool;
            }
            self.known.pools = Arc::clone(&pools);
            look.events.push(Event::Pooled { pools, moved });
            changed = true;
        }
        self.progress.reads(DATACENTER);
        let datacenter = self.datacenter.look(&self.tree.file(DATACENTER), edition(|counts| counts.datacenter), now);
        if look.follows(DATACENTER, datacenter) {
            self.known.datacenter = Arc::clone(self.datacenter.said());
            look.events.push(Event::Settings(Arc::clone(&self.known.datacenter)));
            changed = true;
        }
        for (name, trouble) in [(USERS, self.users.trouble(now)), (DATACENTER, self.datacenter.trouble(now))] {
            let file = File::Cluster(name);
            let Some((stance, reason, since)) = trouble else {
                changed |= self.known.unread.heal(file);
                continue;
            };
            let news = self.known.unread.miss(file, stance, &reason, since);
            changed |= news;
            if news && stance == Stance::Believed {
                look.events.push(Event::Believed { file, reason });
            }
        }
        changed
    }

    /// The table of losses: a count tells the truth at once, a walk has to say it twice.
    fn forget(&mut self, look: &mut Look) -> bool {
        let mut changed = false;
        let (listing, known, last) = (&self.listing, &mut self.known, self.last);
        self.memory.retain(|vmid, memory| {
            if listing.vms.contains_key(vmid) {
                memory.missed = false;
                return true;
            }
            let lost = listing.version.is_some() || memory.missed;
            memory.missed = true;
            look.unsettled = true;
            changed |= lost && known.unread.heal(File::Config(*vmid));
            if lost && known.vms.remove(vmid).is_some() {
                look.events.push(Event::Forgotten { vmid: *vmid });
                changed = true;
            } else if let Some(entry) = known.vms.get_mut(vmid) {
                changed |= entry.keep(last);
            }
            !lost
        });
        changed
    }

    /// Tells of the files that are believed though they are not whole; whether anything of that is new. Time alone makes it
    /// so, and a file that stays as it is is not read again.
    fn doubt(&mut self, now: Instant, look: &mut Look) -> bool {
        let mut changed = false;
        let believed = self.memory.iter().filter(|(_, memory)| memory.seen.is_some());
        for (vmid, (since, sign)) in believed.filter_map(|(vmid, memory)| Some((*vmid, memory.doubt.lasting(now)?))) {
            let reason = sign.to_string().into();
            let file = File::Config(vmid);
            if self.known.unread.miss(file, Stance::Believed, &reason, since) {
                look.events.push(Event::Believed { file, reason });
                changed = true;
            }
        }
        changed
    }

    /// Reads one file and does what the table says; whether anything changed.
    fn reload(&mut self, vmid: VmId, listed: &Listed, now: Instant, look: &mut Look) -> bool {
        self.progress.reads_config(vmid);
        let memory = self.memory.entry(vmid).or_default();
        let before = self.known.vms.get(&vmid).map(|entry| &entry.record);
        let fresh = Fresh::read(vmid, listed, before.map(|record| record.digest));
        let found = match &fresh {
            Ok(None) => Found::Same,
            Ok(Some(fresh)) => {
                let (outline, flaw) = (&memory.outline, memory.doubt.flaw());
                fresh.found(before.map(|record| Before { record, outline, flaw }))
            }
            Err(_) => Found::Unreadable,
        };
        let verdict = memory.doubt.judge(found, before.is_some_and(|record| record.ready), now);

        let file = File::Config(vmid);
        if verdict == Verdict::Keep {
            let reason: Arc<str> = match (fresh, found) {
                (Err(error), _) => error.into(),
                (Ok(_), Found::Half(sign)) => sign.to_string().into(),
                // The table keeps nothing else.
                (Ok(_), _) => Arc::default(),
            };
            memory.seen = None;
            look.unusable = true;
            look.unsettled = true;
            let news = self.known.unread.miss(file, Stance::Kept, &reason, now);
            let kept = self.known.vms.get_mut(&vmid).is_some_and(|entry| entry.keep(self.last));
            if news {
                look.events.push(Event::Unusable { vmid, reason });
            }
            return news || kept;
        }
        memory.seen = Some(listed.clone());
        if let Ok(Some(fresh)) = &fresh {
            memory.doubt.believe(fresh.flaw(), now);
        }
        // If the same is wrong with it as before, the look's end says so, and nothing has been mended.
        let healed = memory.doubt.lasting(now).is_none() && self.known.unread.heal(file);
        match (fresh, self.known.vms.get_mut(&vmid)) {
            (Ok(Some(fresh)), _) => {
                let Fresh { record, outline, .. } = fresh;
                memory.outline = outline;
                let record = Record { pool: self.known.pools.of(vmid).cloned(), ..record };
                look.events.push(Event::Loaded(record.clone()));
                self.known.vms.insert(vmid, Entry::new(record).with(memory.doubt.flaw()));
                true
            }
            (_, Some(entry)) => {
                let record = &mut entry.record;
                let moved = record.owner != listed.place.owner;
                if moved {
                    record.owner = Arc::clone(&listed.place.owner);
                    record.path = listed.path(vmid).into();
                    look.events.push(Event::Moved { vmid, owner: Arc::clone(&listed.place.owner) });
                }
                if healed {
                    look.events.push(Event::Usable { vmid });
                }
                entry.confirm() || moved || healed
            }
            (_, None) => healed,
        }
    }
}

#[cfg(test)]
mod tests;
