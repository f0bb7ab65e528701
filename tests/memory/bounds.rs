//! What a guest can cost: floods and slowness, each with its outcome, and who is served meanwhile.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::body::{Body, Frame};
use pve_imds_middleware::bounds::REQUEST_TIME;
use pve_imds_middleware::deadline::DeadlineLayer;
use pve_imds_transport::testing::{Raw, Spoken};
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceBuilder};

use attacker::{ATTACKER, Arena, far_end, served, tagged};

mod attacker;
mod hostile;

/// A guest that is not attacked.
const OTHER: u16 = 2;

/// Paced requests see no more of a neighbour's flood than this.
const SOON: Duration = Duration::from_millis(100);

#[tokio::test(start_paused = true)]
async fn ten_thousand_slow_connections_leave_room_for_the_next() {
    let arena = Arena::new();
    let (own, other) = (arena.guest(ATTACKER, tagged(ATTACKER)), arena.guest(OTHER, tagged(OTHER)));
    served(&own, ATTACKER, SOON).await;
    for batch in 0..200 {
        let peers: Vec<_> = (batch * 50..batch * 50 + 50).map(far_end).collect();
        let open = arena.open(&peers, b"GET / HTTP/1.1\r\nx: ").await;
        assert_eq!(open.len(), 50, "every one of them is let in");
        arena.listen().await;
        arena.assert_bounded();
        served(&other, OTHER, SOON).await;
    }
    assert_eq!(arena.holdings().connections, 256);
    served(&own, ATTACKER, SOON).await;
    sleep(Duration::from_secs(6)).await;
    assert_eq!(arena.holdings().connections, 0, "no head came whole");
}

#[tokio::test(start_paused = true)]
async fn three_hundred_idle_connections_make_room_for_one_that_asks() {
    let arena = Arena::new();
    let own = arena.guest(ATTACKER, tagged(ATTACKER));
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(own.connect().await.unwrap());
    }
    assert_eq!(arena.holdings().connections, 256);
    served(&own, ATTACKER, SOON).await;
    arena.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn endless_headers_are_431_and_the_end() {
    let arena = Arena::new();
    let own = arena.guest(ATTACKER, tagged(ATTACKER));
    for line in ["x: y\r\n".to_owned(), format!("x: {}\r\n", "y".repeat(3000))] {
        let mut stream = own.connect().await.unwrap();
        stream.send(b"GET / HTTP/1.1\r\n").await.unwrap();
        let mut sent = 0;
        while stream.send(line.as_bytes()).await.is_ok() {
            sent += line.len();
            tokio::task::yield_now().await;
        }
        // What the guest's own stack had room for, and what fits a head and our buffer.
        assert!(sent < (256 << 10) + (16 << 10) + (16 << 10), "{sent} bytes were taken");
        let answer = stream.read_to_end().await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 431 "), "{:?}", String::from_utf8_lossy(&answer));
    }
    sleep(Duration::from_secs(6)).await;
    assert_eq!(arena.holdings().connections, 0);
}

