//! On our own two devices: `return`, which sends answers back, and `funnel`, which hands questions over.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;

use pve_imds_bpf::testing::{Beside, Frame, GUEST_MAC, METADATA_IPV4 as METADATA};
use pve_imds_bpf::{Epoch, Generation, METADATA_MAC, Program, Reason, Slot, Tag};
use rustix::net::{AddressFamily, SocketType, socket};

use crate::{GUEST, GUEST6, INTERFACE, OTHER6, PASSPORT, TCP, hold, served, slot, tag};

#[test]
fn return_sends_an_answer_to_the_interface_it_is_for_and_nothing_else_anywhere() {
    let datapath = served();
    let answer = Frame::tcp(METADATA, GUEST, 40_000, 10);
    let from = |tag: Tag| answer.clone().with(6, &tag.encode());
    hold(
        Program::Return,
        &datapath,
        Beside { ifindex: INTERFACE, ..Beside::default() },
        vec![
            ("an answer", from(tag()), Some(Reason::ReturnRedirected)),
            ("an answer to a VLAN", from(Tag { vlan: Some(0xa02a), ..tag() }), Some(Reason::ReturnRedirected)),
            ("the last epoch", from(Tag { epoch: Epoch::new(18).unwrap(), ..tag() }), Some(Reason::ReturnEpoch)),
            ("the next epoch", from(Tag { epoch: Epoch::new(20).unwrap(), ..tag() }), Some(Reason::ReturnEpoch)),
            ("the slot's last tenant", from(Tag { generation: Generation::new(6), ..tag() }), Some(Reason::ReturnSlot)),
            (
                "a free slot",
                from(Tag { slot: Slot::new(0).unwrap(), generation: Generation::new(0), ..tag() }),
                Some(Reason::ReturnSlot),
            ),
            ("a slot beyond the last", from(tag()).with(10, &[0xff, 0xff]), Some(Reason::ReturnSlot)),
            ("a guest's address", answer.clone().with(6, &GUEST_MAC), Some(Reason::ReturnEpoch)),
            ("a vendor's address", answer.clone().with(6, &[0, 0x1b, 0x21, 7, 0x0a, 0x0b]), Some(Reason::ReturnTag)),
            ("a group address", answer.clone().with(6, &[0x9b, 0, 0, 7, 0x0a, 0x0b]), Some(Reason::ReturnTag)),
            (
                "the host's IPv6",
                Frame::ipv6(GUEST6, OTHER6, TCP, &[]).with(6, &METADATA_MAC),
                Some(Reason::ReturnEpoch),
            ),
        ],
    );
    let judged = datapath.judge(Program::Return, &from(tag()), Beside::default());
    assert_eq!(judged.frame, answer.with(6, &METADATA_MAC));
    assert_eq!(judged.mark, PASSPORT);
}

#[test]
fn return_forgets_an_interface_with_its_slot() {
    let mut datapath = served();
    datapath.release(INTERFACE, slot()).unwrap();
    let late = Frame::tcp(METADATA, GUEST, 40_000, 10).with(6, &tag().encode());
    hold(Program::Return, &datapath, Beside::default(), vec![("late", late.clone(), Some(Reason::ReturnSlot))]);
    datapath.assign(INTERFACE, slot(), Generation::new(8)).unwrap();
    hold(Program::Return, &datapath, Beside::default(), vec![("late", late, Some(Reason::ReturnSlot))]);
}

#[test]
fn funnel_passes_frames_of_its_own_epoch_to_the_socket_there_is() {
    let mut datapath = served();
    let steered = Frame::tcp(GUEST, METADATA, 80, 10).with(0, &tag().encode());
    let older = Tag { epoch: Epoch::new(18).unwrap(), ..tag() };
    let refused = || {
        vec![
            ("another epoch", steered.clone().with(0, &older.encode()), Some(Reason::FunnelEpoch)),
            ("no tag", Frame::tcp(GUEST, METADATA, 80, 10).with(0, &[0xff; 6]), Some(Reason::FunnelTag)),
        ]
    };
    hold(Program::Funnel, &datapath, Beside::default(), refused());
    hold(
        Program::Funnel,
        &datapath,
        Beside::default(),
        vec![("no socket", steered.clone(), Some(Reason::FunnelEmpty))],
    );

    let xdp = socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert!(datapath.set_socket(other.as_fd()).is_err());
    datapath.set_socket(xdp.as_fd()).unwrap();
    hold(Program::Funnel, &datapath, Beside::default(), refused());
    hold(
        Program::Funnel,
        &datapath,
        Beside::default(),
        vec![("ours", steered.clone(), Some(Reason::FunnelRedirected))],
    );

    drop(xdp);
    hold(Program::Funnel, &datapath, Beside::default(), vec![("the socket died", steered, Some(Reason::FunnelEmpty))]);
}
