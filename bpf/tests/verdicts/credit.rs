//! The prices, judged one frame after the other: what a bucket and a ring let through.

use std::num::NonZeroU32;
use std::os::fd::AsFd;

use pve_imds_bpf::testing::{Beside, Frame, METADATA_IPV4 as METADATA, Verdict};
use pve_imds_bpf::{Bucket, Datapath, Generation, Program, Reason, Slot};
use rustix::net::{AddressFamily, SocketType, socket};

use crate::{DEVICE_A, GUEST, INTERFACE, RING, epoch, served, slot, tag};

fn count(datapath: &Datapath, reason: Reason) -> u64 {
    datapath.counters().into_iter().find(|(counted, _)| *counted == reason).unwrap().1
}

/// A segment that opens a connection, with flags beside or without.
fn syn(flags: u8) -> Frame {
    Frame::tcp(GUEST, METADATA, 80, 0).with(47, &[0x02 | flags])
}

#[test]
fn questions_that_cost_much_have_a_rate_of_their_own() {
    const BURST: u64 = 256;
    const RUNS: u32 = 400;
    for question in [syn(0), syn(0x10), syn(0xfd), Frame::arp(1, GUEST, METADATA)] {
        let mut datapath = served();
        let credit = datapath.credit().unwrap();
        credit.acknowledge(slot(), 1 << 20);
        let nanoseconds = datapath.cost(Program::Steer, &question, RUNS) * u128::from(RUNS);
        let (passed, refused) = (count(&datapath, Reason::SteerRedirected), count(&datapath, Reason::SteerBucket));
        // 2,000 a second come back meanwhile; the measure of the time is a whole number a run, hence one more for each.
        let back = u64::try_from((nanoseconds + u128::from(RUNS)) / 500_000).unwrap() + 1;
        assert_eq!(passed + refused, u64::from(RUNS));
        assert!((BURST..=BURST + back).contains(&passed), "{passed} passed, {back} came back");

        // What is no question does not ask the bucket.
        let _ = datapath.cost(Program::Steer, &Frame::tcp(GUEST, METADATA, 80, 9), RUNS);
        assert_eq!(count(&datapath, Reason::SteerRedirected), passed + u64::from(RUNS));

        // Nor does anybody else.
        let other = Slot::new(slot().number() + 1).unwrap();
        datapath.assign(INTERFACE, other, Generation::new(7)).unwrap();
        let judged = datapath.judge(Program::Steer, &question, Beside { ifindex: INTERFACE, ..Beside::default() });
        assert_eq!((judged.verdict, judged.reasons), (Verdict::Redirect, vec![Reason::SteerRedirected]));
        assert_eq!((credit.outstanding(other), credit.consumed(other)), (1, 0));
    }
}

#[test]
fn a_bucket_is_as_large_as_it_was_asked_for() {
    let few = Bucket { per_second: NonZeroU32::new(1).unwrap(), burst: NonZeroU32::new(3).unwrap() };
    let many = Bucket { per_second: NonZeroU32::MAX, burst: NonZeroU32::MAX };
    for (bucket, passed) in [(few, 3), (many, 9)] {
        let mut datapath = Datapath::load(DEVICE_A, epoch(), RING, bucket).unwrap();
        datapath.assign(INTERFACE, slot(), Generation::new(7)).unwrap();
        let _ = datapath.cost(Program::Steer, &syn(0), 9);
        assert_eq!(count(&datapath, Reason::SteerRedirected), passed, "{bucket:?}");
    }
}

#[test]
fn counts_may_wrap() {
    let datapath = served();
    let credit = datapath.credit().unwrap();
    credit.acknowledge(slot(), 0_u32.wrapping_sub(100));
    assert_eq!(credit.outstanding(slot()), 100);
    let _ = datapath.cost(Program::Steer, &Frame::tcp(GUEST, METADATA, 80, 0), 300);
    assert_eq!(count(&datapath, Reason::SteerRedirected), 156);
    assert_eq!(credit.outstanding(slot()), 256);
    credit.acknowledge(slot(), 300);
    assert_eq!(credit.outstanding(slot()), -44);
    let _ = datapath.cost(Program::Steer, &Frame::tcp(GUEST, METADATA, 80, 0), 400);
    assert_eq!(count(&datapath, Reason::SteerRedirected), 456);
}

#[test]
fn a_frame_fills_as_much_of_the_ring_as_it_has_chunks() {
    let mut datapath = Datapath::load(DEVICE_A, epoch(), 64 + 9, Bucket::default()).unwrap();
    let mut credit = datapath.credit().unwrap();
    let xdp = socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
    let of = |size: usize| {
        let mut frame = Frame::tcp(GUEST, METADATA, 80, 0).with(0, &tag().encode());
        frame.0.resize(size, 0);
        frame
    };
    let judge = |datapath: &Datapath, size| {
        let judged = datapath.judge(Program::Funnel, &of(size), Beside::default());
        judged.reasons[0]
    };
    assert_eq!(judge(&datapath, 60), Reason::FunnelEmpty);
    assert_eq!(credit.chunks_outstanding(), 0, "what has no socket fills no ring");

    datapath.set_socket(xdp.as_fd()).unwrap();
    for (size, reason, outstanding) in [
        (60, Reason::FunnelRedirected, 1),
        (1792, Reason::FunnelRedirected, 2),
        (1793, Reason::FunnelRedirected, 4),
        (9014, Reason::FunnelShed, 4),
        (8960, Reason::FunnelRedirected, 9),
        (60, Reason::FunnelShed, 9),
    ] {
        assert_eq!((judge(&datapath, size), credit.chunks_outstanding()), (reason, outstanding), "{size}");
    }
    credit.release_chunks(1);
    assert_eq!((judge(&datapath, 60), judge(&datapath, 60)), (Reason::FunnelRedirected, Reason::FunnelShed));
    assert_eq!((credit.reclaim_lost(), credit.outstanding(slot())), (3, -3));
    // More given back than there was is room, not the end of it.
    credit.release_chunks(20);
    assert_eq!(judge(&datapath, 60), Reason::FunnelRedirected);

    let beyond = of(60).with(4, &[0x10, 0]);
    let judged = datapath.judge(Program::Funnel, &beyond, Beside::default());
    assert_eq!(judged.reasons, [Reason::FunnelTag], "a slot beyond the last");
    let unset = Datapath::load(DEVICE_A, epoch(), 0, Bucket::default()).unwrap();
    assert_eq!(judge(&unset, 60), Reason::FunnelShed, "a ring of nothing");
}
