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

#[cfg(test)]
mod tests {
    use pve_imds_model::conf;
    use pve_imds_model::vm::VmId;

    use super::*;

    fn vm(config: &str) -> Arc<Vm> {
        Arc::new(conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm)
    }

    #[test]
    fn a_block_is_served_as_written_or_not_at_all() {
        for (config, expected) in [
            ("name: x\n", Ok("")),
            ("#Only a note\nname: x\n", Ok("")),
            ("#<!--#user-data\n##cloud-config\n#a%3A {{ b }}\n#-->\n", Ok("#cloud-config\na: {{ b }}")),
            ("#<!--#user-data\n#-->\n", Ok("")),
            ("#<!--#user-data encoding=base64\n#I2Nsb3Vk\n#-->\n", Ok("#cloud")),
            ("#<!--#user-data secrets=worker\n#{{ secret \"a\" }}\n#-->\n", Err(Outcome::SecretsDisabled)),
            ("#<!--#user-data secrets=\n#x\n#-->\n", Err(Outcome::NotesInvalid)),
            ("#<!--#user-data secret=worker\n#x\n#-->\n", Err(Outcome::NotesInvalid)),
            ("#<!--#user-data encoding=base64\n#?\n#-->\n", Err(Outcome::NotesInvalid)),
            ("#<!--#user-data\n#x\n", Err(Outcome::NotesInvalid)),
            ("#<!--#user-data\n#x\n#-->\n#<!--#user-data\n#y\n#-->\n", Err(Outcome::NotesInvalid)),
        ] {
            let got = user_data(&vm(config));
            assert_eq!(got.as_deref().map_err(Fault::outcome), expected.map(str::as_bytes), "{config}");
            if let Err(fault) = got {
                assert_eq!((fault.status(), fault.retry_after()), (503, Some(RetryAfter::DEFAULT)));
                assert!(!format!("{fault:?}").contains("{{"), "{fault:?}");
            }
        }
    }

    #[test]
    fn the_bytes_are_the_inventorys_own() {
        let vm = vm("#<!--#user-data\n##cloud-config\n#-->\n");
        let Some(Ok(UserData { text, .. })) = &vm.notes.user_data else { panic!("there is a block") };
        let bytes = user_data(&vm).unwrap();
        assert_eq!(bytes.as_ptr(), text.as_ptr());
        // And they outlive a change of the VM.
        drop(vm);
        assert_eq!(bytes, "#cloud-config");
    }
}
