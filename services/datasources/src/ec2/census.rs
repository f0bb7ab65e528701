//! Who asks EC2's paths with a session token and who without: what an operator must know before he requires them.
//!
//! In come a VM and what its request said of a session; out go counters. They are the only ones here that name VMs, so
//! their number is bounded: a guest cannot make one, and beyond as many VMs as a node has places they share one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Counter, counter, describe_counter};
use pve_imds_model::session::TokenUse;
use pve_imds_model::vm::VmId;

const REQUESTS: &str = "pve_imds_ec2_requests_total";

/// VMs with counters of their own: as many as have a place at once.
const MAX_VMS: usize = 4096;

/// The VMs that came too late for one.
const OTHERS: &str = "other";

/// Says what is counted, to the recorder that is installed.
pub(crate) fn describe() {
    describe_counter!(
        REQUESTS,
        "Requests for what EC2 serves, by VM and by what they said of a session token. A VM that has none with `none` \
         loses nothing when tokens are required."
    );
    counters(OTHERS.to_owned());
}

/// In the order of [`TokenUse::ALL`].
fn counters(vmid: String) -> Vec<Counter> {
    let counters =
        TokenUse::ALL.iter().map(|token| counter!(REQUESTS, "vmid" => vmid.clone(), "token" => token.word()));
    // A series that begins with its first event hides that event from `increase()`.
    counters.inspect(|counter| counter.absolute(0)).collect()
}

/// Counts. Clones share what is counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Census(Arc<Mutex<HashMap<Option<VmId>, Vec<Counter>>>>);

impl Census {
    pub(crate) fn count(&self, vmid: VmId, token: TokenUse) {
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_place = book.len() < MAX_VMS || book.contains_key(&Some(vmid));
        let vmid = Some(vmid).filter(|_| has_place);
        let name = || vmid.map_or_else(|| OTHERS.to_owned(), |vmid| vmid.to_string());
        book.entry(vmid).or_insert_with(|| counters(name()))[token as usize].increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_counters_than_a_node_has_places() {
        let census = Census::default();
        for _ in 0..2 {
            (100..6000).for_each(|vmid| census.count(VmId::new(vmid).unwrap(), TokenUse::None));
        }
        let book = census.0.lock().unwrap();
        assert_eq!(book.len(), MAX_VMS + 1);
        assert!(book.contains_key(&VmId::new(100)) && !book.contains_key(&VmId::new(5999)) && book.contains_key(&None));
        assert!(book.values().all(|counters| counters.len() == TokenUse::ALL.len()));
    }
}
