//! What has a pin's name and is none.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use aya::Ebpf;
use aya::maps::PerCpuArray;
use aya::programs::{SchedClassifier, TcAttachType};
use pve_imds_bpf::testing::OBJECTS;
use pve_imds_bpf::{AttachError, Datapath, Epoch, Idle, PinError, Pins, Program, Standing, Swap, Swept};

use crate::support::{index, ip, node, pair, said};
use crate::{devices, load};

/// Puts something under this name.
type Put = fn(&mut Datapath, &Pins, &Path);

fn object() -> Ebpf {
    Ebpf::load(OBJECTS[0].1).unwrap()
}

const STRANGE: [(&str, Put); 9] = [
    // Its kind has the number that among links is XDP's.
    ("a map", |_, _, path| {
        let mut object = object();
        let map: PerCpuArray<_, u64> = object.map_mut("counters").unwrap().try_into().unwrap();
        map.pin(path).unwrap();
    }),
    ("a program", |_, _, path| {
        let mut object = object();
        let steer: &mut SchedClassifier = object.program_mut("steer").unwrap().try_into().unwrap();
        steer.load().unwrap();
        steer.pin(path).unwrap();
    }),
    ("a link of XDP", |datapath, pins, path| {
        datapath.attach_funnel(pins, "imds-b").unwrap();
        std::fs::rename(path.with_file_name("funnel"), path).unwrap();
    }),
    ("a link of the other side", |_, _, path| {
        let mut object = object();
        let steer: &mut SchedClassifier = object.program_mut("steer").unwrap().try_into().unwrap();
        steer.load().unwrap();
        let link = steer.attach("imds-b", TcAttachType::Egress).unwrap();
        let link = steer.take_link(link).unwrap();
        aya::programs::links::FdLink::try_from(link).unwrap().pin(path).unwrap();
    }),
    ("a directory", |_, _, path| std::fs::create_dir(path).unwrap()),
    ("a symbolic link to nowhere", |_, _, path| symlink("nowhere", path).unwrap()),
    ("a symbolic link to itself", |_, _, path| symlink(path, path).unwrap()),
    ("a symbolic link through a pin", |_, _, path| symlink("return/x", path).unwrap()),
    ("a symbolic link to a file", |_, _, path| symlink("/etc/hostname", path).unwrap()),
];

#[test]
fn nobody_else_may_put_anything_there_or_hold_a_lock() {
    node(|dir| {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(dir), 0o1777, "what the kernel makes of it");
        let pins = Pins::open(dir).unwrap();
        assert_eq!(mode(dir), 0o1755);
        let lock = dir.with_file_name("bpf.lock");
        std::fs::write(&lock, "").unwrap();
        std::fs::set_permissions(&lock, Permissions::from_mode(0o644)).unwrap();
        let _lock = pins.lock().unwrap();
        pins.remove_all().unwrap();
        for file in [lock, dir.with_file_name("bpf.change")] {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    });
}

#[test]
fn a_file_system_that_became_read_only_is_told_from_one_without_pins() {
    node(|dir| {
        let remount = |how: &str| said("mount", &["-o", &format!("remount,{how}"), dir.to_str().unwrap()]);
        remount("ro");
        let why = Pins::open(dir).unwrap_err();
        assert!(matches!(why, PinError::ReadOnly { .. }) && why.to_string().contains("remount,rw"), "{why}");
        remount("rw");
        Pins::open(dir).unwrap();
    });
}

#[test]
fn it_keeps_one_interface_open_and_nobody_from_anything() {
    node(|dir| {
        devices();
        pair("h1", "g1");
        let pins = Pins::open(dir).unwrap();
        let (host, other) = (index("h0"), index("h1"));
        let mut datapath = load(Epoch::default());
        datapath.attach_return(&pins, "imds-a").unwrap();
        for (what, put) in STRANGE {
            let path = dir.join(format!("{host}-steer"));
            put(&mut datapath, &pins, &path);
            let foreign = vec![path.clone()];
            assert_eq!(pins.foreign().unwrap(), foreign, "{what}");
            assert_eq!(pins.standing(Program::Steer, host).unwrap(), Standing::Foreign, "{what}");

            let why = datapath.guard(&pins, "h0", host).unwrap_err();
            assert!(matches!(&why, AttachError::Foreign { path: named, .. } if *named == path), "{what}: {why}");
            let command = if path.is_dir() { "rmdir" } else { "rm" };
            assert!(why.to_string().ends_with(&format!("`{command} {}`", path.display())), "{what}: {why}");
            assert!(matches!(Idle::load(1).unwrap().guard(&pins, "h0", host), Err(AttachError::Foreign { .. })));
            assert_eq!(datapath.guard(&pins, "h1", other).unwrap(), Swap::Attached, "{what}");
            pins.forget(host).unwrap();

            let listed: Vec<_> = pins.list().unwrap().into_iter().map(|pin| (pin.program, pin.ifindex)).collect();
            let expected = [(Program::Steer, other), (Program::Shield, other), (Program::Return, index("imds-a"))];
            assert_eq!(listed.len(), expected.len(), "{what}: {listed:?}");
            assert!(expected.iter().all(|pin| listed.contains(pin)), "{what}: {listed:?}");
            let swept = pins.sweep(|ifindex| ifindex != other).unwrap();
            let gone = vec![(Program::Steer, other), (Program::Shield, other)];
            assert_eq!(swept, Swept { gone, foreign }, "{what}");
            assert!(pins.census().unwrap().contains(&(Program::Steer, host)), "{what}: nobody has touched it");
            pins.remove_all().unwrap();
            assert!(path.symlink_metadata().is_ok(), "{what}: nobody has touched it");
            assert_eq!(pins.census().unwrap().len(), 1, "{what}");

            if path.is_dir() {
                std::fs::remove_dir(&path).unwrap()
            } else {
                std::fs::remove_file(&path).unwrap()
            }
            datapath.guard(&pins, "h0", host).unwrap();
            pins.remove_all().unwrap();
            datapath.attach_return(&pins, "imds-a").unwrap();
        }
    });
}

#[test]
fn our_own_devices_are_refused_by_path_where_their_pins_are_taken() {
    node(|dir| {
        devices();
        let pins = Pins::open(dir).unwrap();
        let mut datapath = load(Epoch::default());
        ip("link set imds-a down\n");
        for name in ["return", "funnel"] {
            std::fs::create_dir(dir.join(name)).unwrap();
            let attached = match name {
                "return" => datapath.attach_return(&pins, "imds-a"),
                _ => datapath.attach_funnel(&pins, "imds-b"),
            };
            assert!(attached.unwrap_err().to_string().ends_with(&format!("`rmdir {}/{name}`", dir.display())));
        }
        assert_eq!(pins.foreign().unwrap(), ["funnel", "return"].map(|name| dir.join(name)));
    });
}
