//! Vendor data of the node, as Debian's own cloud-init takes them apart and does what they say, in each dialect.
//!
//! In come files of the node and the VMs that they choose, by tag or by pool; out comes what was done on the machine: by one
//! file that is served as it stands, by several in one MIME document, by a VM's own block and its user data besides. EC2's
//! dialect has no vendor data, and so none is done there.

use std::fs;

use crate::chroot::{Boot, Machine, Release};
use crate::table::Dialect;
use crate::world::Node;
use crate::world::dhcp::Dhcp;

/// Name, header and payload of each file. One chooses nobody here.
const FILES: &[(&str, &str, &str)] = &[
    (
        "10-web",
        "tags: [web]",
        "#cloud-config\nwrite_files:\n- {path: /etc/by-tag, content: \"a file of 10-web\\n\"}\n\
         runcmd:\n- echo a command of 10-web >/etc/by-tag-ran\n",
    ),
    (
        "20-lab",
        "pools: [lab]",
        "#cloud-config\nmerge_how: 'dict(recurse_list)+list(append)'\nwrite_files:\n\
         - {path: /etc/by-pool, content: \"a file of 20-lab\\n\"}\nruncmd:\n- echo a command of 20-lab >/etc/by-pool-ran\n",
    ),
    ("30-script", "tags: [web]", "#!/bin/sh\necho a script of 30-script >/etc/by-script\n"),
    ("40-db", "tags: [db]", "#cloud-config\nwrite_files:\n- {path: /etc/for-others, content: \"x\\n\"}\n"),
];

/// What each of them makes, and the block and the user data below.
const MADE: &[(&str, &str)] = &[
    ("etc/by-tag", "a file of 10-web\n"),
    ("etc/by-tag-ran", "a command of 10-web\n"),
    ("etc/by-pool", "a file of 20-lab\n"),
    ("etc/by-pool-ran", "a command of 20-lab\n"),
    ("etc/by-script", "a script of 30-script\n"),
    ("etc/by-block", "a script of the block\n"),
    ("etc/by-user", "a script of the user\n"),
    ("etc/for-others", "x\n"),
];

const BLOCK: &str = "<!--#vendor-data\n#!/bin/sh\necho a script of the block >/etc/by-block\n-->\n";
const SCRIPT: &str = "<!--#user-data\n#!/bin/sh\necho a script of the user >/etc/by-user\n-->\n";
/// It says one thing that the node's files say too.
const COMMAND: &str = "<!--#user-data\n#cloud-config\nruncmd:\n- echo a script of the user >/etc/by-user\n-->\n";

/// A VM, and what of [`MADE`] is made on it and nothing else.
struct Chosen {
    dialects: &'static [Dialect],
    notes: &'static [&'static str],
    tags: &'static str,
    is_in_pool: bool,
    made: &'static [&'static str],
}

const BOTH: &[Dialect] = &[Dialect::NoCloud, Dialect::OpenStack];

const CHOSEN: &[Chosen] = &[
    // Nobody's.
    Chosen { dialects: &[Dialect::OpenStack], notes: &[], tags: "webs", is_in_pool: false, made: &[] },
    // One file as it stands.
    Chosen { dialects: BOTH, notes: &[], tags: "", is_in_pool: true, made: &["etc/by-pool", "etc/by-pool-ran"] },
    // All of them, in MIME: the two that are configurations are merged as the later one says.
    Chosen {
        dialects: BOTH,
        notes: &[BLOCK, SCRIPT],
        tags: "web",
        is_in_pool: true,
        made: &[
            "etc/by-tag",
            "etc/by-tag-ran",
            "etc/by-pool",
            "etc/by-pool-ran",
            "etc/by-script",
            "etc/by-block",
            "etc/by-user",
        ],
    },
    // The user's word goes over the node's, where both say the same.
    Chosen {
        dialects: BOTH,
        notes: &[COMMAND],
        tags: "web",
        is_in_pool: false,
        made: &["etc/by-tag", "etc/by-script", "etc/by-user"],
    },
    Chosen {
        dialects: &[Dialect::Ec2],
        notes: &[BLOCK, SCRIPT],
        tags: "web",
        is_in_pool: true,
        made: &["etc/by-user"],
    },
];

#[test]
fn cloud_init_does_what_the_nodes_vendor_data_say_to_whom_they_choose() {
    let mut node = Node::new();
    let dir = Node::dir().join("vendor-data.d");
    fs::create_dir(&dir).unwrap();
    for (name, header, payload) in FILES {
        fs::write(dir.join(name), format!("---\n{header}\n---\n{payload}")).unwrap();
    }
    fs::write(node.config(), format!("{}vendor_data: {{dir: {}}}\n", node.settings(), dir.display())).unwrap();
    let each = CHOSEN.iter().flat_map(|chosen| {
        let dialects = chosen.dialects.iter();
        dialects.flat_map(move |dialect| Release::BOTH.map(|release| (chosen, *dialect, release)))
    });
    let vms: Vec<_> = (500..).zip(each).collect();
    for (vmid, (chosen, dialect, _)) in &vms {
        let config = dialect.config(*vmid, &chosen.notes.concat());
        node.tree.put(*vmid, &format!("{config}tags: {}\n", chosen.tags)).unwrap();
    }
    let pooled = vms.iter().filter(|(_, (chosen, ..))| chosen.is_in_pool).map(|(vmid, _)| vmid.to_string());
    let members = pooled.collect::<Vec<_>>().join(",");
    node.tree.put_file("user.cfg", &format!("pool:lab::{members}::\n")).unwrap();
    node.start();
    let _dhcp = Dhcp::start(&node, u8::try_from(vms.len()).unwrap());
    let machines: Vec<_> =
        vms.iter().map(|(vmid, (_, dialect, release))| Machine::new(&node, *vmid, *release, *dialect)).collect();
    let boots: Vec<Boot> = std::thread::scope(|scope| {
        let boots: Vec<_> = machines.iter().map(|machine| scope.spawn(|| machine.boot())).collect();
        boots.into_iter().map(|boot| boot.join().unwrap()).collect()
    });
    for ((machine, boot), (vmid, (chosen, dialect, release))) in machines.iter().zip(&boots).zip(&vms) {
        println!("{vmid}: {dialect:?} of {release:?}, tags {:?}, in the pool: {}", chosen.tags, chosen.is_in_pool);
        machine.is_whole(&node, boot);
        for (path, text) in MADE {
            let expected = chosen.made.contains(path).then_some(*text);
            assert_eq!(boot.file(path).as_deref(), expected, "{path}\n{}", boot.said);
        }
    }
}