#[tokio::test(start_paused = true)]
async fn a_head_of_one_byte_each_four_seconds_has_five_seconds() {
    let arena = Arena::new();
    let own = arena.guest(ATTACKER, tagged(ATTACKER));
    let mut stream = own.connect().await.unwrap();
    sleep(Duration::from_secs(14)).await;
    let begun = Instant::now();
    stream.send(b"G").await.unwrap();
    sleep(Duration::from_secs(4)).await;
    stream.send(b"E").await.unwrap();
    assert_eq!(arena.holdings().connections, 1);
    assert_eq!(stream.read_to_end().await.unwrap(), b"");
    let lasted = begun.elapsed();
    assert!(lasted >= Duration::from_secs(5) && lasted < Duration::from_millis(5100), "{lasted:?}");
    assert_eq!(arena.holdings().connections, 0);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_ends_its_half_gets_its_answer_or_an_end_at_once() {
    let arena = Arena::new();
    let own = arena.guest(ATTACKER, tagged(ATTACKER));
    served(&own, ATTACKER, SOON).await;
    for (asked, begins) in [(&b"GET / HTTP/1.1\r\n\r\n"[..], &b"HTTP/1.1 200 "[..]), (b"", b"")] {
        let peer = far_end(u32::from(asked.is_empty()));
        let open = arena.open(&[peer], asked).await;
        let (ip, port, ours) = open[0];
        let sequence = 1000 + u32::try_from(asked.len()).unwrap();
        arena.say(Raw { ip, port, sequence, ack: Some(ours), fin: true, ..Raw::default() });
        let heard = arena.listen().await;
        let answer: Vec<u8> = heard.iter().flat_map(|spoken| spoken.payload.clone()).collect();
        assert!(answer.starts_with(begins) && answer.is_empty() == asked.is_empty(), "{answer:?}");
        let goodbye = heard.iter().find(|spoken| spoken.fin).unwrap();
        let ack = Some(goodbye.sequence.wrapping_add(u32::try_from(goodbye.payload.len()).unwrap() + 1));
        arena.say(Raw { ip, port, sequence: sequence + 1, ack, ..Raw::default() });
        arena.listen().await;
        assert_eq!(arena.holdings().connections, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn half_closed_peers_by_the_thousand_are_gone_after_their_goodbyes() {
    let arena = Arena::new();
    let (own, other) = (arena.guest(ATTACKER, tagged(ATTACKER)), arena.guest(OTHER, tagged(OTHER)));
    served(&own, ATTACKER, SOON).await;
    for batch in 0..60 {
        let peers: Vec<_> = (batch * 50..batch * 50 + 50).map(far_end).collect();
        // A third ends its half and never acknowledges that we end ours; a third never ends its half; a third asks nothing
        // and acknowledges nothing.
        let asked = [&b"GET / HTTP/1.0\r\n\r\n"[..], b"GET / HTTP/1.0\r\n\r\n", b""][batch as usize % 3];
        for (ip, port, ours) in arena.open(&peers, asked).await {
            let sequence = 1000 + u32::try_from(asked.len()).unwrap();
            arena.say(Raw { ip, port, sequence, ack: Some(ours), fin: batch % 3 != 1, ..Raw::default() });
        }
        for Spoken { ip, port, sequence, payload, ack, .. } in arena.listen().await {
            let taken = sequence.wrapping_add(u32::try_from(payload.len()).unwrap() + u32::from(batch % 3 == 1));
            if batch % 3 != 2 {
                arena.say(Raw { ip, port, sequence: ack, ack: Some(taken), ..Raw::default() });
            }
        }
        arena.assert_bounded();
        served(&other, OTHER, SOON).await;
        served(&own, ATTACKER, SOON).await;
    }
    sleep(Duration::from_secs(6)).await;
    assert_eq!(arena.holdings().connections, 0);
}

#[tokio::test(start_paused = true)]
async fn answers_that_nobody_takes_use_up_a_guests_own_share_and_only_that() {
    let arena = Arena::new();
    let (own, other) = (arena.guest(ATTACKER, tagged(ATTACKER)), arena.guest(OTHER, tagged(OTHER)));
    served(&own, ATTACKER, SOON).await;
    sleep(Duration::from_secs(6)).await;
    for batch in 0..6 {
        let peers: Vec<_> = (batch * 50..batch * 50 + 50).map(far_end).collect();
        arena.open(&peers, b"GET / HTTP/1.1\r\n\r\n").await;
        arena.listen().await;
    }
    assert_eq!(arena.holdings().connections, 256, "an answer under way is not given up for the next connection");
    served(&other, OTHER, SOON).await;
    let begun = Instant::now();
    served(&own, ATTACKER, Duration::from_secs(20)).await;
    assert!(begun.elapsed() > Duration::from_secs(14), "{:?}", begun.elapsed());
}

/// A service that reads the whole body, behind the product's deadline.
async fn patient(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut service = ServiceBuilder::new().layer(DeadlineLayer::new(REQUEST_TIME)).service(tower::service_fn(
        |request: Request<Incoming>| async {
            Ok(Response::new(Full::new(request.collect().await.map_or_else(|_| Bytes::new(), |body| body.to_bytes()))))
        },
    ));
    let answered = service.call(request).await;
    Ok(answered.unwrap_or_else(|_| Response::builder().status(503).body(Full::default()).unwrap()))
}

#[tokio::test(start_paused = true)]
async fn a_dripped_body_has_the_time_of_a_request() {
    let arena = Arena::new();
    let own = arena.guest(ATTACKER, patient);
    let mut stream = own.connect().await.unwrap();
    stream.send(b"POST / HTTP/1.1\r\ncontent-length: 1000\r\n\r\n").await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(29) {
        stream.send(b"x").await.unwrap();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(arena.holdings().connections, 1);
    }
    let answer = stream.read_to_end().await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 503 "), "{:?}", String::from_utf8_lossy(&answer));
    assert!(begun.elapsed() < Duration::from_secs(31), "{:?}", begun.elapsed());
    sleep(Duration::from_secs(6)).await;
    assert_eq!(arena.holdings().connections, 0);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_never_reads_is_given_up() {
    let arena = Arena::new();
    let own = arena.guest(ATTACKER, |_| async { Ok(Response::new(Full::new(Bytes::from(vec![7; 4 << 20])))) });
    let mut streams = Vec::new();
    for _ in 0..10 {
        let mut stream = own.connect().await.unwrap();
        stream.send(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        streams.push(stream);
    }
    sleep(Duration::from_secs(14)).await;
    assert_eq!(arena.holdings().connections, 10, "the window is shut, but probes are answered");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(arena.holdings().connections, 0);
}

/// Counts by name and `reason`.
#[derive(Default)]
struct Counts(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Counts {
    fn of(&self, reason: &str) -> u64 {
        self.0.lock().unwrap().get(reason).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

impl metrics::Recorder for Counts {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        let ended = key.name() == "pve_imds_transport_connections_ended_total";
        let Some(reason) = key.labels().find(|label| ended && label.key() == "reason") else {
            return metrics::Counter::noop();
        };
        let count = self.0.lock().unwrap().entry(reason.value().to_owned()).or_default().clone();
        metrics::Counter::from_arc(count)
    }

    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::noop()
    }
}

/// A body that breaks off.
struct Broken(bool);

impl Body for Broken {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        let first = std::mem::replace(&mut self.0, false);
        Poll::Ready(Some(if first { Ok(Frame::data(Bytes::from_static(b"half"))) } else { Err("gone") }))
    }
}

#[tokio::test(start_paused = true)]
async fn an_early_end_is_counted_once_and_by_its_word() {
    let counts = Counts::default();
    let _recording = metrics::set_default_local_recorder(&counts);
    let arena = Arena::new();
    let own = arena.guest(ATTACKER, |_| async { Ok(Response::new(Broken(true))) });
    let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(9000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(70));
    for (said, half_close, reason) in [
        ("nonsense\r\n\r\n", false, "bad_head"),
        (&long, false, "head_too_large"),
        (&many, false, "head_too_large"),
        ("GET / HT", true, "head_incomplete"),
        ("GET / HT", false, "head_time"),
        ("", false, "idle_time"),
        ("GET / HTTP/1.1\r\n\r\n", false, "answer_failed"),
    ] {
        let before = counts.of(reason);
        let mut stream = own.connect().await.unwrap();
        stream.send(said.as_bytes()).await.unwrap();
        if half_close {
            drop(stream);
        } else {
            stream.read_to_end().await.unwrap();
        }
        sleep(Duration::from_millis(1)).await;
        assert_eq!(counts.of(reason), before + 1, "{reason}: {said:.20}");
    }
    own.connect().await.unwrap().abort();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(counts.of("reset_by_peer"), 1);
    // Seven above had a word each, and the last one.
    let all: u64 = counts.0.lock().unwrap().values().map(|count| count.load(Ordering::Relaxed)).sum();
    assert_eq!(all, 8);
}
