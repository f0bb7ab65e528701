//! The guard without a daemon, the daemon that takes it over, and many who do either at once.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use aya::Ebpf;
use aya::programs::links::FdLink;
use aya::programs::{SchedClassifier, TcAttachType};
use pve_imds_bpf::testing::{Frame, METADATA_IPV4 as METADATA, YARDSTICK};
use pve_imds_bpf::{
    AttachError, Bucket, Datapath, Epoch, Generation, Held, Idle, METADATA_MAC, Mode, PinError, Pinned, Pins, Program,
    Slot, Swap, Swept, Tag,
};
use rustix::fs::{FlockOperation, flock};

use crate::support::{Wire, elsewhere, index, ip, node, pair};
use crate::{GUEST, OTHER, RING, devices, load};

/// What is pinned for an interface.
fn pinned(pins: &Pins, ifindex: u32) -> Vec<Pinned> {
    pins.list().unwrap().into_iter().filter(|pinned| pinned.ifindex == ifindex).collect()
}

/// Mode and drops of `steer` and `shield`, once that much was dropped: there is no event for it.
fn assert_said(pins: &Pins, ifindex: u32, mode: Mode, drops: [Option<u64>; 2]) {
    let said =
        || pinned(pins, ifindex).iter().map(|pinned| (pinned.program, pinned.mode, pinned.drops)).collect::<Vec<_>>();
    let expected = [(Program::Steer, mode, drops[0]), (Program::Shield, mode, drops[1])];
    for _ in 0..10_000 {
        if said() == expected {
            return;
        }
        std::thread::yield_now();
    }
    assert_eq!(said(), expected);
}

#[test]
fn what_nobody_serves_is_dropped_and_counted_by_interface() {
    node(|dir| {
        devices();
        pair("h1", "g1");
        let (first, second) = (index("h0"), index("h1"));
        let pins = Pins::open(dir).unwrap();
        let mut idle = Idle::load(2).unwrap();
        assert_eq!(idle.guard(&pins, "h0", first).unwrap(), Held::Attached);
        assert_eq!(idle.guard(&pins, "h1", second).unwrap(), Held::Attached);
        drop(idle);

        let (guest, host) = (Wire::open("g0"), Wire::open("h0"));
        guest.send(&Frame::arp(1, GUEST, METADATA));
        guest.send(&Frame::tcp(GUEST, METADATA, 80, 0));
        guest.send(&Frame::tcp(GUEST, METADATA, 443, 0));
        guest.send(&Frame::tcp(GUEST, OTHER, 80, 0));
        host.send(&Frame::arp(2, METADATA, GUEST));
        host.send(&Frame::arp(2, OTHER, GUEST));
        assert_eq!(guest.receive(), Frame::arp(2, OTHER, GUEST));
        assert_said(&pins, first, Mode::Drop, [Some(3), Some(1)]);
        assert_said(&pins, second, Mode::Drop, [Some(0), Some(0)]);
    });
}

#[test]
fn the_daemon_adopts_an_idle_guard_and_is_never_thrown_out_again() {
    node(|dir| {
        devices();
        let host = index("h0");
        let pins = Pins::open(dir).unwrap();
        let mut idle = Idle::load(1).unwrap();
        assert_eq!(idle.guard(&pins, "h0", host).unwrap(), Held::Attached);
        assert_eq!(idle.guard(&pins, "h0", host).unwrap(), Held::Already);

        let mut datapath = load(Epoch::default());
        assert_eq!(datapath.guard(&pins, "h0", host).unwrap(), Swap::Swapped);
        assert_said(&pins, host, Mode::Drop, [Some(0), Some(0)]);
        datapath.attach_return(&pins, "imds-a").unwrap();
        assert_said(&pins, host, Mode::Serve, [Some(0), Some(0)]);
        let served = pins.list().unwrap();
        assert_eq!(idle.guard(&pins, "h0", host).unwrap(), Held::Already);
        assert_eq!(pins.list().unwrap(), served);

        datapath.release(host, crate::slot()).unwrap();
        assert_said(&pins, host, Mode::Drop, [None, None]);

        // Half a guard is made whole, and the half that was there stays.
        std::fs::remove_file(dir.join(format!("{host}-shield"))).unwrap();
        assert_eq!(idle.guard(&pins, "h0", host).unwrap(), Held::Attached);
        let whole = pinned(&pins, host);
        assert_eq!(whole[0].program_id, served[0].program_id);
        assert_ne!(whole[1].program_id, served[1].program_id);

        // A dead interface's index, at another interface.
        ip(&format!("link del h0\nlink add h0 index {host} type veth peer g0\nlink set h0 up\n"));
        assert!(pinned(&pins, host).iter().all(|pinned| pinned.defunct));
        assert_eq!(idle.guard(&pins, "h0", host).unwrap(), Held::Attached);
        assert!(pinned(&pins, host).iter().all(|pinned| !pinned.defunct));
    });
}

