//! User data made from Proxmox's own cloud-init options.
//!
//! In comes a VM; out goes the `#cloud-config` that says what Proxmox's own generator would say, each text in quotes, so
//! that no password is read as a number. `None` comes out unless one of the options that ask for it is set: a name alone
//! must not become user data, for a Talos machine without any waits for its configuration.

use serde_json::{Map, Value, json};

use crate::vm::Vm;
use crate::yaml;

/// Whether the VM's options ask for a document.
#[must_use]
pub fn is_asked_for(vm: &Vm) -> bool {
    let options = &vm.cloudinit;
    options.ciuser.is_some()
        || options.cipassword.is_some()
        || !options.sshkeys.is_empty()
        || options.ciupgrade.is_some()
}

/// The document, if the VM's options ask for one. It may hold a password.
#[must_use]
pub fn cloud_config(vm: &Vm) -> Option<String> {
    if !is_asked_for(vm) {
        return None;
    }
    let options = &vm.cloudinit;
    let root = options.ciuser.as_deref() == Some("root");
    let mut document = Map::new();
    let mut say = |key: &str, value: Value| document.insert(key.to_owned(), value);
    let name = vm.hostname();
    say("hostname", json!(name.split('.').next().unwrap_or(&name)));
    say("fqdn", json!(fqdn(vm, &name)));
    say("manage_etc_hosts", json!(true));
    if let Some(user) = &options.ciuser {
        say("user", json!(user));
    }
    if root {
        say("disable_root", json!(false));
    }
    if let Some(password) = &options.cipassword {
        say("password", json!(password.expose()));
    }
    say("chpasswd", json!({"expire": false}));
    if !options.sshkeys.is_empty() {
        say("ssh_authorized_keys", json!(options.sshkeys));
    }
    // Whoever is root needs no other user made.
    if !root {
        say("users", json!(["default"]));
    }
    if options.ciupgrade.unwrap_or(true) {
        say("package_upgrade", json!(true));
    }
    // A map with keys that are texts can be written.
    yaml::write(&document).ok().map(|text| format!("#cloud-config\n{text}"))
}

/// The name, in the first search domain if it has no domain of its own.
fn fqdn(vm: &Vm, name: &str) -> String {
    match vm.cloudinit.searchdomain.first() {
        Some(domain) if !name.contains('.') => format!("{name}.{domain}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conf;
    use crate::vm::VmId;

    fn made(conf: &str) -> Option<Value> {
        let text = cloud_config(&conf::parse(VmId::new(106).unwrap(), conf.as_bytes()).vm)?;
        Some(yaml::read_once(text.strip_prefix("#cloud-config\n").unwrap().as_bytes()).unwrap())
    }

    #[test]
    fn nothing_is_made_of_a_name() {
        for conf in [
            "",
            "name: web",
            "searchdomain: a.example",
            "nameserver: 192.0.2.1",
            "ipconfig0: ip=dhcp",
            "citype: nocloud",
            "ciuser: ",
            "ciuser: \"\"",
            "cipassword: \ncipassword:   ",
            "ciuser: ops\nciuser:  \t",
        ] {
            assert_eq!(made(conf), None, "{conf}");
        }
    }

    #[test]
    fn the_document_means_what_proxmox_means() {
        for (conf, expected) in [
            (
                "ciuser: ops",
                json!({"hostname": "vm106", "fqdn": "vm106", "manage_etc_hosts": true, "user": "ops",
                    "chpasswd": {"expire": false}, "users": ["default"], "package_upgrade": true}),
            ),
            (
                "name: web.example.com\nciuser: root\ncipassword: 0123\nciupgrade: 0\nsshkeys: ssh-ed25519%20A%0Assh-rsa%20B%0A\nsearchdomain: x.example",
                json!({"hostname": "web", "fqdn": "web.example.com", "manage_etc_hosts": true, "user": "root",
                    "disable_root": false, "password": "0123", "chpasswd": {"expire": false},
                    "ssh_authorized_keys": ["ssh-ed25519 A", "ssh-rsa B"]}),
            ),
            (
                "name: web\nciupgrade: 1\nsearchdomain: a.example b.example",
                json!({"hostname": "web", "fqdn": "web.a.example", "manage_etc_hosts": true,
                    "chpasswd": {"expire": false}, "users": ["default"], "package_upgrade": true}),
            ),
            (
                "cipassword: $5$a: b # c\"'%{{ x }}",
                json!({"hostname": "vm106", "fqdn": "vm106", "manage_etc_hosts": true, "password": "$5$a: b # c\"'%{{ x }}",
                    "chpasswd": {"expire": false}, "users": ["default"], "package_upgrade": true}),
            ),
        ] {
            assert_eq!(made(conf), Some(expected), "{conf}");
        }
    }
}
