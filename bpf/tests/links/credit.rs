//! What a guest may have on its way, counted against what really arrives.

use pve_imds_bpf::testing::{Frame, METADATA_IPV4 as METADATA};
use pve_imds_bpf::{Bucket, Credit, Datapath, Epoch, Generation, Pins, Reason, disable_tx_checksum};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::os::fd::AsFd;

use crate::support::{Wire, index, ip, node, pair};
use crate::tap::Tap;
use crate::{GUEST, assert_counted, attached, devices, load, slot};

fn segment() -> Frame {
    Frame::tcp(GUEST, METADATA, 80, 0)
}

/// Frames keep their order on one processor only.
fn one_processor() {
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first).unwrap();
}

/// So many frames arrive, and no more: the next is one that is sent after them. It costs one more.
fn assert_arrive(ours: &Wire, frames: i32, guest: &Wire) {
    const SOURCE_PORT: std::ops::Range<usize> = 34..36;
    for _ in 0..frames {
        assert_ne!(ours.receive().0[SOURCE_PORT], [0, 7]);
    }
    guest.send(&segment().with(SOURCE_PORT.start, &[0, 7]));
    assert_eq!(ours.receive().0[SOURCE_PORT], [0, 7]);
}

#[test]
fn so_many_pass_and_then_as_many_as_were_consumed() {
    node(|dir| {
        devices();
        one_processor();
        let (_pins, datapath) = attached(dir);
        let credit = datapath.credit().unwrap();
        let (guest, ours) = (Wire::open("g0"), Wire::open("imds-b"));
        let limit = Credit::SEGMENTS.cast_signed();

        (0..limit + 44).for_each(|_| guest.send(&segment()));
        assert_counted(&datapath, Reason::SteerCredit, 44);
        assert_eq!(credit.outstanding(slot()), limit);
        // The handle does not need the datapath, nor the thread that made it.
        let credit = std::thread::spawn(move || {
            credit.acknowledge(slot(), 10);
            credit
        });
        let credit = credit.join().unwrap();
        (0..20).for_each(|_| guest.send(&segment()));
        assert_counted(&datapath, Reason::SteerCredit, 54);
        drop(datapath);
        assert_eq!((credit.outstanding(slot()), credit.consumed(slot())), (limit, 10));
        credit.acknowledge(slot(), 1);
        assert_arrive(&ours, limit + 10, &guest);
    });
}

/// A frame of `data` bytes with that many words of TCP header.
fn large(words: u8, data: usize) -> Frame {
    let options = usize::from(words - 5) * 4;
    let frame = Frame::tcp(GUEST, METADATA, 80, options + data).with(46, &[words << 4]);
    // Options of one byte that mean nothing (RFC 9293).
    frame.with(54, &vec![1; options])
}

#[test]
fn a_large_frame_costs_what_it_is_cut_into() {
    node(|dir| {
        pair("imds-a", "imds-b");
        pair("h0", "g0");
        disable_tx_checksum("imds-a").unwrap();
        one_processor();
        let mut tap = Tap::open("t0");
        ip("link set t0 addrgenmode none arp off up\n");
        let pins = Pins::open(dir).unwrap();
        let mut datapath = load(Epoch::default());
        datapath.guard(&pins, "h0", index("h0")).unwrap();
        datapath.assign(index("t0"), slot(), Generation::new(9)).unwrap();
        datapath.guard(&pins, "t0", index("t0")).unwrap();
        let credit = datapath.credit().unwrap();
        let (ours, after) = (Wire::open("imds-b"), Wire::open("g0"));

        for words in [5, 8, 15] {
            let most = 65_535 - 20 - usize::from(words) * 4;
            for size in [500_u16, 536, 1400, 1448, 1460, 8900] {
                let one = usize::from(size);
                for data in [0, 1, one + 1, 2 * one - 1, 2 * one, 2 * one + 1, 7 * one, most - most % one, most] {
                    let frame = large(words, data);
                    for frame in [frame.clone(), frame.vlan(0xa02a)] {
                        // A guest asks for what needs no cutting, too; the kernel then sees an ordinary frame.
                        tap.send(&frame, if data > one { size } else { 0 });
                        let cost = credit.outstanding(slot());
                        let what = format!("{words} words, {data} bytes in {size}");
                        assert_eq!(cost, i32::try_from(data.div_ceil(one).max(1)).unwrap(), "{what}");
                        assert_arrive(&ours, cost, &after);
                        credit.acknowledge(slot(), cost.cast_unsigned() + 1);
                        assert_eq!(credit.outstanding(slot()), 0, "{what}");
                    }
                }
            }
        }
        assert_counted(&datapath, Reason::SteerCredit, 0);

        // In as many pieces as nobody needs: more than there is credit, whatever is on its way.
        tap.send(&large(5, 257), 1);
        assert_counted(&datapath, Reason::SteerCredit, 1);
        tap.send(&large(5, 256), 1);
        assert_eq!(credit.outstanding(slot()), Credit::SEGMENTS.cast_signed());
        credit.acknowledge(slot(), 1);
        assert_arrive(&ours, Credit::SEGMENTS.cast_signed(), &after);
        assert_counted(&datapath, Reason::SteerCredit, 1);
    });
}

#[test]
fn what_the_ring_has_no_room_for_is_shed_and_given_back() {
    node(|dir| {
        devices();
        let pins = Pins::open(dir).unwrap();
        let mut datapath = Datapath::load(index("imds-a"), Epoch::default(), 64 + 4, Bucket::default()).unwrap();
        datapath.assign(index("h0"), slot(), Generation::new(9)).unwrap();
        // Not bound: what it is sent is lost, and nobody takes it out of a ring.
        let xdp = socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
        datapath.set_socket(xdp.as_fd()).unwrap();
        let mut credit = datapath.credit().unwrap();
        datapath.guard(&pins, "h0", index("h0")).unwrap();
        datapath.attach_funnel(&pins, "imds-b").unwrap();
        let guest = Wire::open("g0");

        (0..10).for_each(|_| guest.send(&segment()));
        assert_counted(&datapath, Reason::FunnelShed, 6);
        assert_eq!((credit.outstanding(slot()), credit.chunks_outstanding()), (10, 4));
        assert_eq!((credit.reclaim_lost(), credit.reclaim_lost()), (6, 0));
        assert_eq!((credit.outstanding(slot()), credit.consumed(slot())), (4, 6));
        assert_eq!(datapath.credit().unwrap().reclaim_lost(), 0, "that has been given back");

        credit.release_chunks(3);
        (0..5).for_each(|_| guest.send(&segment()));
        assert_counted(&datapath, Reason::FunnelShed, 8);
        assert_counted(&datapath, Reason::FunnelRedirected, 7);
        assert_eq!(credit.reclaim_lost(), 2);
    });
}
