//! What decides about a VM's secrets, read anew for each request.
//!
//! In comes a VMID; out goes what its configuration, its pool, the cluster's settings and the quorum are at this moment
//! ([`Seen`]). The inventory is half a second old, and shows the last good state where the tree does not answer; of whose
//! secrets a VM's are, that is too little. Everything runs beside the runtime, for a few VMs at once: a mount that hangs
//! takes only these places. Refused: what is half of something, unless the inventory has come to believe it, and to take a
//! tree that has just been emptied for one in which nothing is said.

use std::fs;
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pve_imds_model::chain;
use pve_imds_model::datacenter::Datacenter;
use pve_imds_model::pools::{PoolId, Pools};
use pve_imds_model::vm::{Vm, VmId};

use super::fetch::Fresh;
use super::files::{self, Listed, Place, ReadError, Tree};
use super::follow::{self, DATACENTER, USERS};
use super::inventory::{Digest, Inventory, Record};
use super::members::Members;
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
struct Known<T>(Mutex<Option<(Digest, Arc<T>)>>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl Inventory {
    /// What decides about the secrets of `vmid`, read anew. Takes as long as the tree does.
    ///
    /// # Errors
    /// [`Unseen`]
    pub async fn again(&self, vmid: VmId) -> Result<Seen, Unseen> {
        let again = self.reader().ok_or(Unseen::Unknown)?.clone();
        let record = self.vm(vmid).ok_or(Unseen::Unknown)?;
        let (pools, datacenter) = (self.pools(), self.datacenter());
        let turns = again.turns.clone();
        let read = turns.run(vmid, move || again.read(vmid, &record, &pools, &datacenter)).await;
        read.unwrap_or(Err(Unseen::GivenUp))
    }
}

impl Again {
    pub(super) fn new(tree: PathBuf, node: &str) -> Self {
        Self {
            tree: Arc::new(Tree::new(tree, node)),
            turns: FairTurns::at_once(AT_ONCE),
            users: Arc::default(),
            datacenter: Arc::default(),
        }
    }

    fn read(&self, vmid: VmId, record: &Record, pools: &Pools, datacenter: &Datacenter) -> Result<Seen, Unseen> {
        let pools = self.users.read(&self.tree.file(USERS), Pools::parse, pools)?;
        let datacenter = self.datacenter.read(&self.tree.file(DATACENTER), Datacenter::parse, datacenter)?;
        let quorum = self.quorum()?;
        // Last: where this still is, the others were there too if there are any.
        let vm = self.vm(vmid, record)?;
        Ok(Seen { pool: pools.of(vmid).cloned(), vm, datacenter, quorum })
    }

    fn vm(&self, vmid: VmId, record: &Record) -> Result<Arc<Vm>, Unseen> {
        let dir = record.path.parent().unwrap_or(&record.path).to_owned();
        let place = Place { owner: Arc::clone(&record.owner), dir };
        let known = Listed { place: Arc::new(place), version: None };
        let bytes = match files::read(&known.path(vmid)) {
            Ok(bytes) => bytes,
            // Another node may have it by now.
            Err(error) if error.is_absent() => {
                let listing = self.tree.list().map_err(|error| unreadable(&error))?;
                let listed = listing.vms.get(&vmid).ok_or_else(|| Unseen::Gone(known.path(vmid)))?;
                let path = listed.path(vmid);
                files::read(&path).map_err(|error| match error.is_absent() {
                    true => Unseen::Gone(path),
                    false => unreadable(&error),
                })?
            }
            Err(error) => return Err(unreadable(&error)),
        };
        // Also half a file, if it has stayed so for as long as it takes.
        if Digest::of(&bytes) == record.digest && record.ready {
            return Ok(Arc::clone(&record.vm));
        }
        let half = |why: String| Unseen::Half(known.path(vmid), why);
        let fresh = Fresh::of(vmid, &known, &bytes).map_err(half)?;
        match fresh.flaw() {
            Some(sign) => Err(half(sign.to_string())),
            None if !fresh.record.ready => Err(half(Sign::Bare.to_string())),
            None => Ok(fresh.record.vm),
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
    /// What the file says. `believed`: what it said last, as far as the inventory goes.
    fn read(&self, path: &Path, parse: fn(&[u8]) -> T, believed: &T) -> Result<Arc<T>, Unseen> {
        let bytes = match files::read(path) {
            Ok(bytes) => bytes,
            // Proxmox has neither from the start.
            Err(error) if error.is_absent() => return Ok(Arc::default()),
            Err(error) => return Err(unreadable(&error)),
        };
        let digest = Digest::of(&bytes);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, said)) = known.as_ref().filter(|(known, _)| *known == digest) {
            return Ok(Arc::clone(said));
        }
        let said = parse(&bytes);
        if let Some(sign) = follow::flaw(&bytes).filter(|sign| *sign != Sign::Blank && said != *believed) {
            return Err(Unseen::Half(path.to_owned(), sign.to_string()));
        }
        let said = Arc::new(said);
        *known = Some((digest, Arc::clone(&said)));
        Ok(said)
    }
}

fn unreadable(error: &ReadError) -> Unseen {
    Unseen::Unreadable(chain(error))
}

#[cfg(test)]
mod tests;
