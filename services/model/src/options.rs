//! The options of a VM's configuration: which there are, and what each one means to us.
//!
//! In come a key and its value; out comes a [`Vm`] that knows it, or the reason why Proxmox's non-strict loader would
//! say "no such option" or "no such value". Options that mean nothing here are only told from unknown ones.

use crate::cloudinit::{Password, ipconfig};
use crate::format::{
    boolean, is_address, is_all_blank, is_digits, is_dns_name, is_plain_number, is_tag, split_list, unquoted,
};
use crate::property::BadProperty;
use crate::smbios::Smbios;
use crate::sshkeys::{self, BadKey};
use crate::tap::plain_number;
use crate::vm::{Nic, Vm};

/// Why Proxmox has no value for a key. Never holds a text from the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOption {
    /// There is no such option.
    #[error("unknown option")]
    Unknown,
    /// A carriage return inside the value.
    #[error("the value holds a line break")]
    LineBreak,
    /// The value is no boolean.
    #[error("the value is not a boolean")]
    Boolean,
    /// The value is no number of the kind the option takes.
    #[error("the value is not a number")]
    Number,
    /// The value is no DNS name.
    #[error("the value is not a DNS name")]
    DnsName,
    /// One of the tags is no tag; it drops all of them.
    #[error("one of the tags is not valid")]
    Tag,
    /// One of the servers is neither address nor name; it drops all of them.
    #[error("one of the addresses is not valid")]
    Address,
    /// The keys cannot be read, from this byte of the value on.
    #[error("{1}")]
    Key(usize, BadKey),
    /// A property string that cannot be used.
    #[error(transparent)]
    Property(#[from] BadProperty),
}

/// Highest `N` of the numbered options.
const FAMILIES: &[(&str, u32)] = &[
    ("hostpci", 15),
    ("ide", 3),
    ("numa", 7),
    ("parallel", 2),
    ("sata", 5),
    ("scsi", 30),
    ("serial", 3),
    ("unused", 255),
    ("usb", 13),
    ("virtio", 15),
    ("virtiofs", 9),
];
const MAX_NET: u32 = crate::tap::MAX_NIC as u32;

/// Puts `key: value` into `vm`.
///
/// # Errors
/// Why Proxmox drops the line; `vm` is as it was.
pub(crate) fn apply(vm: &mut Vm, key: &str, value: &str) -> Result<(), BadOption> {
    // `args` is taken raw, unless there is nothing in it.
    if value.contains('\r') && (key != "args" || is_all_blank(value)) {
        return Err(BadOption::LineBreak);
    }
    if let Some((family, number)) = numbered(key) {
        return apply_numbered(vm, family, number, value);
    }
    // Proxmox strips quotes from texts that have no format of their own, and only from those.
    let text = || Some(unquoted(value).to_owned());
    match key {
        "name" if is_dns_name(value) => vm.name = Some(value.to_owned()),
        "name" => return Err(BadOption::DnsName),
        "tags" => vm.tags = list(value, is_tag).ok_or(BadOption::Tag)?,
        "smbios1" => {
            let smbios = Smbios::parse(value)?;
            (vm.uuid, vm.smbios) = (smbios.uuid, smbios.texts);
        }
        "ostype" => vm.ostype = text(),
        "vmgenid" => vm.vmgenid = text(),
        "lock" => vm.lock = text(),
        "template" => vm.template = flag(value)?,
        "description" => vm.description = text(),
        // `ciuser: ` is a single blank to Proxmox, and nobody's name.
        "ciuser" => vm.cloudinit.ciuser = text().filter(|user| !is_all_blank(user)),
        "cipassword" => {
            vm.cloudinit.cipassword = text().filter(|password| !is_all_blank(password)).map(Password::new);
        }
        "ciupgrade" => vm.cloudinit.ciupgrade = Some(flag(value)?),
        "sshkeys" => vm.cloudinit.sshkeys = sshkeys::read(value).map_err(|(at, why)| BadOption::Key(at, why))?,
        "searchdomain" => {
            vm.cloudinit.searchdomain = split_list(unquoted(value)).into_iter().map(str::to_owned).collect();
        }
        "cores" => vm.size.cores = number(value)?,
        "sockets" => vm.size.sockets = number(value)?,
        "memory" => vm.size.memory = memory(value).unwrap_or(vm.size.memory),
        "nameserver" => vm.cloudinit.nameserver = list(value, is_address).ok_or(BadOption::Address)?,
        _ => return meaningless(key, value),
    }
    Ok(())
}

