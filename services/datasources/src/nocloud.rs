//! `/nocloud/…`: cloud-init's NoCloud seed over HTTP, for cloud-init and Talos.
//!
//! In comes the VM that asks; out go four files and their listing. Nothing a VM can lack is a 404 here: cloud-init gives
//! up on one (`user-data`) or waits ten seconds (`vendor-data`), Talos asks again for three minutes (`network-config`).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use pve_imds_model::fault::Fault;
use pve_imds_model::vm::Vm;
use pve_imds_model::{network, yaml};
use serde::Serialize;

use crate::reply::{Kind, Reply, shared};
use crate::user_data::user_data;

/// What there is below `/nocloud/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// The listing; no client asks for it, people do.
    Index,
    MetaData,
    UserData,
    VendorData,
    NetworkConfig,
}

const LISTING: &str = "meta-data\nuser-data\nvendor-data\nnetwork-config\n";

/// The answer for `vm`. The listing says nothing about the VM, yet is for known callers only: a person who tries the
/// service from a guest should see with the first request whether the guest is known.
///
/// # Errors
/// Those of [`user_data`], for that file alone.
pub(crate) fn serve(file: File, vm: &Arc<Vm>) -> Result<Reply, Fault> {
    Ok(match file {
        File::Index => Reply::new(Kind::Text, Bytes::from_static(LISTING.as_bytes())),
        File::MetaData => Reply::new(Kind::Yaml, meta_data(vm)?),
        File::UserData => Reply::new(Kind::Opaque, user_data(vm)?),
        File::VendorData => Reply::new(Kind::Opaque, Bytes::new()),
        File::NetworkConfig => Reply::new(Kind::Yaml, network_config(vm)),
    })
}

fn meta_data(vm: &Vm) -> Result<Bytes, Fault> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct MetaData {
        instance_id: String,
        local_hostname: String,
    }

    let vmid = vm.vmid;
    let document = MetaData {
        // In lower case, as the guest's kernel shows it: writing the same UUID another way makes no new instance.
        instance_id: vm.uuid.as_ref().map_or_else(|| vmid.to_string(), |uuid| uuid.to_ascii_lowercase()),
        // Without a name, what Proxmox calls the VM's process; Talos takes no document that lacks a host name.
        local_hostname: vm.name.clone().unwrap_or_else(|| format!("vm{vmid}")),
    };
    // Never an empty document instead: cloud-init would call every clone by the same instance-id.
    yaml::write(&document).map(Bytes::from).map_err(|error| Fault::panic().because(error))
}

/// The block as written, else DHCP. Why a block is not used was said when it was loaded; here it would be said per boot.
fn network_config(vm: &Arc<Vm>) -> Bytes {
    match network::network_config(vm) {
        (Cow::Owned(text), _) => text.into(),
        (Cow::Borrowed(_), _) => shared(vm, |vm| match network::network_config(vm) {
            (Cow::Borrowed(text), _) => text,
            (Cow::Owned(_), _) => &[],
        }),
    }
}
