//! `/openstack/…`: Nova's metadata service, for cloud-init, Ignition, afterburn, cloudbase-init and Talos.
//!
//! In comes the VM that asks; out go documents that are the same in every version. Nova shows a version only what it
//! knew; no client minds to see more, and several ask for old versions only. Refused: an empty document where JSON is
//! expected (cloud-init gives the datasource up), and user data of which nothing is said (404: Talos and Ignition go on
//! without, which an empty one would not let them).

mod password;

use bytes::Bytes;
use pve_imds_model::endpoint::{Endpoint, OPENSTACK_VERSIONS, parts};
use pve_imds_model::fault::Fault;
use pve_imds_model::vendor::{OWN, multipart};
use pve_imds_model::{instance, network_data};
use serde_json::{Map, Value, json};

use crate::reply::{Kind, Reply};
use crate::subject::Subject;

pub(crate) use password::MAX_PASSWORD;
pub use password::{Password, Passwords};

/// The answer to GET.
///
/// # Errors
/// Those of [`Subject::user_data`] and [`Subject::vendor_data`] for these files; [`Subject::may_enter`]'s for the two that a
/// boot begins with.
pub(crate) fn serve(endpoint: Endpoint, path: &str, subject: &Subject<'_>) -> Result<Reply, Fault> {
    Ok(match endpoint {
        Endpoint::OpenstackIndex => {
            subject.may_enter()?;
            Reply::new(Kind::Text, index(path, subject).into())
        }
        Endpoint::OpenstackMetaData => {
            subject.may_enter()?;
            json(&meta_data(subject))
        }
        Endpoint::OpenstackUserData => match subject.user_data()? {
            none if none.is_empty() && !subject.has_user_data() => return Err(Fault::not_found()),
            text => Reply::new(Kind::Opaque, text),
        },
        Endpoint::OpenstackVendorData if path.trim_end_matches('/').ends_with("vendor_data.json") => {
            json(&vendor_document(&subject.vendor_data()?))
        }
        Endpoint::OpenstackVendorData => json(&json!({})),
        Endpoint::OpenstackNetworkData if has_network(subject) => {
            json(&network_data::network_data(subject.vm, &subject.site))
        }
        _ => return Err(Fault::not_found()),
    })
}

fn json(document: &Value) -> Reply {
    Reply::new(Kind::Json, Bytes::from(document.to_string()))
}

/// Whether there is a NIC that can be told from others: cloud-init takes a document without links for an order to have no
/// network at all, and without the document asks for an address on its first NIC.
fn has_network(subject: &Subject<'_>) -> bool {
    network_data::has_links(subject.vm, &subject.site)
}

/// The versions, or the files of one of them. No line break at the end, as Nova.
fn index(path: &str, subject: &Subject<'_>) -> String {
    if parts(path).nth(1).is_none() {
        return OPENSTACK_VERSIONS.join("\n");
    }
    let user_data = subject.has_user_data().then_some("user_data");
    let network = has_network(subject).then_some("network_data.json");
    let files = ["meta_data.json", "password", "vendor_data.json", "vendor_data2.json"];
    let mut files: Vec<_> = files.into_iter().chain(user_data).chain(network).collect();
    files.sort_unstable();
    files.join("\n")
}

/// `meta_data.json`.
fn meta_data(subject: &Subject<'_>) -> Value {
    let Subject { vm, node, pool, site, .. } = subject;
    let keys: Vec<_> = instance::public_keys(vm, site).collect();
    let facts = instance::facts(vm, node, pool.as_ref()).into_iter().map(|(key, value)| (key, json!(value)));
    let mut document = json!({
        "uuid": vm.instance_id(),
        "name": vm.hostname(),
        "hostname": vm.hostname(),
        "availability_zone": instance::zone(node),
        "launch_index": 0,
        "instance_type": instance::instance_type(vm.size),
        "public_keys": keys.iter().map(|key| (key.name.clone(), json!(key.line))).collect::<Map<_, _>>(),
        "keys": keys.iter().map(|key| json!({"name": key.name, "type": "ssh", "data": key.line})).collect::<Vec<_>>(),
        "meta": facts.collect::<Map<_, _>>(),
    });
    if let Some(pool) = pool {
        document["project_id"] = json!(pool.as_str());
    }
    document
}

