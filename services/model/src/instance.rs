//! What a VM is called in the terms of clouds: OpenStack's and EC2's names for what Proxmox knows.
//!
//! In come a VM, its pool and its node; out go ids, types, zones, keys and tags. The same VM has the same names whatever
//! dialect it asks in. Refused: keys and tags that a client would take for something else.

use std::collections::HashSet;

use crate::pools::PoolId;
use crate::vm::{Size, Vm};

/// A public key of the VM's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey<'a> {
    /// A name without blanks and `=`: afterburn and EC2's listing need that.
    pub name: String,
    /// One line of OpenSSH's `authorized_keys` without options.
    pub line: &'a str,
}

/// The keys of `sshkeys` that every client can read: type, base64, comment. One that begins with options is left to the
/// user data made of the same option, because afterburn gives up on it.
pub fn public_keys(vm: &Vm) -> impl Iterator<Item = PublicKey<'_>> {
    let lines = vm.cloudinit.sshkeys.iter().map(|line| line.trim()).filter(|line| is_key(line));
    (0..).zip(lines).map(|(number, line): (u32, _)| PublicKey { name: format!("key-{number}"), line })
}

/// What OpenSSH's keys begin with (sshd(8), AUTHORIZED_KEYS FILE FORMAT).
const KEY_TYPES: &[&str] = &["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-sha2-"];

fn is_key(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    let (Some(kind), Some(key)) = (words.next(), words.next()) else { return false };
    let base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    KEY_TYPES.iter().any(|known| kind.starts_with(known)) && key.bytes().all(base64) && !line.contains(char::is_control)
}

/// `proxmox.2c.4096m`: processors and MiB.
#[must_use]
pub fn instance_type(size: Size) -> String {
    let processors = u64::from(size.cores) * u64::from(size.sockets);
    format!("proxmox.{processors}c.{}m", size.memory)
}

/// An id as EC2's: `i-` and 17 hexadecimal digits, the last ones of the UUID, because the first may have to say `ec2`;
/// of a VM without one, its number.
#[must_use]
pub fn instance_id(vm: &Vm) -> String {
    ec2_id("i", vm)
}

/// `r-…`, as [`instance_id`]. Nobody else was started with it.
#[must_use]
pub fn reservation_id(vm: &Vm) -> String {
    ec2_id("r", vm)
}

/// Digits of an id.
const DIGITS: usize = 17;

fn ec2_id(kind: &str, vm: &Vm) -> String {
    let hex = match &vm.uuid {
        Some(uuid) => uuid.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_ascii_lowercase(),
        None => format!("{:x}", vm.vmid.get()),
    };
    let last = &hex[hex.len().saturating_sub(DIGITS)..];
    format!("{kind}-{last:0>DIGITS$}")
}

/// A node is a region of one zone: clients cut the last letter off a zone's name to have its region's.
#[must_use]
pub fn region(node: &str) -> &str {
    node
}

/// The zone of [`region`].
#[must_use]
pub fn zone(node: &str) -> String {
    format!("{node}a")
}

/// Tags of a VM's owner that clients would take for orders of their own: cloud-init how to find its data, cloudbase-init
/// whom to give which password.
const ORDERS: &[&str] = &["admin_pass", "admin_username", "dsmode"];

/// What is known of a VM besides its documents: facts of ours, then one key for each tag, without a value. A tag that has
/// the name of a fact does not replace it: it could not, having a colon in it.
#[must_use]
pub fn facts(vm: &Vm, node: &str, pool: Option<&PoolId>) -> Vec<(String, String)> {
    let mut facts = vec![("pve:vmid".to_owned(), vm.vmid.to_string()), ("pve:node".to_owned(), node.to_owned())];
    facts.extend(pool.map(|pool| ("pve:pool".to_owned(), pool.as_str().to_owned())));
    // A set, because there may be as many as a configuration of 1 MiB holds, and a guest asks as often as it likes.
    let mut known = HashSet::new();
    let tags = vm.tags.iter().filter(|tag| !ORDERS.contains(&tag.to_ascii_lowercase().as_str()));
    facts.extend(tags.filter(|tag| known.insert(*tag)).map(|tag| (tag.clone(), String::new())));
    facts
}

