//! Guards that have lost their pins, as when the file system is unmounted and somebody else still has it. Here that
//! somebody is another name for the same pin.

use std::path::Path;
use std::process::Command;

use aya::Ebpf;
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use pve_imds_bpf::testing::{Frame, METADATA_IPV4 as METADATA, OBJECTS};
use pve_imds_bpf::{Epoch, Held, Idle, METADATA_MAC, Pins, Program, Standing, Stray, Swap};

use crate::support::{Wire, index, ip, node, pair, said};
use crate::{GUEST, OTHER, attached, devices, load, tag};

/// Takes the pins away from us; their links live on.
fn keep(dir: &Path, names: &[String]) {
    for name in names {
        std::fs::rename(dir.join(name), dir.join(format!("kept_{name}"))).unwrap();
    }
}

fn guards(ifindex: u32) -> [String; 2] {
    ["steer", "shield"].map(|program| format!("{ifindex}-{program}"))
}

/// Ours by its programs, nobody's by its pins: attached by hand as long as it lives.
struct Other {
    object: Ebpf,
    links: Vec<SchedClassifierLink>,
}

impl Other {
    fn new() -> Self {
        Self { object: Ebpf::load(OBJECTS[0].1).unwrap(), links: Vec::new() }
    }

    fn attach(mut self, program: &str, name: &str, side: TcAttachType, order: LinkOrder) -> Self {
        let program: &mut SchedClassifier = self.object.program_mut(program).unwrap().try_into().unwrap();
        if program.fd().is_err() {
            program.load().unwrap();
        }
        let link = program.attach_with_options(name, side, TcAttachOptions::TcxOrder(order)).unwrap();
        self.links.push(program.take_link(link).unwrap());
        self
    }
}

/// A guest's question comes to us in this epoch, and the answer to it comes to the guest.
fn assert_served(epoch: Epoch) {
    let (guest, ours) = (Wire::open("g0"), Wire::open("imds-b"));
    let question = Frame::arp(1, GUEST, METADATA);
    guest.send(&question);
    assert_eq!(ours.receive(), question.with(0, &tag(epoch).encode()));
    let answer = Frame::arp(2, METADATA, GUEST);
    ours.send(&answer.clone().with(6, &tag(epoch).encode()));
    assert_eq!(guest.receive(), answer.with(6, &METADATA_MAC));
}

#[test]
fn a_guard_that_has_lost_its_pins_gets_new_ones_and_is_never_doubled() {
    node(|dir| {
        devices();
        let (pins, mut datapath) = attached(dir);
        datapath.attach_funnel(&pins, "imds-b").unwrap();
        let host = index("h0");
        let names = [&guards(host)[..], &["return".to_owned(), "funnel".to_owned()]].concat();
        let programs = [Program::Return, Program::Funnel, Program::Steer, Program::Shield];
        let strays = |pins: &Pins| pins.strays().unwrap().into_iter().map(|stray| stray.program).collect::<Vec<_>>();
        let before = pins.list().unwrap();

        // The same load again: the kernel would run none of its programs twice.
        keep(dir, &names);
        let mut lost = strays(&pins);
        lost.sort_by_key(|program| programs.iter().position(|other| other == program));
        assert_eq!(lost, programs);
        assert_eq!(datapath.guard(&pins, "h0", host).unwrap(), Swap::Swapped);
        assert_eq!(datapath.attach_return(&pins, "imds-a").unwrap(), Swap::Swapped);
        assert_eq!(datapath.attach_funnel(&pins, "imds-b").unwrap(), Swap::Swapped);
        assert_eq!((pins.list().unwrap(), strays(&pins)), (before, vec![]));

        // The next load, and `guard attach` between the two.
        names.iter().for_each(|name| std::fs::remove_file(dir.join(name)).unwrap());
        assert_eq!(Idle::load(1).unwrap().guard(&pins, "h0", host).unwrap(), Held::Pinned);
        let mut next = load(Epoch::default().next());
        assert_eq!(next.guard(&pins, "h0", host).unwrap(), Swap::Swapped);
        assert_eq!(next.attach_return(&pins, "imds-a").unwrap(), Swap::Swapped);
        assert_eq!(next.attach_funnel(&pins, "imds-b").unwrap(), Swap::Swapped);
        assert_eq!(strays(&pins), []);
        drop(datapath);
        std::fs::remove_file(dir.join("funnel")).unwrap();
        std::fs::remove_file(dir.join("kept_funnel")).unwrap();
        // The kernel lets go of a link when it finds the time.
        while said("ip", &["link", "show", "imds-b"]).contains("xdp") {
            std::thread::yield_now();
        }
        assert_served(Epoch::default().next());
    });
}

