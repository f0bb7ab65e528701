//! User data and vendor data: the road from a VM's configuration to bytes that every dialect shares.
//!
//! In comes a VM; out come the bytes its owner wrote, or what Proxmox's own options say where there is no block, or the
//! fault that keeps clients waiting. Refused: a broken block, and one that names a secret set, because its text holds
//! placeholders and nothing here fills them in.

use std::sync::Arc;

use bytes::Bytes;
use pve_imds_model::cloud_config::cloud_config;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::notes::{BlockError, UserData};
use pve_imds_model::site::Site;
use pve_imds_model::vm::Vm;

use crate::reply::shared;

/// The user data of `vm`; empty when it has none. The bytes of a block are the inventory's own, not a copy.
///
/// # Errors
/// [`Outcome::NotesInvalid`] for a broken block, [`Outcome::SecretsDisabled`] for one that asks for secrets. Both are
/// 503 with `Retry-After`: an edit of the Notes mends them, and cloud-init and Talos ask again until it is made.
pub fn user_data(vm: &Arc<Vm>, site: &Site) -> Result<Bytes, Fault> {
    match &vm.notes.user_data {
        None if site.cloudinit => Ok(cloud_config(vm).unwrap_or_default().into()),
        None => Ok(Bytes::new()),
        Some(Err(error)) => Err(broken(error)),
        Some(Ok(UserData { secrets: Some(_), .. })) => {
            Err(Fault::unavailable(Outcome::SecretsDisabled, RetryAfter::DEFAULT))
        }
        Some(Ok(UserData { secrets: None, .. })) => Ok(shared(vm, plain_text)),
    }
}

/// The vendor data of `vm`; empty when it has none.
///
/// # Errors
/// [`Outcome::NotesInvalid`] for a broken block, as for user data: a machine that boots without it cannot be given it
/// later.
pub fn vendor_data(vm: &Arc<Vm>) -> Result<Bytes, Fault> {
    match &vm.notes.vendor_data {
        None => Ok(Bytes::new()),
        Some(Err(error)) => Err(broken(error)),
        Some(Ok(_)) => Ok(shared(vm, |vm| match &vm.notes.vendor_data {
            Some(Ok(text)) => text.as_bytes(),
            _ => &[],
        })),
    }
}

fn broken(error: &BlockError) -> Fault {
    Fault::unavailable(Outcome::NotesInvalid, RetryAfter::DEFAULT).because(error.clone())
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
            let got = user_data(&vm(config), &Site::default());
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
        let bytes = user_data(&vm, &Site::default()).unwrap();
        assert_eq!(bytes.as_ptr(), text.as_ptr());
        // And they outlive a change of the VM.
        drop(vm);
        assert_eq!(bytes, "#cloud-config");
    }

    #[test]
    fn options_speak_where_there_is_no_block() {
        let options = "ciuser: ops\nname: web\n";
        let made = user_data(&vm(options), &Site::default()).unwrap();
        assert!(made.starts_with(b"#cloud-config\n") && made.windows(11).any(|part| part == b"user: \"ops\""));
        let off = Site { cloudinit: false, ..Site::default() };
        assert_eq!(user_data(&vm(options), &off).unwrap(), "");
        let block = vm(&format!("{options}#<!--#user-data\n#-->\n"));
        assert_eq!(user_data(&block, &Site::default()).unwrap(), "");
        let broken = vm(&format!("{options}#<!--#user-data\n"));
        assert_eq!(user_data(&broken, &Site::default()).unwrap_err().outcome(), Outcome::NotesInvalid);
    }

    #[test]
    fn vendor_data_is_the_block_or_nothing() {
        for (config, expected) in [
            ("name: x\n", Ok("")),
            ("#<!--#vendor-data\n##cloud-config\n#-->\n", Ok("#cloud-config")),
            ("#<!--#vendor-data secrets=a\n#x\n#-->\n", Err((503, Outcome::NotesInvalid))),
            ("#<!--#vendor-data\n#x\n", Err((503, Outcome::NotesInvalid))),
        ] {
            let got = vendor_data(&vm(config));
            let got = got.as_deref().map_err(|fault| (fault.status(), fault.outcome()));
            assert_eq!(got, expected.map(str::as_bytes), "{config}");
        }
    }
}
