//! A million files that look like Proxmox's and are not: none stops a parser, and what cannot be used in one costs that
//! and nothing else.
//!
//! The generator knows the grammar (keys, fields, sections, encodings) and joins its pieces without sense, so that most
//! of what it makes gets past the first question a parser asks.
#![allow(clippy::unwrap_used, missing_docs)]

use std::thread;

use pve_imds_model::conf::{MAX_WARNINGS, Reason, parse};
use pve_imds_model::datacenter::Datacenter;
use pve_imds_model::notes::MAX_REMARKS;
use pve_imds_model::policy::MAX_FLAWS;
use pve_imds_model::pools::Pools;
use pve_imds_model::vm::VmId;

/// How many files are made, of all kinds together.
const INPUTS: u64 = 1_000_000;

/// What can be told of blocks beside the lines that do nothing: one thing of each name and of the one with `secrets=`,
/// and all that is wrong with a policy.
const BLOCKS: usize = 4 + MAX_FLAWS;

/// One in so many configurations is also looked at closely.
const CLOSELY: u64 = 8;

const THREADS: u64 = 4;

/// Random numbers that are the same at every run (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn of<'t>(&mut self, pieces: &[&'t str]) -> &'t str {
        let at = self.below(pieces.len() as u64);
        pieces[usize::try_from(at).unwrap()]
    }
}

#[rustfmt::skip]
const KEYS: &[&str] = &[
    "name", "tags", "smbios1", "net0", "net1", "net31", "net32", "net", "net00", "ipconfig0", "ipconfig31", "sshkeys",
    "cipassword", "ciuser", "ciupgrade", "nameserver", "searchdomain", "lock", "template", "description", "delete",
    "memory", "args", "snapstate", "cdrom", "ide2", "ostype", "vmgenid", "onboot", "cores", "cpulimit", "unused0",
    "unknown", "Name", " name", "name ", "a_b-c0", "-a", "\u{feff}name",
];

#[rustfmt::skip]
const SEPARATORS: &[&str] = &[
    ": ", ": ", ": ", ":", " : ", "", ":\t", "=", "::",
];

#[rustfmt::skip]
const VALUES: &[&str] = &[
    "virtio", "=", "=", ",", ",", ";", "model=", "macaddr=", "BC:24:11:00:00:01", "BD:24:11:00:00:01", "bridge=vmbr0",
    "tag=5", "tag=4095", "trunks=1-5;7", "queues=4", "mtu=1", "rate=0.5", "firewall=1", "link_down=yes", "uuid=",
    "11111111-1111-4111-8111-111111111103", "base64=1", "serial=QUJD", "sku=Q", "ip=dhcp", "ip=10.0.0.5/24",
    "ip6=auto", "gw=10.0.0.1", "gw6=fe80::1", "web", "a.b-c", " ", "\t", "\r", "\0", "%0A", "%C3", "%", "%3C",
    "\u{fc}", "\u{202e}", "\"", "prepare", "delete", "1", "0", "on", "99999999999999999999", "-1",
    "ssh-ed25519%20AAAA%0A", "virtio=BC:24:11:00:00:01,bridge=vmbr0", "uuid=11111111-1111-4111-8111-111111111103",
    "ip=dhcp", "a;b", "web-1", "1",
];

#[rustfmt::skip]
const NOTES: &[&str] = &[
    "<!--#user-data", "<!--#network-config", "<!--#vendor-data", "<!--#imds", "<!--#", "<!-#", "\u{feff}", ",", " base64", " gzip",
    " gzip+base64", " secrets=x", " x=1", "-->", "enabled%3A false", "mac%3A", "hop_limit%3A 3", "#cloud-config",
    "version%3A 2", "ethernets%3A {}", "{", "[", "&a *a", "H4sIAAAAAAAA", "YQ==", "%0A", "%", "\r", " ", "\u{fc}",
    "\t",
];

#[rustfmt::skip]
const HEADERS: &[&str] = &[
    "[PENDING]", "[pending] ", "[snap]", "[x]", "[special:cloudinit]", "[SPECIAL:fleecing]", "[special:x]", "[a b]",
    "[]", "[ab]]", "[",
];

/// Good as they are, until a byte of them is another.
#[rustfmt::skip]
const OPTIONS: &[&str] = &[
    "net0: virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=5", "net1: model=e1000,macaddr=bc:24:11:00:00:02", "net31: virtio",
    "smbios1: uuid=11111111-1111-4111-8111-111111111103,base64=1,serial=QUJD", "ipconfig0: ip=10.0.0.5/24,gw=10.0.0.1",
    "ipconfig31: ip6=auto", "name: web.example", "tags: a;b c", "lock: migrate", "template: 1", "memory: 512",
    "sshkeys: ssh-ed25519%20AAAA%0A", "description: a%3Ab", "delete: tags", "cdrom: none", "snapstate: prepare",
];