#[test]
fn one_more_interface_is_guarded_by_the_programs_that_guard_another() {
    const COUNTED: u32 = 256;
    node(|dir| {
        devices();
        pair("h1", "g1");
        pair("h2", "g2");
        let [first, second, third] = ["h0", "h1", "h2"].map(index);
        let pins = Pins::open(dir).unwrap();
        let programs = |ifindex| pinned(&pins, ifindex).iter().map(|pinned| pinned.program_id).collect::<Vec<_>>();
        for (name, ifindex) in [("h0", first), ("h1", second)] {
            assert_eq!(Idle::for_one(&pins, ifindex).unwrap().guard(&pins, name, ifindex).unwrap(), Held::Attached);
        }
        assert_eq!(programs(first), programs(second));
        let guest = Wire::open("g1");
        guest.send(&Frame::arp(1, GUEST, METADATA));
        assert_said(&pins, second, Mode::Drop, [Some(1), Some(0)]);
        assert_said(&pins, first, Mode::Drop, [Some(0), Some(0)]);

        // Without room for its count it is given programs of its own.
        for beyond in 1_000_000..1_000_000 + COUNTED - 2 {
            Idle::for_one(&pins, beyond).unwrap();
        }
        assert_eq!(Idle::for_one(&pins, third).unwrap().guard(&pins, "h2", third).unwrap(), Held::Attached);
        assert_ne!(programs(third), programs(first));
        assert_said(&pins, third, Mode::Drop, [Some(0), Some(0)]);

        // What serves is not borrowed: it may take a newborn for an interface that is gone.
        let mut datapath = load(Epoch::default());
        for (name, ifindex) in [("h0", first), ("h1", second), ("h2", third)] {
            datapath.guard(&pins, name, ifindex).unwrap();
        }
        std::fs::remove_file(dir.join(format!("{second}-steer"))).unwrap();
        std::fs::remove_file(dir.join(format!("{second}-shield"))).unwrap();
        ip(&format!("link del h1\nlink add h1 index {second} type veth peer g1\n"));
        assert_eq!(Idle::for_one(&pins, second).unwrap().guard(&pins, "h1", second).unwrap(), Held::Attached);
        assert_ne!(programs(second), programs(first));
    });
}

/// As a version would that has no map of ours: `steer` and `shield` are another object's program.
fn guard_as_of_old(dir: &Path, name: &str) -> Ebpf {
    let mut object = Ebpf::load(YARDSTICK).unwrap();
    let program: &mut SchedClassifier = object.program_mut("empty").unwrap().try_into().unwrap();
    program.load().unwrap();
    for (side, word) in [(TcAttachType::Ingress, "steer"), (TcAttachType::Egress, "shield")] {
        let link = program.attach(name, side).unwrap();
        let link = FdLink::try_from(program.take_link(link).unwrap()).unwrap();
        link.pin(dir.join(format!("{}-{word}", index(name)))).unwrap();
    }
    object
}

#[test]
fn programs_of_another_version_are_swapped_and_little_is_known_of_them() {
    node(|dir| {
        devices();
        let host = index("h0");
        let pins = Pins::open(dir).unwrap();
        let _older = guard_as_of_old(dir, "h0");
        assert_said(&pins, host, Mode::Drop, [None, None]);
        assert_eq!(Idle::load(1).unwrap().guard(&pins, "h0", host).unwrap(), Held::Already);
        let mut datapath = load(Epoch::default());
        assert_eq!(datapath.guard(&pins, "h0", host).unwrap(), Swap::Swapped);
        datapath.attach_return(&pins, "imds-a").unwrap();
        assert_said(&pins, host, Mode::Serve, [Some(0), Some(0)]);
        // The next load may leave the interface out, and then what steers there reaches nobody.
        load(Epoch::default().next()).attach_return(&pins, "imds-a").unwrap();
        assert_said(&pins, host, Mode::Drop, [Some(0), Some(0)]);
    });
}

/// Two guests on a bridge with an uplink, `u0`, whose other end, `net`, sees what leaks.
fn bridged() {
    devices();
    pair("h1", "g1");
    pair("u0", "net");
    ip("link add br0 type bridge mcast_snooping 0\nlink set br0 addrgenmode none\nlink set br0 up\n\
        link set h0 master br0\nlink set h1 master br0\nlink set u0 master br0\n");
}

