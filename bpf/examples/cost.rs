//! What the guard costs an ordinary packet, nanoseconds for one run of each program over an empty one; what it costs a
//! frame for the metadata address; and what it weighs.
//!
//! `cargo run --release -p pve-imds-bpf --example cost` (root). Rounds are interleaved and the figures are medians: on
//! a busy machine single rounds differ by a factor of two.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use aya::programs::SchedClassifier;
use aya::{Ebpf, TestRun, TestRunOptions};
use pve_imds_bpf::testing::{Frame, METADATA_IPV4, YARDSTICK};
use pve_imds_bpf::{Bucket, Datapath, Epoch, Generation, Idle, Program, Slot};

const ROUNDS: usize = 9;
const REPEAT: u32 = 1_000_000;

fn main() {
    let a = Ipv4Addr::new(10, 0, 0, 7);
    let b = Ipv4Addr::new(10, 0, 0, 1);
    let six = |last| Ipv6Addr::new(0xfd12, 0, 0, 0, 0, 0, 0, last);
    let frames = [
        ("TCP 1514", Frame::tcp(a, b, 443, 1460)),
        ("IPv6 TCP", Frame::ipv6(six(7), six(1), 6, &[0; 20])),
        ("IPv6 ping", Frame::ipv6(six(7), six(1), 58, &[128, 0, 0, 0, 0, 1, 0, 1])),
        ("ARP", Frame::arp(1, a, b)),
    ];
    let mut datapath = Datapath::load(4_000_000, Epoch::default(), 2048, Bucket::default()).unwrap();
    let mut object = Ebpf::load(YARDSTICK).unwrap();
    let empty: &mut SchedClassifier = object.program_mut("empty").unwrap().try_into().unwrap();
    empty.load().unwrap();

    println!("ns per packet, medians of {ROUNDS} interleaved rounds of {REPEAT}");
    println!("{:<10} {:>7} {:>7} {:>7}   over empty: steer, shield", "frame", "empty", "steer", "shield");
    for (what, frame) in frames {
        let mut rounds = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            let options = TestRunOptions { data_in: Some(&frame.0), repeat: REPEAT, ..Default::default() };
            rounds[0].push(empty.test_run(options).unwrap().duration.as_nanos());
            rounds[1].push(datapath.cost(Program::Steer, &frame, REPEAT));
            rounds[2].push(datapath.cost(Program::Shield, &frame, REPEAT));
        }
        let [empty, steer, shield] = rounds.map(|mut round| {
            round.sort_unstable();
            i64::try_from(round[ROUNDS / 2]).unwrap()
        });
        println!("{what:<10} {empty:>7} {steer:>7} {shield:>7}   {:+}, {:+}", steer - empty, shield - empty);
    }

    println!("\n{:<32} {:>7}   steer alone, for us", "frame", "ns");
    let slot = Slot::new(7).unwrap();
    // The loopback device is what a test run's frames are on.
    datapath.assign(1, slot, Generation::new(1)).unwrap();
    let credit = datapath.credit().unwrap();
    let segment = Frame::tcp(a, METADATA_IPV4, 80, 0);
    for (what, frame, headroom) in [
        ("segment, steered", segment.clone(), 1 << 30),
        ("segment, no credit left", segment.clone(), 0),
        ("SYN, bucket empty", segment.with(47, &[2]), 1 << 30),
        ("UDP, dropped", Frame::ipv4(a, METADATA_IPV4, 17, &[0; 8]), 0),
    ] {
        let mut round = [0; ROUNDS].map(|_| {
            let outstanding = credit.outstanding(slot);
            credit.acknowledge(slot, (outstanding + headroom).cast_unsigned());
            datapath.cost(Program::Steer, &frame, REPEAT)
        });
        round.sort_unstable();
        println!("{what:<32} {:>7}", round[ROUNDS / 2]);
    }

    let before = held();
    let idle = Idle::load(1).unwrap();
    let weight: BTreeMap<_, _> = held().into_iter().filter(|(object, _)| !before.contains_key(object)).collect();
    println!("\nbytes of kernel memory of an idle guard: {} ({weight:?})", weight.values().sum::<u64>());
    drop(idle);
}

/// Kernel memory of every program and map that this process holds, by kind and number (proc_pid_fdinfo(5)).
fn held() -> BTreeMap<String, u64> {
    let files = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    files
        .filter_map(|file| {
            let text = std::fs::read_to_string(file.ok()?.path()).ok()?;
            let line = |word: &str| text.lines().find(|line| line.starts_with(word));
            let object = line("map_id:").or_else(|| line("prog_id:"))?;
            Some((object.replace([':', '\t'], " "), line("memlock:")?.split('\t').nth(1)?.parse().ok()?))
        })
        .collect()
}