fn apply_numbered(vm: &mut Vm, family: &str, number: u32, value: &str) -> Result<(), BadOption> {
    match (family, u8::try_from(number)) {
        ("net", Ok(index)) if number <= MAX_NET => {
            let nic = Nic::parse(index, value)?;
            match vm.nets.binary_search_by_key(&index, |nic| nic.index) {
                Ok(at) => vm.nets[at] = nic,
                Err(at) => vm.nets.insert(at, nic),
            }
            Ok(())
        }
        ("ipconfig", Ok(index)) if number <= MAX_NET => {
            vm.cloudinit.ipconfig.insert(index, ipconfig(value)?);
            Ok(())
        }
        _ if FAMILIES.iter().any(|(name, most)| *name == family && number <= *most) => Ok(()),
        _ => Err(BadOption::Unknown),
    }
}

/// `net0` is family `net`, number 0. Options such as `smbios1`, whose digit is part of the name, are no family.
fn numbered(key: &str) -> Option<(&str, u32)> {
    let family = key.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = plain_number(key.strip_prefix(family)?).filter(|_| family.len() < key.len())?;
    (!matches!(key, "audio0" | "efidisk0" | "rng0" | "smbios1" | "tpmstate0")).then_some((family, number))
}

/// A number of something there is one of at least. Proxmox takes any digits; what no machine has is the most there is.
fn number(value: &str) -> Result<u32, BadOption> {
    is_digits(value).then(|| value.parse().unwrap_or(u32::MAX).max(1)).ok_or(BadOption::Number)
}

/// `512` or `current=512`. Its format is not checked: without one that is understood the default stays.
fn memory(value: &str) -> Option<u32> {
    plain_number(value.strip_prefix("current=").unwrap_or(value))
}

fn flag(value: &str) -> Result<bool, BadOption> {
    boolean(value).ok_or(BadOption::Boolean)
}

/// All parts of a list, if all of them pass.
fn list(value: &str, passes: fn(&str) -> bool) -> Option<Vec<String>> {
    split_list(value).into_iter().map(|part| passes(part).then(|| part.to_owned())).collect()
}

