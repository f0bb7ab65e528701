//! Frames, TCP and HTTP: what the transport promises whatever the service is.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use pve_imds_transport::bpf::Tag;
use pve_imds_transport::testing::{Impairment, Nic};

use crate::support::{EPOCH, World, ask, client, mac, name_tag, seat};

#[tokio::test(start_paused = true)]
async fn a_guest_gets_its_answer() {
    let world = World::new(Impairment::default());
    let nic = world.guest(3, |request| name_tag(3, request));
    let mut client = client(&nic).await;
    let (status, body) = ask(&mut client, "/", Bytes::new()).await;
    assert_eq!((status, body), (200, Bytes::from_static(b"3 [bc, 24, 11, 00, 00, 03] Ok(0)")));
}

#[tokio::test(start_paused = true)]
async fn guests_with_the_same_address_get_their_own_answers() {
    let world = World::new(Impairment { delay: Duration::from_micros(50), ..Impairment::default() });
    let guests: Vec<_> = (0..20).map(|n| (n, world.guest(n, move |request| name_tag(n, request)))).collect();
    let tasks: Vec<_> = guests
        .into_iter()
        .map(|(number, nic)| {
            tokio::spawn(async move {
                for _ in 0..5 {
                    let mut client = client(&nic).await;
                    for size in [0, 5000] {
                        let (_, body) = ask(&mut client, "/", vec![0; size].into()).await;
                        assert!(body.starts_with(format!("{number} ").as_bytes()), "{number} got {body:?}");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(world.switch.astray(), 0);
}

#[tokio::test(start_paused = true)]
async fn large_bodies_cross_a_lossy_link_whole_both_ways() {
    let world = World::new(Impairment {
        delay: Duration::from_millis(2),
        loss: 20,
        duplicate: 20,
        seed: 42,
        ..Impairment::default()
    });
    let big: Bytes = (0..1_000_000u32).map(|n| (n % 251) as u8).collect::<Vec<_>>().into();
    let answer = big.clone();
    let nic = world.guest(1, move |request| {
        let answer = answer.clone();
        async move {
            let received = http_body_util::BodyExt::collect(request.into_body()).await.unwrap().to_bytes();
            assert_eq!(received, answer);
            Ok(Response::new(Full::new(answer)))
        }
    });
    let mut client = client(&nic).await;
    let (_, body) = ask(&mut client, "/", big.clone()).await;
    assert_eq!(body, big);
    assert!(world.switch.lost() > 10, "the link was lossy");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_request_is_told_so() {
    let world = World::new(Impairment::default());
    let nic = world.guest(1, |request| name_tag(1, request));
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(9000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(70));
    for (request, answer) in [
        ("nonsense\r\n\r\n", "HTTP/1.1 400 "),
        (long.as_str(), "HTTP/1.1 4"),
        (many.as_str(), "HTTP/1.1 431 "),
        ("GET / HTTP/1.1\r\nbad header\r\n\r\n", "HTTP/1.1 400 "),
        ("GET / HTTP/1.0\r\n\r\n", "HTTP/1.0 200 "),
    ] {
        let got = nic.connect().await.unwrap().exchange(request.as_bytes()).await.unwrap();
        let got = String::from_utf8_lossy(&got).into_owned();
        assert!(got.starts_with(answer), "{:.40}: {got:?}", request);
    }
}

#[tokio::test(start_paused = true)]
async fn a_narrow_wire_is_back_pressure_and_never_a_loss() {
    let world = World::new(Impairment { room: 1, delay: Duration::from_millis(10), ..Impairment::default() });
    let big: Bytes = vec![7; 1_000_000].into();
    let answer = big.clone();
    let nic = world.guest(1, move |_| {
        let answer = answer.clone();
        async move { Ok(Response::new(Full::new(answer))) }
    });
    let mut client = client(&nic).await;
    let before = tokio::time::Instant::now();
    let (_, body) = ask(&mut client, "/", Bytes::new()).await;
    assert_eq!(body, big);
    // A window is 45 segments: one a millisecond and a round trip of 20 ms make 16 windows one second. Sending only
    // when the guest acknowledges would take 14.
    assert!(before.elapsed() < Duration::from_secs(3), "{:?}", before.elapsed());
}

/// A SYN from 169.254.1.2:1024 whose checksums are wrong, as the kernel programs would hand it over.
fn broken_syn() -> Vec<u8> {
    let tag = Tag { epoch: EPOCH, vlan: None, generation: seat(1, 0).generation, slot: seat(1, 0).slot };
    let ip = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 169, 254, 1, 2, 169, 254, 169, 254];
    let tcp = [4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0xde, 0xad, 0, 0];
    [&tag.encode()[..], &mac(1), &[0x08, 0x00], &ip, &tcp].concat()
}

#[tokio::test(start_paused = true)]
async fn a_broken_syn_takes_nothing_from_the_next_one() {
    // The delay lets the broken ones and the next one arrive in one turn of the driver.
    let world = World::new(Impairment { delay: Duration::from_millis(1), ..Impairment::default() });
    let nic = world.guest(1, |request| name_tag(1, request));
    ask(&mut client(&nic).await, "/", Bytes::new()).await;
    for _ in 0..10 {
        (0..5).for_each(|_| world.switch.inject(&broken_syn()));
        let served = tokio::time::timeout(Duration::from_millis(500), async {
            ask(&mut client(&nic).await, "/", Bytes::new()).await;
        });
        served.await.expect("served at once");
    }
}

/// A guest that asks for a large answer and begins to read it only after `pause`; what it got.
async fn slow_reader(nic: &Nic, pause: Duration) -> usize {
    let mut stream = nic.connect().await.unwrap();
    stream.send(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await.unwrap();
    tokio::time::sleep(pause).await;
    stream.read_to_end().await.unwrap().len()
}

/// More than a guest's window and less than that and our send buffer: all of it is ours to deliver when hyper is done.
const LARGE: usize = 300_000;

#[tokio::test(start_paused = true)]
async fn an_answer_arrives_whole_however_late_its_guest_reads() {
    for pause in [1, 8, 20] {
        let world = World::new(Impairment::default());
        let nic = world.guest(1, |_| async { Ok(Response::new(Full::new(vec![7; LARGE].into()))) });
        let got = slow_reader(&nic, Duration::from_secs(pause)).await;
        assert!(got > LARGE, "after {pause} s: {got}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_delivers_what_was_answered() {
    let world = World::new(Impairment::default());
    let nic = world.guest(1, |_| async { Ok(Response::new(Full::new(vec![7; LARGE].into()))) });
    let reading = tokio::spawn(async move { slow_reader(&nic, Duration::from_secs(1)).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    drop(world.guests);
    assert!(reading.await.unwrap() > LARGE);
}

#[tokio::test(start_paused = true)]
async fn a_vanished_guest_ends_its_connections_and_its_successor_is_another() {
    let world = World::new(Impairment::default());
    let nic = world.guest(1, |request| name_tag(1, request));
    let mut first = client(&nic).await;
    ask(&mut first, "/", Bytes::new()).await;
    world.guests.remove(seat(1, 0));
    let failed = tokio::time::timeout(Duration::from_secs(120), async {
        let request = http::Request::get("/").body(Full::default()).unwrap();
        first.send_request(request).await.is_err()
    });
    assert!(failed.await.unwrap(), "no answer after the interface vanished");
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed_in_time() {
    let world = World::new(Impairment::default());
    let nic = world.guest(1, |request| name_tag(1, request));
    let before = tokio::time::Instant::now();
    let stream = nic.connect().await.unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake::<_, Full<Bytes>>(stream).await.unwrap();
    connection.await.ok();
    drop(sender);
    let waited = before.elapsed();
    assert!(waited >= Duration::from_secs(14) && waited < Duration::from_secs(20), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_the_answer_under_way_finish() {
    let world = World::new(Impairment::default());
    let nic = world.guest(1, |request| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        name_tag(1, request).await
    });
    let mut client = client(&nic).await;
    let asking = tokio::spawn(async move { ask(&mut client, "/", Bytes::new()).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.drain.send(true).unwrap();
    assert_eq!(asking.await.unwrap().0, 200);
    tokio::time::timeout(Duration::from_secs(5), world.drain.closed_by_all()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_frames_the_kernel_lost_gets_its_credit_back() {
    let world = World::new(Impairment::default());
    let nic = world.guest(1, |request| name_tag(1, request));
    let other = world.guest(2, |request| name_tag(2, request));
    world.switch.lose(1000);
    (0..300).for_each(|_| world.switch.inject(&broken_syn()));
    world.switch.lose(0);
    assert!(world.switch.refused() > 0, "its credit is used up");
    ask(&mut client(&other).await, "/", Bytes::new()).await;
    let begun = tokio::time::Instant::now();
    let (status, _) = ask(&mut client(&nic).await, "/", Bytes::new()).await;
    assert_eq!(status, 200);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_read_is_given_back_whatever_it_was() {
    let world = World::new(Impairment::default());
    let nic = world.guest(1, |request| name_tag(1, request));
    for _ in 0..20 {
        (0..250).for_each(|_| world.switch.inject(&broken_syn()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(world.switch.refused(), 0);
    ask(&mut client(&nic).await, "/", Bytes::new()).await;
}

trait ClosedByAll {
    async fn closed_by_all(&self);
}

impl ClosedByAll for tokio::sync::watch::Sender<bool> {
    /// Only the guest's server still listens: its connections are gone.
    async fn closed_by_all(&self) {
        while self.receiver_count() > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