#[cfg(test)]
mod tests {
    // Processor time is measured here, and no clock stands still.
    #![allow(clippy::unwrap_used, clippy::disallowed_types)]
    use std::time::{Duration, Instant};

    use super::*;
    use crate::conf;
    use crate::vm::VmId;

    fn vm(config: &str) -> Vm {
        conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm
    }

    #[test]
    fn keys_are_those_that_every_client_can_read() {
        let keys = "ssh-ed25519%20AAAA%20ops%40a%0Arestrict%20ssh-rsa%20AAAA%0A%23%20mine%0Assh-rsa%0A\
                    ecdsa-sha2-nistp256%20BBBB%3D%3D%20a%20b%0Ask-ssh-ed25519%40openssh.com%20CCCC%0Assh-rsa%20%C3%BC%0A";
        let vm = vm(&format!("sshkeys: {keys}\n"));
        let keys: Vec<_> = public_keys(&vm).map(|key| (key.name, key.line)).collect();
        assert_eq!(
            keys,
            [
                ("key-0".to_owned(), "ssh-ed25519 AAAA ops@a"),
                ("key-1".to_owned(), "ecdsa-sha2-nistp256 BBBB== a b"),
                ("key-2".to_owned(), "sk-ssh-ed25519@openssh.com CCCC"),
            ]
        );
    }

    #[test]
    fn ids_are_as_long_as_ec2s_and_follow_the_uuid() {
        for (config, expected) in [
            ("smbios1: uuid=EC2E1916-9099-7CAF-FD21-012345ABCDEF\n", "i-ffd21012345abcdef"),
            ("smbios1: uuid=ec2e1916-9099-7caf-fd21-012345abcdef\n", "i-ffd21012345abcdef"),
            ("name: x\n", "i-0000000000000006a"),
        ] {
            assert_eq!(instance_id(&vm(config)), expected, "{config}");
            assert_eq!(reservation_id(&vm(config))[1..], expected[1..]);
        }
    }

    #[test]
    fn a_type_is_the_size() {
        for (config, expected) in [
            ("", "proxmox.1c.512m"),
            ("cores: 2\nsockets: 2\nmemory: 4096\n", "proxmox.4c.4096m"),
            ("memory: current=2048\ncores: 0\n", "proxmox.1c.2048m"),
            ("cores: 99999999999999\nmemory: x\n", "proxmox.4294967295c.512m"),
            ("cores: x\n", "proxmox.1c.512m"),
        ] {
            assert_eq!(instance_type(vm(config).size), expected, "{config}");
        }
    }

    #[test]
    fn a_zone_is_its_region_and_a_letter() {
        assert_eq!((region("pve1"), zone("pve1").as_str()), ("pve1", "pve1a"));
    }

    #[test]
    fn as_many_tags_as_a_configuration_holds_are_told_at_once() {
        let tags: Vec<_> = (0..130_000).map(|number| format!("t{number}")).collect();
        let vm = vm(&format!("tags: {}\n", tags.join(";")));
        let before = Instant::now();
        assert_eq!(facts(&vm, "pve1", None).len(), 2 + tags.len());
        // Tens of milliseconds. Each compared with each takes half a minute, in which no guest of the node hears anything.
        assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    }

    #[test]
    fn facts_are_ours_and_the_owners_tags() {
        let vm = vm("tags: web;prod;DSmode;admin_pass;web\n");
        let pool = PoolId::parse("lab/a").unwrap();
        let told = |pool| facts(&vm, "pve1", pool).into_iter().map(|(key, value)| format!("{key}={value}"));
        let ours = ["pve:vmid=106", "pve:node=pve1", "pve:pool=lab/a", "web=", "prod="];
        assert_eq!(told(Some(&pool)).collect::<Vec<_>>(), ours);
        assert_eq!(told(None).collect::<Vec<_>>(), ["pve:vmid=106", "pve:node=pve1", "web=", "prod="]);
    }
}
