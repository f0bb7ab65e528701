//! What decides about a VM's secrets, read anew for each request.
//!
//! In comes a VMID; out goes what its configuration, its pool, the cluster's settings and the quorum are at this moment
//! ([`Seen`]). The inventory is half a second old, and shows the last good state where the tree does not answer; of whose
//! secrets a VM's are, that is too little. Everything runs beside the runtime, for a few VMs at once: a mount that hangs
//! takes only these places. Refused: what is half of something, unless it has stayed so until the inventory believes it, and
//! to take a tree that has just been emptied, or begins just now, for one in which nothing is said.

use std::fs;
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::PermissionsExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pve_imds_model::chain;
use pve_imds_model::datacenter::Datacenter;
use pve_imds_model::pools::{PoolId, Pools};
use pve_imds_model::vm::{Vm, VmId};

use super::fetch::Fresh;
use super::files::{self, Listed, Place, ReadError, Tree};
use super::follow::{self, DATACENTER, USERS};
use super::inventory::{Before, Digest, Inventory};
use super::members::Members;
use super::unread::File;
use super::verdict::Sign;
use crate::turns::FairTurns;

/// VMs that are looked at at a time.
const AT_ONCE: usize = 2;

/// The owner's right to write (inode(7)): Proxmox's own test of a quorum, on the link [`LOCAL`].
const OWNER_WRITES: u32 = 0o200;

/// This node's directory, as pmxcfs links it.
const LOCAL: &str = "local";

/// Whether this node is part of the cluster's majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// It is, or there is no cluster.
    Has,
    /// It is not: what is read here may be old.
    Lacks,
}

/// What there is now.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The VM.
    pub vm: Arc<Vm>,
    /// The pool it is in.
    pub pool: Option<PoolId>,
    /// The cluster's settings.
    pub datacenter: Arc<Datacenter>,
    /// Whether all of this can be relied on.
    pub quorum: Quorum,
}

/// Why it cannot be told what there is. Names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unseen {
    /// The inventory does not know the VM.
    #[error("nothing is known of the VM")]
    Unknown,
    /// The VM's file is gone, and in no other place.
    #[error("{} is not there any more", .0.display())]
    Gone(PathBuf),
    /// A file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// It is being written, or is damaged.
    #[error("{}: {}", .0.display(), .1)]
    Half(PathBuf, String),
    /// What was read is of two lives of the file system: in between nothing was there, nor anything that told so.
    #[error("the cluster's file system at {} was started anew meanwhile", .0.display())]
    Restarted(PathBuf),
    /// The daemon ends.
    #[error("the daemon ends")]
    GivenUp,
}

/// Reads again. Clones have the same places and the same memory.
#[derive(Clone, Debug)]
pub(super) struct Again {
    tree: Arc<Tree>,
    turns: FairTurns<VmId>,
    users: Arc<Known<Pools>>,
    datacenter: Arc<Known<Datacenter>>,
}

/// What a file of the cluster said, and of which bytes.
#[derive(Debug)]
struct Known<T> {
    /// Proxmox leaves it empty when there is nothing to say.
    may_be_blank: bool,
    last: Mutex<Option<(Digest, Arc<T>)>>,
}

impl Inventory {
    /// What decides about the secrets of `vmid`, read anew. Takes as long as the tree does.
    ///
    /// # Errors
    /// [`Unseen`]
    pub async fn again(&self, vmid: VmId) -> Result<Seen, Unseen> {
        let again = self.reader().ok_or(Unseen::Unknown)?.clone();
        let before = self.before(vmid).ok_or(Unseen::Unknown)?;
        let turns = again.turns.clone();
        let read = turns.run(vmid, move || again.in_one_life(before.counted, || again.read(vmid, &before))).await;
        read.unwrap_or(Err(Unseen::GivenUp))
    }
}

impl Again {
    pub(super) fn new(tree: PathBuf, node: &str) -> Self {
        Self {
            tree: Arc::new(Tree::new(tree, node)),
            turns: FairTurns::at_once(AT_ONCE),
            users: Arc::new(Known::new()),
            datacenter: Arc::new(Known::often_blank()),
        }
    }

    /// What `read` makes of the tree, if it was the same one all the time. `counted`: the inventory has seen somebody count.
    fn in_one_life<T>(&self, counted: bool, read: impl FnOnce() -> Result<T, Unseen>) -> Result<T, Unseen> {
        let begun = self.life(counted)?;
        let read = read()?;
        if self.life(counted)? == begun { Ok(read) } else { Err(Unseen::Restarted(self.tree.dir().to_owned())) }
    }

    /// Which life of pmxcfs this is. `None`: nobody counts, and nobody ever did.
    fn life(&self, counted: bool) -> Result<Option<u64>, Unseen> {
        match self.tree.counts() {
            Ok(counts) => Ok(Some(counts.start_time)),
            Err(error) if error.is_absent() && !counted => Ok(None),
            Err(error) => Err(unreadable(&error)),
        }
    }

