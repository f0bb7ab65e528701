//! User data and vendor data: the road from a VM's configuration to bytes that every dialect shares.
//!
//! In come a VM and, if its block names a secret set, what was rendered of that; out come the bytes its owner wrote, or what
//! Proxmox's own options say where there is no block, or the fault that keeps clients waiting. Vendor data is the node's
//! too, and there both count. Refused: a broken block, and to serve one that names a set as it is written.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use pve_imds_model::cloud_config::{cloud_config, is_asked_for};
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::notes::{BlockError, UserData};
use pve_imds_model::pools::PoolId;
use pve_imds_model::site::Site;
use pve_imds_model::vendor::{File, combine};
use pve_imds_model::vm::Vm;

use crate::rendered::Rendered;
use crate::reply::shared;

/// The user data of `vm`; empty when it has none. The bytes of a block are the inventory's own, not a copy; those of one that
/// asks for secrets are `rendered`.
///
/// # Errors
/// [`Outcome::NotesInvalid`] for a broken block, and for one that asks for secrets the word for what is in their way. All
/// are 503 with `Retry-After`: they can be mended, and cloud-init and Talos ask again until they are.
pub(crate) fn user_data(vm: &Arc<Vm>, site: &Site, rendered: Option<&Rendered>) -> Result<Bytes, Fault> {
    Ok(match own_user_data(vm)? {
        Some(UserData { secrets: Some(_), .. }) => render(rendered)?.clone(),
        Some(_) => shared(vm, |vm| own_user_data(vm).ok().flatten().map_or(&[], |block| &block.text)),
        None if site.cloudinit => cloud_config(vm).unwrap_or_default().into(),
        None => Bytes::new(),
    })
}

/// Whether there is user data, or should be: clients take an empty document for one that holds nothing they understand.
/// Nothing is made to tell, for listings are asked for more often than what they list.
#[must_use]
pub(crate) fn has_user_data(vm: &Vm, site: &Site) -> bool {
    match &vm.notes.user_data {
        None => site.cloudinit && is_asked_for(vm),
        Some(Ok(UserData { secrets: None, text })) => !text.is_empty(),
        Some(_) => true,
    }
}

/// The vendor data of `vm`, which is in `pool`: the node's files that choose it, then its own block; empty when there is
/// neither. What is alone is not copied.
///
/// # Errors
/// [`Outcome::NotesInvalid`] for a broken block, as for user data: a machine that boots without it cannot be given it
/// later. The node's files would hide that something is missing.
pub(crate) fn vendor_data(vm: &Arc<Vm>, pool: Option<&PoolId>, site: &Site) -> Result<Bytes, Fault> {
    let own = own_vendor_data(vm)?;
    let files: Vec<&File> = site.vendor.of(vm, pool).collect();
    Ok(match (combine(&files, Some(own)), files.as_slice()) {
        (Cow::Owned(document), _) => document.into(),
        (Cow::Borrowed(_), [file]) => Bytes::from_owner(Arc::clone(file.text())),
        (Cow::Borrowed(_), _) => shared(vm, |vm| own_vendor_data(vm).unwrap_or_default()),
    })
}

/// Whether [`user_data`] and [`vendor_data`] can be had; they are not made.
///
/// # Errors
/// Theirs.
pub(crate) fn whole(vm: &Vm, rendered: Option<&Rendered>) -> Result<(), Fault> {
    if own_user_data(vm)?.is_some_and(|block| block.secrets.is_some()) {
        render(rendered)?;
    }
    own_vendor_data(vm).map(drop)
}

/// What was rendered. Nobody is asked to if nobody can.
fn render(rendered: Option<&Rendered>) -> Result<&Bytes, Fault> {
    let rendered =
        rendered.map_or(Err(Outcome::SecretsDisabled), |rendered| rendered.as_ref().map_err(|outcome| *outcome));
    rendered.map_err(|outcome| Fault::unavailable(outcome, RetryAfter::DEFAULT))
}

/// What the block says, if there is one.
fn own_user_data(vm: &Vm) -> Result<Option<&UserData>, Fault> {
    match &vm.notes.user_data {
        None => Ok(None),
        Some(Err(error)) => Err(broken(error)),
        Some(Ok(block)) => Ok(Some(block)),
    }
}

fn own_vendor_data(vm: &Vm) -> Result<&[u8], Fault> {
    match &vm.notes.vendor_data {
        None => Ok(&[]),
        Some(Err(error)) => Err(broken(error)),
        Some(Ok(text)) => Ok(text.as_bytes()),
    }
}

