//! `/nocloud/…`: cloud-init's NoCloud seed over HTTP, for cloud-init and Talos.
//!
//! In comes the VM that asks; out go four files and their listing. Nothing a VM can lack is a 404 here: cloud-init gives
//! up on one (`user-data`) or waits ten seconds (`vendor-data`), Talos asks again for three minutes (`network-config`).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use pve_imds_model::endpoint::Endpoint;
use pve_imds_model::fault::Fault;
use pve_imds_model::site::Site;
use pve_imds_model::vm::Vm;
use pve_imds_model::{instance, network, yaml};
use serde::Serialize;

use crate::reply::{Kind, Reply, shared};
use crate::subject::Subject;

const LISTING: &str = "meta-data\nuser-data\nvendor-data\nnetwork-config\n";

/// The answer for `vm`. The listing says nothing about the VM, yet is for known callers only: a person who tries the
/// service from a guest should see with the first request whether the guest is known.
///
/// # Errors
/// Those of [`Subject::user_data`] and [`Subject::vendor_data`], for that file alone.
pub(crate) fn serve(endpoint: Endpoint, subject: &Subject<'_>) -> Result<Reply, Fault> {
    let Subject { vm, site, .. } = subject;
    Ok(match endpoint {
        Endpoint::NocloudIndex => Reply::new(Kind::Text, Bytes::from_static(LISTING.as_bytes())),
        Endpoint::NocloudMetaData => Reply::new(Kind::Yaml, meta_data(vm, site)?),
        Endpoint::NocloudUserData => Reply::new(Kind::Opaque, subject.user_data()?),
        Endpoint::NocloudVendorData => Reply::new(Kind::Opaque, subject.vendor_data()?),
        Endpoint::NocloudNetworkConfig => Reply::new(Kind::Yaml, network_config(vm, site)),
        _ => return Err(Fault::not_found()),
    })
}

fn meta_data(vm: &Vm, site: &Site) -> Result<Bytes, Fault> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct MetaData<'a> {
        instance_id: String,
        local_hostname: String,
        /// A block of user data takes the place of the one made of `sshkeys`: without these its machine had no key.
        /// cloud-init reads them, Talos passes over keys that it does not know.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        public_keys: Vec<&'a str>,
    }

    // Talos takes no document that lacks a host name.
    let document = MetaData {
        instance_id: vm.instance_id(),
        local_hostname: vm.hostname(),
        public_keys: instance::public_keys(vm, site).map(|key| key.line).collect(),
    };
    // Never an empty document instead: cloud-init would call every clone by the same instance-id.
    yaml::write(&document).map(Bytes::from).map_err(|error| Fault::panic().because(error))
}

/// The block as written, else what the options say, else DHCP. Why a block is not used was said when it was loaded; here
/// it would be said per boot.
fn network_config(vm: &Arc<Vm>, site: &Site) -> Bytes {
    match network::network_config(vm, site) {
        (Cow::Owned(text), _) => text.into(),
        (Cow::Borrowed(_), _) => shared(vm, |vm| match &vm.notes.network_config {
            Some(Ok(text)) => text.as_bytes(),
            _ => &[],
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pve_imds_model::conf;
    use pve_imds_model::vm::VmId;

    use super::*;

    fn vm(config: &str) -> Arc<Vm> {
        Arc::new(conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm)
    }

    fn text(bytes: &Bytes) -> &str {
        str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn meta_data_is_never_without_an_identity_and_a_name() {
        for (config, expected) in [
            (
                "name: web.example.com\nsmbios1: uuid=2C8C7C76-A26C-4eb7-b04c-bf52bc095b81\n",
                "instance-id: \"2c8c7c76-a26c-4eb7-b04c-bf52bc095b81\"\nlocal-hostname: \"web.example.com\"\n",
            ),
            ("name: web\n", "instance-id: \"106\"\nlocal-hostname: \"web\"\n"),
            ("memory: 512\n", "instance-id: \"106\"\nlocal-hostname: \"vm106\"\n"),
            // What YAML 1.1 takes for something else is a string here.
            ("name: 12\n", "instance-id: \"106\"\nlocal-hostname: \"12\"\n"),
            ("name: yes\n", "instance-id: \"106\"\nlocal-hostname: \"yes\"\n"),
        ] {
            let document = meta_data(&vm(config), &Site::default()).unwrap();
            assert_eq!(text(&document), expected);
            let read: BTreeMap<String, String> = yaml::read(&document).unwrap();
            assert_eq!(read.len(), 2);
        }
    }

    #[test]
    fn meta_data_has_the_keys_that_there_are() {
        let keys = "sshkeys: ssh-ed25519%20AAAA%20ops%0Arestrict%20ssh-rsa%20AAAA%0Assh-rsa%20BBBB%20a%3A%20b%0A\n";
        assert_eq!(
            text(&meta_data(&vm(&format!("name: web\n{keys}")), &Site::default()).unwrap()),
            "instance-id: \"106\"\nlocal-hostname: \"web\"\npublic-keys:\n  - \"ssh-ed25519 AAAA ops\"\n  - \"ssh-rsa BBBB a: b\"\n"
        );
        assert!(
            !text(&meta_data(&vm("sshkeys: restrict%20ssh-rsa%20AAAA%0A\n"), &Site::default()).unwrap())
                .contains("public-keys")
        );
    }

    #[test]
    fn the_network_is_the_block_as_written_or_dhcp() {
        const NICS: &str = "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\nnet2: e1000=bc:24:11:00:00:03,bridge=vmbr1\n";
        const DHCP: &str = "version: 2\nethernets:\n  net0:\n    match:\n      macaddress: \"bc:24:11:00:00:01\"\n    \
                            dhcp4: true\n  net2:\n    match:\n      macaddress: \"bc:24:11:00:00:03\"\n    dhcp4: true\n";
        for (notes, expected) in [
            ("", DHCP),
            ("#<!--#network-config\n#version%3A 1\n#config%3A []  # mine\n#-->\n", "version: 1\nconfig: []  # mine"),
            ("#<!--#network-config\n#network%3A {version%3A 2}\n#-->\n", "network: {version: 2}"),
            ("#<!--#network-config\n#version%3A 3\n#-->\n", DHCP),
            ("#<!--#network-config\n#network%3A [\n#-->\n", DHCP),
            ("#<!--#network-config\n#-->\n", DHCP),
            ("#<!--#network-config\n#version%3A 2\n", DHCP),
        ] {
            assert_eq!(text(&network_config(&vm(&format!("{notes}{NICS}")), &Site::default())), expected, "{notes}");
        }
    }

    #[test]
    fn a_vm_without_nics_gets_a_document_too() {
        assert_eq!(text(&network_config(&vm("name: x\n"), &Site::default())), "version: 2\nethernets: {}\n");
    }
}
