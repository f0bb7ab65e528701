//! Answers on their way: how much memory one VM's may take while the guest takes them in.
//!
//! A guest decides how fast it reads, and an answer lives until it is read: 256 connections that ask for a large document
//! and take a byte now and then hold 256 of it. In comes an answer's body; out it goes with its place in the VM's account,
//! given back when the last byte of it has been handed on or the connection is gone. Refused: what goes beyond the account.
//! One answer of any length is always let through.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::vm::VmId;

/// Bytes of a VM's answers on their way. A block has 1 MiB at most, and clients ask for one document at a time.
const HELD_ANSWERS: usize = 8 << 20;

/// Bytes up to which an answer is not counted: with 256 connections these are 4 MiB.
const SMALL_ANSWER: usize = 16 << 10;

/// The accounts of all VMs. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<Mutex<HashMap<VmId, usize>>>);

impl Held {
    /// The same bytes, counted for as long as anything of them is kept.
    ///
    /// # Errors
    /// [`Outcome::RateLimited`], if with them the VM would have more on their way than [`HELD_ANSWERS`].
    pub(crate) fn hold(&self, vmid: VmId, bytes: Bytes) -> Result<Bytes, Fault> {
        if bytes.len() <= SMALL_ANSWER {
            return Ok(bytes);
        }
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = accounts.entry(vmid).or_default();
        if *held > 0 && held.saturating_add(bytes.len()) > HELD_ANSWERS {
            return Err(Fault::unavailable(Outcome::RateLimited, RetryAfter::DEFAULT));
        }
        *held = held.saturating_add(bytes.len());
        Ok(Bytes::from_owner(Counted { held: self.clone(), vmid, bytes }))
    }
}

/// An answer's bytes, and in whose account they are.
struct Counted {
    held: Held,
    vmid: VmId,
    bytes: Bytes,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut accounts = self.held.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = accounts.get_mut(&self.vmid) {
            *held = held.saturating_sub(self.bytes.len());
            if *held == 0 {
                accounts.remove(&self.vmid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmid(number: u32) -> VmId {
        VmId::new(number).unwrap()
    }

    fn bytes(length: usize) -> Bytes {
        Bytes::from(vec![b'x'; length])
    }

    #[test]
    fn what_a_vm_does_not_take_is_bounded_and_costs_no_other_vm() {
        let held = Held::default();
        let each = 1 << 20;
        let mut kept: Vec<_> = (0..8).map(|_| held.hold(vmid(106), bytes(each)).unwrap()).collect();
        let fault = held.hold(vmid(106), bytes(each)).unwrap_err();
        assert_eq!((fault.status(), fault.outcome()), (503, Outcome::RateLimited));
        assert!(held.hold(vmid(107), bytes(each)).is_ok());
        assert!(held.hold(vmid(106), bytes(SMALL_ANSWER)).is_ok());
        // A slice of the last keeps all of it.
        let rest = kept.pop().unwrap().slice(each - 1..);
        assert!(held.hold(vmid(106), bytes(each)).is_err());
        drop(rest);
        assert!(held.hold(vmid(106), bytes(each)).is_ok());
        drop(kept);
        assert!(held.0.lock().unwrap().is_empty());
    }

    #[test]
    fn one_answer_of_any_length_is_let_through() {
        let held = Held::default();
        let all = held.hold(vmid(106), bytes(2 * HELD_ANSWERS)).unwrap();
        assert_eq!(all.len(), 2 * HELD_ANSWERS);
        assert!(held.hold(vmid(106), bytes(SMALL_ANSWER + 1)).is_err());
        drop(all);
        assert!(held.hold(vmid(106), bytes(SMALL_ANSWER + 1)).is_ok());
    }
}