fn broken(error: &BlockError) -> Fault {
    Fault::unavailable(error.flaw.outcome(), RetryAfter::DEFAULT).because(error.clone())
}

#[cfg(test)]
mod tests {
    use pve_imds_model::conf;
    use pve_imds_model::vendor::Files;
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
            ("#<!--#user-data secrets=\n#x\n#-->\n", Err(Outcome::SetNameInvalid)),
            ("#<!--#user-data secret=worker\n#x\n#-->\n", Err(Outcome::NotesInvalid)),
            ("#<!--#user-data encoding=base64\n#?\n#-->\n", Err(Outcome::NotesInvalid)),
            ("#<!--#user-data\n#x\n", Err(Outcome::NotesInvalid)),
            ("#<!--#user-data\n#x\n#-->\n#<!--#user-data\n#y\n#-->\n", Err(Outcome::NotesInvalid)),
        ] {
            let vm = vm(config);
            let got = user_data(&vm, &Site::default(), None);
            let lacks = matches!(&got, Ok(text) if text.is_empty());
            assert_ne!(has_user_data(&vm, &Site::default()), lacks, "{config}");
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
        let bytes = user_data(&vm, &Site::default(), None).unwrap();
        assert_eq!(bytes.as_ptr(), text.as_ptr());
        // And they outlive a change of the VM.
        drop(vm);
        assert_eq!(bytes, "#cloud-config");
    }

    #[test]
    fn options_speak_where_there_is_no_block() {
        let options = "ciuser: ops\nname: web\n";
        let made = user_data(&vm(options), &Site::default(), None).unwrap();
        assert!(made.starts_with(b"#cloud-config\n") && made.windows(11).any(|part| part == b"user: \"ops\""));
        let off = Site { cloudinit: false, ..Site::default() };
        assert_eq!(user_data(&vm(options), &off, None).unwrap(), "");
        assert!(has_user_data(&vm(options), &Site::default()) && !has_user_data(&vm(options), &off));
        let block = vm(&format!("{options}#<!--#user-data\n#-->\n"));
        assert_eq!(user_data(&block, &Site::default(), None).unwrap(), "");
        let broken = vm(&format!("{options}#<!--#user-data\n"));
        assert_eq!(user_data(&broken, &Site::default(), None).unwrap_err().outcome(), Outcome::NotesInvalid);
    }

    #[test]
    fn vendor_data_is_the_block_or_nothing() {
        for (config, expected) in [
            ("name: x\n", Ok("")),
            ("#<!--#vendor-data\n##cloud-config\n#-->\n", Ok("#cloud-config")),
            ("#<!--#vendor-data secrets=a\n#x\n#-->\n", Err((503, Outcome::NotesInvalid))),
            ("#<!--#vendor-data\n#x\n", Err((503, Outcome::NotesInvalid))),
        ] {
            let got = vendor_data(&vm(config), None, &Site::default());
            let got = got.as_deref().map_err(|fault| (fault.status(), fault.outcome()));
            assert_eq!(got, expected.map(str::as_bytes), "{config}");
        }
    }

    #[test]
    fn the_nodes_vendor_data_comes_before_the_vms_and_never_without_it() {
        let file = |name, header: &str, text: &str| {
            File::parse(name, format!("---\n{header}\n---\n{text}").as_bytes()).unwrap()
        };
        let files = Files::new(vec![file("20", "pools: [lab]", "#two"), file("10", "tags: [web]", "#one")]);
        let site = Site { vendor: files.into(), ..Site::default() };
        let lab = PoolId::parse("lab");
        let got = |config: &str, pool: Option<&PoolId>| vendor_data(&vm(config), pool, &site);
        assert_eq!(got("tags: db\n", None).unwrap(), "");
        assert_eq!(got("tags: web\n", None).unwrap(), "#one");
        assert_eq!(got("tags: db\n", lab.as_ref()).unwrap(), "#two");
        let own = "#<!--#vendor-data\n##own\n#-->\n";
        assert_eq!(got(&format!("{own}tags: db\n"), None).unwrap(), "#own");
        for (config, parts) in [("tags: web\n".to_owned(), 2), (format!("{own}tags: web\n"), 3)] {
            let document = got(&config, lab.as_ref()).unwrap();
            let text = str::from_utf8(&document).unwrap();
            assert_eq!(text.matches("filename=").count(), parts, "{text}");
            assert!(text.starts_with("Content-Type: multipart/mixed") && !text.contains("#one"), "{text}");
        }
        let broken = got("#<!--#vendor-data\n#x\ntags: web\n", None).unwrap_err();
        assert_eq!((broken.status(), broken.outcome()), (503, Outcome::NotesInvalid));
    }
}