#[test]
fn slots_change_places_between_loads_of_any_layout_and_nothing_leaks() {
    node(|dir| {
        bridged();
        let pins = Pins::open(dir).unwrap();
        let slots = [3, 4].map(|number| Slot::new(number).unwrap());
        let guests = [("h0", "g0"), ("h1", "g1")].map(|(host, guest)| (host, index(host), Wire::open(guest)));
        let mut idle = Idle::load(2).unwrap();
        for (name, ifindex, _) in &guests {
            idle.guard(&pins, name, *ifindex).unwrap();
        }
        let net = Wire::open("net");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (_, _, guest) in &guests {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        guest.send(&Frame::arp(1, GUEST, METADATA));
                        guest.send(&Frame::tcp(GUEST, METADATA, 80, 0));
                    }
                });
            }
            let mut epoch = Epoch::default();
            for round in 0..20 {
                let mut datapath = Datapath::load(index("imds-a"), epoch, RING, Bucket::default()).unwrap();
                for (at, (name, ifindex, _)) in guests.iter().enumerate() {
                    let slot = slots[(at + round) % 2];
                    datapath.assign(*ifindex, slot, Generation::new(9)).unwrap();
                    assert_eq!(datapath.guard(&pins, name, *ifindex).unwrap(), Swap::Swapped);
                }
                datapath.attach_return(&pins, "imds-a").unwrap();
                epoch = epoch.next();
            }
            stop.store(true, Ordering::Relaxed);
        });
        // Only what is the guests' own business has ever left.
        let own = Frame::tcp(GUEST, OTHER, 80, 0);
        guests[0].2.send(&own);
        assert_eq!((net.receive(), guests[1].2.receive()), (own.clone(), own));

        // The last load has the slots the other way round; an answer goes where they are now.
        let tag = Tag { epoch: Epoch::new(19).unwrap(), vlan: None, generation: Generation::new(9), slot: slots[0] };
        let answer = Frame::tcp(METADATA, GUEST, 40_000, 7);
        Wire::open("imds-b").send(&answer.clone().with(6, &tag.encode()));
        assert_eq!(guests[1].2.receive(), answer.with(6, &METADATA_MAC));
    });
}

#[test]
fn an_interface_that_left_takes_its_guard_along_and_its_index_is_guarded_anew() {
    node(|dir| {
        devices();
        let host = index("h0");
        let pins = Pins::open(dir).unwrap();
        let mut datapath = load(Epoch::default());
        datapath.guard(&pins, "h0", host).unwrap();
        datapath.attach_return(&pins, "imds-a").unwrap();
        // It keeps its index there, so that alone cannot tell.
        assert!(std::process::Command::new("ip").args(["netns", "add", "elsewhere"]).status().unwrap().success());
        ip("link set h0 netns elsewhere\n");
        assert!(pinned(&pins, host).iter().all(|pinned| pinned.defunct && pinned.name.is_none()));
        ip(&format!("link add h2 index {host} type veth peer g2\nlink set h2 up\nlink set g2 up\n"));
        assert!(pinned(&pins, host).iter().all(|pinned| pinned.defunct));
        assert_eq!(Idle::load(1).unwrap().guard(&pins, "h2", host).unwrap(), Held::Attached);
        assert!(pinned(&pins, host).iter().all(|pinned| !pinned.defunct));

        // What is left of the one is not the other's.
        pins.forget(host).unwrap();
        assert_eq!(pinned(&pins, host).len(), 2);
        ip("link set h2 netns elsewhere name h3\n");
        pins.forget(host).unwrap();
        assert_eq!(pins.list().unwrap().iter().map(|pin| pin.program).collect::<Vec<_>>(), [Program::Return]);
    });
}

#[test]
fn pins_of_another_namespace_are_neither_taken_for_stale_nor_replaced() {
    node(|dir| {
        devices();
        let host = index("h0");
        let pins = Pins::open(dir).unwrap();
        Idle::load(1).unwrap().guard(&pins, "h0", host).unwrap();
        assert!(!pins.are_elsewhere().unwrap());
        let before = pins.list().unwrap();
        // The same directory, seen from where another interface has that index.
        elsewhere(|| {
            ip(&format!("link add h0 index {host} type veth peer g0\nlink set h0 up\n"));
            assert!(pins.are_elsewhere().unwrap());
            let why = Idle::load(1).unwrap().guard(&pins, "h0", host).unwrap_err();
            assert!(matches!(why, AttachError::Pin(PinError::Elsewhere { .. })), "{why}");
            assert!(matches!(pins.forget(host), Err(PinError::Elsewhere { .. })));
            assert_eq!(pins.sweep(|_| true).unwrap(), Swept::default());
        });
        assert_eq!(pins.list().unwrap(), before);
        assert!(!pins.are_elsewhere().unwrap());
    });
}