/// Options that say nothing to us. Their property strings are not looked into.
fn meaningless(key: &str, value: &str) -> Result<(), BadOption> {
    match key {
        "acpi" | "allow-ksm" | "autostart" | "freeze" | "keephugepages" | "kvm" | "localtime" | "numa" | "onboot"
        | "protection" | "reboot" | "tablet" | "tdf" => flag(value).map(drop),
        "balloon" | "cpuunits" | "migrate_speed" | "shares" | "smp" | "snaptime" | "vcpus" => {
            is_digits(value).then_some(()).ok_or(BadOption::Number)
        }
        "cpulimit" | "migrate_downtime" => is_plain_number(value).then_some(()).ok_or(BadOption::Number),
        "affinity"
        | "agent"
        | "amd-sev"
        | "arch"
        | "args"
        | "audio0"
        | "bios"
        | "boot"
        | "bootdisk"
        | "cdrom"
        | "cicustom"
        | "citype"
        | "cpu"
        | "efidisk0"
        | "hookscript"
        | "hotplug"
        | "hugepages"
        | "intel-tdx"
        | "ivshmem"
        | "keyboard"
        | "machine"
        | "meta"
        | "parent"
        | "rng0"
        | "running-nets-host-mtu"
        | "runningcpu"
        | "runningmachine"
        | "scsihw"
        | "spice_enhancements"
        | "startdate"
        | "startup"
        | "tpmstate0"
        | "vga"
        | "vmstate"
        | "vmstatestorage"
        | "watchdog" => Ok(()),
        _ => Err(BadOption::Unknown),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::vm::VmId;

    #[test]
    fn a_value_is_taken_or_dropped() {
        use BadOption as Bad;
        for (key, value, expected) in [
            ("name", "web-01", Ok(())),
            ("name", "web_01", Err(Bad::DnsName)),
            ("tags", "a;b", Ok(())),
            ("tags", "a;-b", Err(Bad::Tag)),
            ("template", "yes", Ok(())),
            ("template", "2", Err(Bad::Boolean)),
            ("ostype", "anything", Ok(())),
            ("vmgenid", "anything", Ok(())),
            ("lock", "anything", Ok(())),
            ("ciuser", "a\rb", Err(Bad::LineBreak)),
            ("args", "a\rb", Ok(())),
            ("args", "\r", Err(Bad::LineBreak)),
            ("tags", "\0", Ok(())),
            ("sshkeys", "a b", Err(Bad::Key(1, BadKey::Raw(1)))),
            ("nameserver", "10.0.0.1 ns.example", Ok(())),
            ("nameserver", "10.0.0.1 a_b", Err(Bad::Address)),
            ("net31", "virtio", Ok(())),
            ("net32", "virtio", Err(Bad::Unknown)),
            ("net00", "virtio", Err(Bad::Unknown)),
            ("net", "virtio", Err(Bad::Unknown)),
            ("net0", "bridge=vmbr0", Err(Bad::Property(BadProperty::Missing("model")))),
            ("ipconfig31", "ip=dhcp", Ok(())),
            ("ipconfig32", "ip=dhcp", Err(Bad::Unknown)),
            (
                "smbios1",
                "uuid=1",
                Err(Bad::Property(BadProperty::BadValue { field: "uuid", wanted: "8-4-4-4-12 hexadecimal digits" })),
            ),
            ("scsi30", "local:1", Ok(())),
            ("scsi31", "local:1", Err(Bad::Unknown)),
            ("efidisk0", "local:1", Ok(())),
            ("efidisk1", "local:1", Err(Bad::Unknown)),
            ("onboot", "1", Ok(())),
            ("onboot", "si", Err(Bad::Boolean)),
            ("cores", "4", Ok(())),
            ("cores", "+4", Err(Bad::Number)),
            ("cpulimit", "0.5", Ok(())),
            ("cpulimit", "half", Err(Bad::Number)),
            ("memory", "512", Ok(())),
            ("digest", "x", Err(Bad::Unknown)),
            ("delete", "tags", Err(Bad::Unknown)),
        ] {
            let mut vm = Vm::new(VmId::new(100).unwrap());
            let before = vm.clone();
            let got = apply(&mut vm, key, value);
            assert_eq!(got, expected, "{key}: {value}");
            assert!(got.is_ok() || vm == before, "{key}: a dropped value leaves no trace");
        }
    }

    #[test]
    fn quotes_fall_from_free_texts_only() {
        let mut vm = Vm::new(VmId::new(100).unwrap());
        for (key, value) in [("ciuser", "\"ops\""), ("ostype", "\"l26"), ("searchdomain", "\"a.example b.example\"")] {
            apply(&mut vm, key, value).unwrap();
        }
        assert_eq!(vm.cloudinit.ciuser.as_deref(), Some("ops"));
        assert_eq!(vm.ostype.as_deref(), Some("\"l26"));
        assert_eq!(vm.cloudinit.searchdomain, ["a.example", "b.example"]);
        assert_eq!(apply(&mut vm, "name", "\"web\""), Err(BadOption::DnsName));
    }
}