#[test]
fn a_second_guard_of_ours_on_an_interface_is_taken_off() {
    node(|dir| {
        devices();
        let (pins, mut datapath) = attached(dir);
        let host = index("h0");
        assert_eq!(pins.standing(Program::Shield, host).unwrap(), Standing::Live);
        let _other = Other::new().attach("steer", "h0", TcAttachType::Ingress, LinkOrder::last()).attach(
            "shield",
            "h0",
            TcAttachType::Egress,
            LinkOrder::last(),
        );
        for program in [Program::Steer, Program::Shield] {
            assert_eq!(pins.standing(program, host).unwrap(), Standing::Doubled);
        }
        // The control: behind ours, the other one drops our own answers.
        let (guest, ours) = (Wire::open("g0"), Wire::open("imds-b"));
        ours.send(&Frame::arp(2, METADATA, GUEST).with(6, &tag(Epoch::default()).encode()));
        let after = Frame::tcp(OTHER, GUEST, 80, 0);
        Wire::open("h0").send(&after);
        assert_eq!(guest.receive(), after);
        drop((guest, ours));

        assert_eq!(pins.detach_strays(Program::Shield, host).unwrap(), 1);
        assert_eq!(pins.detach_strays(Program::Shield, host).unwrap(), 0);
        assert_eq!(pins.standing(Program::Steer, host).unwrap(), Standing::Doubled);
        assert_eq!(datapath.guard(&pins, "h0", host).unwrap(), Swap::Swapped);
        assert_eq!(pins.standing(Program::Steer, host).unwrap(), Standing::Live);
        assert_served(Epoch::default());
        assert_eq!(pins.strays().unwrap(), []);

        // `guard attach` leaves what guards, and takes off what is too much.
        let _other = Other::new().attach("steer", "h0", TcAttachType::Ingress, LinkOrder::first());
        assert_eq!(Idle::load(1).unwrap().guard(&pins, "h0", host).unwrap(), Held::Already);
        assert_eq!(pins.standing(Program::Steer, host).unwrap(), Standing::Live);
    });
}

#[test]
fn behind_a_stranger_ours_comes_first_and_the_old_one_goes() {
    node(|dir| {
        devices();
        let pins = Pins::open(dir).unwrap();
        let host = index("h0");
        let _old = Other::new().attach("steer", "h0", TcAttachType::Ingress, LinkOrder::last());
        // Whatever it is, on a guest's interface it is not ours; it would drop every question.
        let _stranger = Other::new().attach("return_", "h0", TcAttachType::Ingress, LinkOrder::first());
        let mut datapath = load(Epoch::default());
        assert_eq!(datapath.guard(&pins, "h0", host).unwrap(), Swap::Attached);
        datapath.attach_return(&pins, "imds-a").unwrap();
        assert_eq!(pins.standing(Program::Steer, host).unwrap(), Standing::Live);
        assert_served(Epoch::default());
        let left: Vec<_> = pins.strays().unwrap().into_iter().map(|stray| (stray.ifindex, stray.program)).collect();
        assert_eq!(left, [(host, Program::Return)], "what is there stays");
    });
}