/// Waits until so many wait for the lock on a file, as the kernel lists them (proc_locks(5)).
fn await_waiters(file: &File, number: usize) {
    let inode = format!(":{} ", file.metadata().unwrap().ino());
    for _ in 0..100_000 {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        if locks.lines().filter(|line| line.contains("-> FLOCK") && line.contains(&inode)).count() == number {
            return;
        }
        std::thread::yield_now();
    }
    panic!("nobody waits");
}

#[test]
fn between_the_first_look_and_the_removal_another_guard_may_come() {
    node(|dir| {
        devices();
        let host = index("h0");
        let pins = Pins::open(dir).unwrap();
        Idle::load(1).unwrap().guard(&pins, "h0", host).unwrap();
        ip(&format!("link del h0\nlink add h0 index {host} type veth peer g0\n"));
        // Everybody sees what is left of the old interface and wants it gone. We hold the lock, as another process does.
        let lock = File::create(dir.with_extension("change")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| pins.forget(host).unwrap());
            let swept = scope.spawn(|| pins.sweep(|_| true).unwrap());
            let held = scope.spawn(|| Idle::load(1).unwrap().guard(&pins, "h0", host).unwrap());
            await_waiters(&lock, 3);
            // Meanwhile the other process is done with it, and has put a guard of its own there.
            for word in ["steer", "shield"] {
                std::fs::remove_file(dir.join(format!("{host}-{word}"))).unwrap();
            }
            assert_eq!(Idle::load(1).unwrap().guard(&pins, "h0", host).unwrap(), Held::Attached);
            let fresh = pins.list().unwrap();
            flock(&lock, FlockOperation::Unlock).unwrap();
            assert_eq!(swept.join().unwrap(), Swept::default());
            assert_eq!(held.join().unwrap(), Held::Already);
            assert_eq!(pins.list().unwrap(), fresh);
        });
        assert_eq!(pins.list().unwrap().len(), 2);
    });
}

/// Whoever takes part works on pins of his own, as another process does.
struct Racer {
    pins: Pins,
    idle: Idle,
}

impl Racer {
    fn new(dir: &Path) -> Self {
        Self { pins: Pins::open(dir).unwrap(), idle: Idle::load(1).unwrap() }
    }

    /// Everything that a daemon and commands do with an interface, at any time. It may be gone.
    fn everything(&mut self, ifindex: u32) {
        let _ = self.idle.guard(&self.pins, "h0", ifindex);
        self.pins.forget(ifindex).unwrap();
        self.pins.sweep(|_| true).unwrap();
        self.pins.list().unwrap();
    }
}

#[test]
fn whoever_races_for_an_interface_nobody_takes_its_living_guard_away() {
    const RACERS: usize = 6;
    const ROUNDS: usize = 6;
    node(|dir| {
        devices();
        let host = index("h0");
        let pins = Pins::open(dir).unwrap();
        let churned = AtomicBool::new(false);
        let (settled, checked) = (Barrier::new(RACERS + 1), Barrier::new(RACERS + 1));
        std::thread::scope(|scope| {
            for _ in 0..RACERS {
                scope.spawn(|| {
                    let mut racer = Racer::new(dir);
                    for _ in 0..ROUNDS {
                        while !churned.load(Ordering::Relaxed) {
                            racer.everything(host);
                        }
                        racer.idle.guard(&racer.pins, "h0", host).unwrap();
                        settled.wait();
                        (0..3).for_each(|_| racer.everything(host));
                        checked.wait();
                        settled.wait();
                    }
                });
            }
            for round in 0..ROUNDS {
                for _ in 0..3 {
                    ip(&format!("link del h0\nlink add h0 index {host} type veth peer g0\n"));
                }
                churned.store(true, Ordering::Relaxed);
                settled.wait();
                let guarded = pinned(&pins, host);
                checked.wait();
                churned.store(round + 1 == ROUNDS, Ordering::Relaxed);
                let alive = guarded.iter().map(|pinned| (pinned.program, pinned.defunct)).collect::<Vec<_>>();
                assert_eq!(alive, [(Program::Steer, false), (Program::Shield, false)]);
                // Each racer has programs of its own: a guard that was taken away would have come back as another's.
                assert_eq!(pinned(&pins, host), guarded);
                settled.wait();
            }
        });
        assert_eq!(pins.list().unwrap().len(), 2);
    });
}
