//! Debian's own cloud-init, old and new, meets user data that cannot be had, in each dialect.
//!
//! In comes a VM whose block says `secrets=` on a node that renders none, or is broken, until its owner mends that; out
//! comes that no machine goes on with a part of what it should have. The new release waits where its boot begins and is whole within that boot. The old one asks a
//! few times and comes up as nobody in particular: another instance, so that its next boot is a first one.

use std::fs;
use std::time::{Duration, Instant};

use crate::chroot::{Boot, Machine, Release};
use crate::table::Dialect;
use crate::world::dhcp::Dhcp;
use crate::world::{Node, PATIENCE, until, until_within, user_data};

const SECRET: &str = "<!--#user-data secrets=worker\n#cloud-config\nhostname: {{ secret \"name\" }}\n-->\n";

const BROKEN: &str = "<!--#user-data\n#cloud-config\nhostname: secret-half\n";

/// What becomes of the user data, and the word for it. NoCloud's broken block is
/// [`cloud_init`](crate::cloud_init)'s.
const FLAWS: &[(&str, &str, &[Gate])] =
    &[(SECRET, "secrets_disabled", GATES), (BROKEN, "notes_invalid", GATES.split_at(1).1)];

/// Longer than anything but waiting without end would take.
const LONG: Duration = Duration::from_secs(15);

/// In which dialect, and the request whose refusal keeps its clients out.
type Gate = (Dialect, &'static str);

const GATES: &[Gate] = &[
    (Dialect::NoCloud, "GET /nocloud/user-data"),
    (Dialect::OpenStack, "GET /openstack"),
    (Dialect::Ec2, "PUT /latest/api/token"),
];

/// What may be answered to nobody whose user data cannot be had.
const WITHHELD: &[&str] = &["/user-data", "/user_data", "/openstack", "/meta_data.json", "/token", "/instance-id"];

/// A machine, and where it is kept out.
struct Kept {
    machine: Machine,
    gate: &'static str,
    outcome: &'static str,
}

impl Kept {
    fn refusals(&self, node: &Node) -> usize {
        self.machine.answers(node, self.gate, &format!("503 {}", self.outcome))
    }

    /// It was told to wait, and of all that could be taken for a whole machine it has nothing.
    #[track_caller]
    fn has_nothing(&self, node: &Node) {
        assert!(self.refusals(node) > 0, "{} was never asked", self.gate);
        let log = fs::read_to_string(node.log()).unwrap();
        let tap = format!(" {} ", self.machine.guest.tap());
        for line in log.lines().filter(|line| line.contains(&tap) && line.contains(" 200 ")) {
            assert!(!WITHHELD.iter().any(|path| line.contains(&format!("{path} 200 "))), "{line}");
        }
    }

    /// It came up, and not as itself: nothing says that this VM has had its first boot.
    #[track_caller]
    fn is_nobody(&self, boot: &Boot) {
        let said = &boot.said;
        assert!(boot.datasource().starts_with("DataSourceNone"), "{}\n{said}", boot.datasource());
        assert_eq!(boot.names("var/lib/cloud/instances"), ["iid-datasource-none"], "{said}");
        assert_eq!(boot.file("var/lib/cloud/data/instance-id").as_deref(), Some("iid-datasource-none\n"), "{said}");
        assert!(!boot.hostname().contains("secret"), "{said}");
    }

    #[track_caller]
    fn is_whole(&self, node: &Node, boot: &Boot) {
        self.machine.is_whole(node, boot);
        assert_eq!(boot.hostname(), format!("only-for-{}", self.machine.guest.vmid), "{}", boot.said);
    }
}

#[test]
fn cloud_init_has_all_of_its_user_data_or_no_first_boot() {
    let mut node = Node::new();
    let flawed =
        FLAWS.iter().flat_map(|(notes, outcome, gates)| gates.iter().map(move |gate| (*notes, *outcome, *gate)));
    let each = flawed.flat_map(|flawed| Release::BOTH.map(|release| (flawed, release)));
    let numbered: Vec<_> = (300..).zip(each).collect();
    for (vmid, ((notes, _, (dialect, _)), _)) in &numbered {
        node.tree.put(*vmid, &dialect.config(*vmid, notes)).unwrap();
    }
    node.start();
    let _dhcp = Dhcp::start(&node, u8::try_from(numbered.len()).unwrap());
    let machines = numbered.into_iter().map(|(vmid, ((_, outcome, (dialect, gate)), release))| {
        let machine = Machine::new(&node, vmid, release, dialect);
        Kept { machine, gate, outcome }
    });
    let (old, new): (Vec<Kept>, Vec<Kept>) = machines.partition(|kept| kept.machine.release == Release::Debian12);

    let waited: Vec<Boot> = std::thread::scope(|scope| {
        let begun = Instant::now();
        let waiting: Vec<_> = new.iter().map(|kept| scope.spawn(|| kept.machine.boot())).collect();
        let gave_up: Vec<_> = old.iter().map(|kept| scope.spawn(|| kept.machine.boot())).collect();
        for (kept, boot) in old.iter().zip(gave_up) {
            println!("{:?} of {:?}: {}", kept.machine.dialect, kept.machine.release, kept.outcome);
            kept.is_nobody(&boot.join().unwrap());
            kept.has_nothing(&node);
        }
        for (kept, boot) in new.iter().zip(&waiting) {
            println!("{:?} of {:?}: {}", kept.machine.dialect, kept.machine.release, kept.outcome);
            until_within(PATIENCE * 2, "the new one asked for fifteen seconds", || {
                (begun.elapsed() >= LONG && kept.refusals(&node) > 1).then_some(())
            });
            assert!(!boot.is_finished(), "it waits");
            kept.has_nothing(&node);
        }
        // The owner takes the attribute out, or closes the block.
        for kept in old.iter().chain(&new) {
            let (vmid, dialect) = (kept.machine.guest.vmid, kept.machine.dialect);
            let notes = format!("<!--#user-data\n{}\n-->", user_data(vmid));
            node.tree.put(vmid, &dialect.config(vmid, &notes)).unwrap();
        }
        waiting.into_iter().map(|boot| boot.join().unwrap()).collect()
    });
    for (kept, boot) in new.iter().zip(&waited) {
        kept.is_whole(&node, boot);
    }
    let again: Vec<Boot> = std::thread::scope(|scope| {
        let boots: Vec<_> = old.iter().map(|kept| scope.spawn(|| kept.machine.boot())).collect();
        boots.into_iter().map(|boot| boot.join().unwrap()).collect()
    });
    for (kept, boot) in old.iter().zip(&again) {
        kept.is_whole(&node, boot);
    }
    // An edit that breaks the Notes of what runs takes user data from it, and no more.
    let running = old.iter().chain(&new).filter(|kept| kept.machine.dialect == Dialect::OpenStack);
    for Kept { machine, .. } in running {
        let vmid = machine.guest.vmid;
        node.tree.put(vmid, &machine.dialect.config(vmid, BROKEN)).unwrap();
        until("the edit is seen", || {
            let (status, _) = machine.guest.curl(&[], "/openstack/latest/user_data")?;
            (status == 503).then_some(())
        });
        assert!(machine.guest.get("/openstack/latest/meta_data.json").contains("\"uuid\""));
    }
}