#[test]
fn to_remove_all_is_to_open_every_interface_here_and_none_elsewhere() {
    node(|dir| {
        devices();
        pair("h1", "g1");
        let (pins, mut datapath) = attached(dir);
        datapath.attach_funnel(&pins, "imds-b").unwrap();
        let (host, leaver) = (index("h0"), index("h1"));
        datapath.guard(&pins, "h1", leaver).unwrap();
        keep(dir, &[&guards(host)[..1], &guards(leaver), &["funnel".to_owned()]].concat());
        assert!(Command::new("ip").args(["netns", "add", "elsewhere"]).status().unwrap().success());
        ip("link set h1 netns elsewhere\n");
        let off = pins.remove_all().unwrap();
        let mut expected = vec![
            Stray { ifindex: host, name: Some("h0".to_owned()), program: Program::Steer },
            Stray { ifindex: index("imds-b"), name: Some("imds-b".to_owned()), program: Program::Funnel },
        ];
        expected.sort();
        assert_eq!(off, expected);
        assert_eq!((pins.list().unwrap(), pins.strays().unwrap()), (vec![], vec![]));
        assert_eq!(pins.remove_all().unwrap(), []);
        assert!(!said("ip", &["link", "show", "imds-b"]).contains("xdp"));

        // Who went away has kept its guard, and brings it back.
        let here = rustix::thread::gettid().as_raw_nonzero().to_string();
        said("ip", &["-n", "elsewhere", "link", "set", "h1", "netns", &here]);
        let back: Vec<_> = pins.strays().unwrap().into_iter().map(|stray| (stray.name, stray.program)).collect();
        assert_eq!(back, [Program::Steer, Program::Shield].map(|program| (Some("h1".to_owned()), program)));
    });
}

/// The rights of this thread, as a daemon has them that runs within bounds: by the kernel's rule, it may not look into
/// programs that it has no descriptor of.
fn with_bounds<T>(what: impl FnOnce() -> T) -> T {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let all = capabilities(None).unwrap();
    let effective = all.effective - CapabilitySet::SYS_ADMIN;
    set_capabilities(None, rustix::thread::CapabilitySets { effective, ..all }).unwrap();
    let result = what();
    set_capabilities(None, all).unwrap();
    result
}

#[test]
fn who_may_not_look_into_a_stray_attaches_nothing_beside_it() {
    node(|dir| {
        devices();
        let (pins, mut datapath) = attached(dir);
        datapath.attach_funnel(&pins, "imds-b").unwrap();
        let host = index("h0");
        let mut next = load(Epoch::default().next());
        // With its pins it needs no more rights than it has.
        with_bounds(|| {
            assert_eq!(next.guard(&pins, "h0", host).unwrap(), Swap::Swapped);
            assert_eq!(next.attach_return(&pins, "imds-a").unwrap(), Swap::Swapped);
            assert_eq!(next.attach_funnel(&pins, "imds-b").unwrap(), Swap::Swapped);
        });
        keep(dir, &[&guards(host)[..], &["return".to_owned(), "funnel".to_owned()]].concat());
        let refused = with_bounds(|| {
            let guard = next.guard(&pins, "h0", host);
            [guard, next.attach_return(&pins, "imds-a"), next.attach_funnel(&pins, "imds-b")]
        });
        for why in refused.map(Result::unwrap_err) {
            assert!(why.is_out_of_reach() && why.to_string().contains("`pve-imds guard attach --all`"), "{why}");
        }
        // Whoever may takes it over, and then it is as before.
        assert_eq!(Idle::load(1).unwrap().guard(&pins, "h0", host).unwrap(), Held::Pinned);
        with_bounds(|| assert_eq!(next.guard(&pins, "h0", host).unwrap(), Swap::Swapped));
        ip("link del imds-a\n");
        pair("imds-a", "imds-b");
        let mut next = load(Epoch::default());
        with_bounds(|| {
            next.guard(&pins, "h0", host).unwrap();
            assert_eq!(next.attach_return(&pins, "imds-a").unwrap(), Swap::Attached);
        });
        assert_eq!(pins.strays().unwrap(), []);
        assert_served(Epoch::default());
    });
}

#[test]
fn a_datapath_can_be_dropped_while_a_stray_of_it_lives() {
    node(|dir| {
        devices();
        let (pins, datapath) = attached(dir);
        keep(dir, &guards(index("h0")));
        drop(datapath);
        let mut next = load(Epoch::default().next());
        assert_eq!(next.guard(&pins, "h0", index("h0")).unwrap(), Swap::Swapped);
        assert_eq!(pins.strays().unwrap(), []);
    });
}