/// A line of a configuration.
fn line(dice: &mut Dice) -> String {
    let pieces = |dice: &mut Dice, of: &[&str], most| (0..dice.below(most)).map(|_| dice.of(of)).collect::<String>();
    match dice.below(16) {
        0 => dice.of(HEADERS).to_owned(),
        1..4 => format!("#{}", pieces(dice, NOTES, 4)),
        4 | 5 => block(dice),
        6 => pieces(dice, VALUES, 4),
        7..9 => dice.of(OPTIONS).to_owned(),
        // Short values are good ones more often.
        _ => {
            let most = 2 + dice.below(5);
            format!("{}{}{}", dice.of(KEYS), dice.of(SEPARATORS), pieces(dice, VALUES, most))
        }
    }
}

/// A block of the Notes, or nearly.
fn block(dice: &mut Dice) -> String {
    let lines: Vec<_> = (0..dice.below(3)).map(|_| format!("#{}{}\n", dice.of(NOTES), dice.of(NOTES))).collect();
    format!("#{}{}\n{}#-->", dice.of(&NOTES[..4]), dice.of(&NOTES[5..]), lines.concat())
}

/// Some byte of it is another.
fn spoil(dice: &mut Dice, text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    if !bytes.is_empty() && dice.below(4) == 0 {
        let at = usize::try_from(dice.below(bytes.len() as u64)).unwrap();
        bytes[at] = dice.next().to_le_bytes()[0];
    }
    bytes
}

fn config(dice: &mut Dice) -> Vec<u8> {
    let lines: Vec<_> = (0..dice.below(10)).map(|_| line(dice)).collect();
    spoil(dice, lines.join("\n"))
}

#[rustfmt::skip]
const CLUSTER: &[&str] = &[
    "pool", "user", "acl", ":", ":", ":", ":", "/", "a", "b/c", "..", "106", "0106", ",", ";", " ", "\n", "\n", "\r",
    "\0", "%3A", "registered-tags", "tag-style", "user-tag-access", ": ", "=", "case-sensitive", "user-allow", "list",
    "free", "user-allow-list", "color-map", "shape", "full", "ffffff", "1", "#", "\u{fc}", "\npool:a:x:105,106:",
    "\npool:a/b::107 106:", "\nregistered-tags: ", "\ntag-style: case-sensitive=1", "\nuser-tag-access: user-allow=",
];

fn cluster(dice: &mut Dice) -> Vec<u8> {
    let text = (0..dice.below(40)).map(|_| dice.of(CLUSTER)).collect();
    spoil(dice, text)
}

/// Reads a configuration, and says how many lines it warned of.
fn read(bytes: &[u8], closely: bool) -> usize {
    let vmid = VmId::new(100).unwrap();
    let parsed = parse(vmid, bytes);
    assert!(parsed.warnings.len() <= MAX_WARNINGS);
    assert!(parsed.vm.notes.remarks.len() <= MAX_REMARKS + BLOCKS + 1);
    assert!(parsed.vm.nets.is_sorted_by(|a, b| a.index < b.index));
    if closely {
        let sections = |reason: &Reason| matches!(reason, Reason::UnknownSection | Reason::SectionTwice);
        // Without the lines that could not be used there is the same VM, and nothing to warn of.
        let unused = |number: usize| {
            let warning = parsed.warnings.iter().find(|warning| warning.line == number + 1);
            warning.is_some_and(|warning| warning.reason.is_dropped() && !sections(&warning.reason))
        };
        let lines = bytes.split(|byte| *byte == b'\n').enumerate().filter(|(number, _)| !unused(*number));
        let rest = lines.map(|(_, line)| line).collect::<Vec<_>>().join(&b'\n');
        let again = parse(vmid, &rest);
        assert_eq!(again.vm, parsed.vm, "{:?}", String::from_utf8_lossy(bytes));
        assert_eq!(again.is_ready(), parsed.is_ready());
        let told = |reason: &Reason| sections(reason) || !reason.is_dropped();
        assert!(again.warnings.iter().all(|warning| told(&warning.reason)), "{:?}", again.warnings);
    }
    parsed.warnings.len()
}

#[test]
fn a_million_files_are_read_and_what_is_bad_costs_itself_alone() {
    let work = |seed: u64| {
        let mut dice = Dice(seed);
        let (mut warnings, mut nics, mut blocks, mut members) = (0, 0, 0, 0);
        for number in 0..INPUTS / THREADS {
            if number % 4 == 0 {
                let bytes = cluster(&mut dice);
                members += Pools::parse(&bytes).members().count();
                let _ = Datacenter::parse(&bytes);
            } else {
                let bytes = config(&mut dice);
                warnings += read(&bytes, number % CLOSELY == 1);
                if number % CLOSELY == 1 {
                    let vm = parse(VmId::new(100).unwrap(), &bytes).vm;
                    nics += vm.nets.len();
                    blocks += usize::from(vm.notes.user_data.is_some_and(|block| block.is_ok()));
                }
            }
        }
        // The generator is worth something only if much of what it makes is good.
        assert!(warnings > 0 && nics > 1000 && blocks > 100 && members > 1000, "{warnings} {nics} {blocks} {members}");
    };
    thread::scope(|scope| {
        for seed in 0..THREADS {
            scope.spawn(move || work(seed));
        }
    });
}