/// Vendor data as Nova has it: JSON in which cloud-init looks for its own under its name. Never an empty text, and never
/// half of one: what is no text, gzip say, is put into one.
fn vendor_document(data: &[u8]) -> Value {
    if data.is_empty() {
        return json!({});
    }
    match str::from_utf8(data) {
        Ok(text) => json!({"cloud-init": text}),
        Err(_) => json!({"cloud-init": String::from_utf8_lossy(&multipart(&[(OWN, data)]))}),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pve_imds_model::conf;
    use pve_imds_model::fault::Outcome;
    use pve_imds_model::pools::PoolId;
    use pve_imds_model::request::Emulation;
    use pve_imds_model::site::Site;
    use pve_imds_model::vm::{Vm, VmId};

    use super::*;
    use crate::entry::Entered;

    const CONFIG: &str = "name: web-1\ncores: 2\nmemory: 2048\ntags: web;dsmode\n\
                          net0: virtio=BC:24:11:00:00:01\n\
                          smbios1: uuid=2C8C7C76-A26C-4eb7-b04c-bf52bc095b81\n\
                          sshkeys: ssh-ed25519%20AAAA%20ops%0A\n";

    fn vm(config: &str) -> Arc<Vm> {
        Arc::new(conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm)
    }

    fn get(vm: &Arc<Vm>, pool: Option<&str>, path: &str) -> Result<Reply, Fault> {
        let pool = pool.and_then(PoolId::parse);
        let (site, emulation, entered) = (Site::default(), Emulation::Auto, Entered::default());
        let subject = Subject {
            vm,
            link: None,
            nic: None,
            pool,
            node: "pve1",
            site,
            emulation,
            entered: &entered,
            rendered: None,
        };
        serve(Endpoint::classify(path), path, &subject)
    }

    fn text(reply: &Reply) -> &str {
        str::from_utf8(reply.body()).unwrap()
    }

    #[test]
    fn what_a_vm_is_said_to_be() {
        let reply = get(&vm(CONFIG), Some("lab/a"), "/openstack/latest/meta_data.json").unwrap();
        let expected = json!({
            "uuid": "2c8c7c76-a26c-4eb7-b04c-bf52bc095b81",
            "name": "web-1",
            "hostname": "web-1",
            "availability_zone": "pve1a",
            "launch_index": 0,
            "instance_type": "proxmox.2c.2048m",
            "public_keys": {"key-0": "ssh-ed25519 AAAA ops"},
            "keys": [{"name": "key-0", "type": "ssh", "data": "ssh-ed25519 AAAA ops"}],
            "meta": {"pve:vmid": "106", "pve:node": "pve1", "pve:pool": "lab/a", "web": ""},
            "project_id": "lab/a",
        });
        assert_eq!(serde_json::from_str::<Value>(text(&reply)).unwrap(), expected);
        let bare = get(&vm("cores: 1\n"), None, "/openstack/latest/meta_data.json").unwrap();
        let bare: Value = serde_json::from_str(text(&bare)).unwrap();
        assert_eq!((&bare["uuid"], &bare["name"], &bare["public_keys"]), (&json!("106"), &json!("vm106"), &json!({})));
        assert_eq!(bare.get("project_id"), None);
    }

    #[test]
    fn every_version_has_every_file() {
        let with_data = format!("{CONFIG}#<!--#user-data\n#x\n#-->\n");
        for (config, extra) in [(CONFIG.replace("sshkeys", "#sshkeys"), ""), (with_data, "user_data\n")] {
            let vm = vm(&config);
            let versions = get(&vm, None, "/openstack").unwrap();
            assert_eq!(text(&versions).lines().last(), Some("latest"));
            for version in text(&versions).lines() {
                let listing = get(&vm, None, &format!("/openstack/{version}/")).unwrap();
                let expected =
                    format!("meta_data.json\nnetwork_data.json\npassword\n{extra}vendor_data.json\nvendor_data2.json");
                assert_eq!(text(&listing), expected, "{version}");
                for file in text(&listing).lines().filter(|file| *file != "password") {
                    let reply = get(&vm, None, &format!("/openstack/{version}/{file}")).unwrap();
                    assert!(!reply.body().is_empty(), "{version}/{file}");
                }
            }
        }
    }

    #[test]
    fn vendor_data_is_json_whatever_it_is() {
        let own = vm("#<!--#vendor-data\n##cloud-config\n#-->\n");
        let expected = json!({"cloud-init": "#cloud-config"});
        assert_eq!(text(&get(&own, None, "/openstack/latest/vendor_data.json").unwrap()), expected.to_string());
        assert_eq!(text(&get(&own, None, "/openstack/latest/vendor_data2.json/").unwrap()), "{}");
        assert_eq!(text(&get(&vm(""), None, "/openstack/latest/vendor_data.json").unwrap()), "{}");
        let packed = vm("#<!--#vendor-data encoding=base64\n#H4sI\n#-->\n");
        let reply = get(&packed, None, "/openstack/latest/vendor_data.json").unwrap();
        let inner = text(&reply);
        assert!(inner.contains("application/gzip") && inner.contains("\\n\\nH4sI\\n"), "{inner}");
    }

    #[test]
    fn nobody_enters_whose_secrets_cannot_be_had() {
        let asks = vm("#<!--#user-data secrets=worker\n#{{ secret \"a\" }}\n#-->\n");
        for path in
            ["/openstack", "/openstack/latest", "/openstack/latest/meta_data.json", "/openstack/latest/user_data"]
        {
            let fault = get(&asks, None, path).unwrap_err();
            assert_eq!((fault.status(), fault.outcome()), (503, Outcome::SecretsDisabled), "{path}");
        }
        for path in ["/openstack/latest/vendor_data2.json", "/openstack/latest/vendor_data.json"] {
            assert!(get(&asks, None, path).is_ok(), "{path}");
        }
        assert_eq!(get(&vm(""), None, "/openstack/latest/user_data").unwrap_err().status(), 404);
    }
}
