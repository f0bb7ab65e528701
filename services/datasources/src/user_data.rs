//! User data: the road from a VM's Notes to bytes that every dialect shares.
//!
//! In comes a VM; out come the bytes its owner wrote, or the fault that keeps clients waiting. Refused: a broken block,
//! and one that names a secret set, because its text holds placeholders and nothing here fills them in.

use std::sync::Arc;

use bytes::Bytes;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::notes::UserData;
use pve_imds_model::vm::Vm;

use crate::reply::shared;

/// The user data of `vm`; empty when it has none. The bytes are the inventory's own, not a copy.
///
/// # Errors
/// [`Outcome::NotesInvalid`] for a broken block, [`Outcome::SecretsDisabled`] for one that asks for secrets. Both are
/// 503 with `Retry-After`: an edit of the Notes mends them, and cloud-init and Talos ask again until it is made.
pub fn user_data(vm: &Arc<Vm>) -> Result<Bytes, Fault> {
    match &vm.notes.user_data {
        None => Ok(Bytes::new()),
        Some(Err(error)) => Err(Fault::unavailable(Outcome::NotesInvalid, RetryAfter::DEFAULT).because(error.clone())),
        Some(Ok(UserData { secrets: Some(_), .. })) => {
            Err(Fault::unavailable(Outcome::SecretsDisabled, RetryAfter::DEFAULT))
        }
        Some(Ok(UserData { secrets: None, .. })) => Ok(shared(vm, plain_text)),
    }
}

fn plain_text(vm: &Vm) -> &[u8] {
    match &vm.notes.user_data {
        Some(Ok(UserData { secrets: None, text })) => text,
        _ => &[],
    }
}
