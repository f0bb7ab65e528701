//! What the guard costs an ordinary packet: nanoseconds for one run of each program over an empty one.
//!
//! `cargo run --release -p pve-imds-bpf --example cost` (root). Rounds are interleaved and the figures are medians: on
//! a busy machine single rounds differ by a factor of two.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, Ipv6Addr};

use aya::programs::SchedClassifier;
use aya::{Ebpf, TestRun, TestRunOptions};
use pve_imds_bpf::testing::{Frame, YARDSTICK};
use pve_imds_bpf::{Datapath, Epoch, Program};

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
    let datapath = Datapath::load(4_000_000, Epoch::default(), 2048).unwrap();
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
}