    fn read(&self, vmid: VmId, before: &Before) -> Result<Seen, Unseen> {
        let believed = |file| before.unread.is_believed(File::Cluster(file));
        let (users, settings) = (self.tree.file(USERS), self.tree.file(DATACENTER));
        let pools = self.users.read(&users, Pools::parse, &before.pools, believed(USERS))?;
        let datacenter =
            self.datacenter.read(&settings, Datacenter::parse, &before.datacenter, believed(DATACENTER))?;
        let quorum = self.quorum()?;
        let vm = self.vm(vmid, before)?;
        Ok(Seen { pool: pools.of(vmid).cloned(), vm, datacenter, quorum })
    }

    fn vm(&self, vmid: VmId, before: &Before) -> Result<Arc<Vm>, Unseen> {
        let Before { record, flaw, .. } = before;
        let (listed, bytes) = self.config(vmid, before)?;
        let half = |why: String| Unseen::Half(listed.path(vmid), why);
        let digest = Digest::of(&bytes);
        if digest == record.digest && record.ready {
            return match flaw {
                // What it ends with may be the beginning of another scope's name.
                Some(sign) if !before.unread.is_believed(File::Config(vmid)) => Err(half(sign.to_string())),
                _ => Ok(Arc::clone(&record.vm)),
            };
        }
        let fresh = Fresh::of(vmid, &listed, &bytes, digest).map_err(half)?;
        match fresh.flaw() {
            Some(sign) => Err(half(sign.to_string())),
            None if !fresh.record.ready => Err(half(Sign::Bare.to_string())),
            None => Ok(fresh.record.vm),
        }
    }

    /// The VM's file: where it was, or where the list says that it is by now.
    fn config(&self, vmid: VmId, before: &Before) -> Result<(Listed, Vec<u8>), Unseen> {
        let record = &before.record;
        let dir = record.path.parent().unwrap_or(&record.path).to_owned();
        let known = Listed { place: Arc::new(Place { owner: Arc::clone(&record.owner), dir }), version: None };
        match files::read(&known.path(vmid)) {
            Ok(bytes) => return Ok((known, bytes)),
            // Another node may have it.
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(unreadable(&error)),
        }
        let listing = if before.counted { self.tree.counted() } else { self.tree.list() };
        let mut listing = listing.map_err(|error| unreadable(&error))?;
        let listed = listing.vms.remove(&vmid).ok_or_else(|| Unseen::Gone(known.path(vmid)))?;
        match files::read(&listed.path(vmid)) {
            Ok(bytes) => Ok((listed, bytes)),
            Err(error) if error.is_absent() => Err(Unseen::Gone(listed.path(vmid))),
            Err(error) => Err(unreadable(&error)),
        }
    }

    fn quorum(&self) -> Result<Quorum, Unseen> {
        let local = self.tree.file(LOCAL);
        let link = match fs::symlink_metadata(&local) {
            Ok(link) => link.permissions().mode() & OWNER_WRITES != 0,
            Err(error) if error.kind() == NotFound => true,
            Err(error) => return Err(Unseen::Unreadable(format!("{}: {error}", local.display()))),
        };
        let members = Members::read(self.tree.dir()).map_err(|error| unreadable(&error))?;
        let counted = members.is_none_or(|members| members.is_quorate());
        Ok(if link && counted { Quorum::Has } else { Quorum::Lacks })
    }
}

impl<T: Default + PartialEq> Known<T> {
    fn new() -> Self {
        Self { may_be_blank: false, last: Mutex::new(None) }
    }

    /// Of a file that Proxmox leaves empty when there is nothing to say.
    fn often_blank() -> Self {
        Self { may_be_blank: true, ..Self::new() }
    }

    /// What the file says. `before`: what it said when the inventory looked. `believed`: that was half of something, and is
    /// what counts.
    fn read(&self, path: &Path, parse: fn(&[u8]) -> T, before: &Arc<T>, believed: bool) -> Result<Arc<T>, Unseen> {
        let bytes = match files::read(path) {
            Ok(bytes) => bytes,
            // Proxmox has neither from the start.
            Err(error) if error.is_absent() => return Ok(Arc::default()),
            Err(error) => return Err(unreadable(&error)),
        };
        let digest = Digest::of(&bytes);
        if let Some((_, said)) = self.known().as_ref().filter(|(known, _)| *known == digest) {
            return Ok(Arc::clone(said));
        }
        let half = |why: String| Unseen::Half(path.to_owned(), why);
        // Others may write here what they like, and no choice of theirs may stop the VMs of all.
        let said = panic::catch_unwind(|| parse(&bytes)).map_err(|_| half("the parser failed".into()))?;
        match follow::flaw(&bytes) {
            None => {}
            Some(Sign::Blank) if self.may_be_blank => {}
            // It says nothing, and nothing was ever said.
            Some(Sign::Blank) if said == **before => return Ok(Arc::clone(before)),
            // Only whole ones are remembered: the next half of this kind may not be believed.
            Some(_) if believed && said == **before => return Ok(Arc::clone(before)),
            Some(sign) => return Err(half(sign.to_string())),
        }
        let said = Arc::new(said);
        *self.known() = Some((digest, Arc::clone(&said)));
        Ok(said)
    }

    fn known(&self) -> MutexGuard<'_, Option<(Digest, Arc<T>)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unreadable(error: &ReadError) -> Unseen {
    Unseen::Unreadable(chain(error))
}

#[cfg(test)]
mod tests;
