//! Who goes when there are too many.

use super::*;

#[test]
fn syns_alone_cost_nobody_a_connection_and_the_oldest_of_them_goes() {
    let mut bench = Bench::new(1);
    let mut streams: Vec<_> = ports(1000, bounds::OPEN).map(|port| bench.open(port).0).collect();
    bench.turn();
    for port in 0..1000 {
        bench.begin(10_000 + port, 1);
        assert!(bench.shared.lock().holdings().half_open <= bounds::HALF_OPEN);
    }
    assert_eq!(bench.connections(), bounds::OPEN + bounds::HALF_OPEN);
    assert_eq!(bench.ended(), vec![Ended::HalfOpenEvicted; 1000 - bounds::HALF_OPEN]);
    assert!(streams.iter_mut().all(|stream| read(stream, Waker::noop()).is_pending()));
    let spoken = bench.pass(6);
    assert_eq!(spoken.iter().filter(|answer| answer.rst).count(), bounds::HALF_OPEN);
    assert_eq!(bench.ended(), vec![Ended::HandshakeTime; bounds::HALF_OPEN]);
    assert_eq!(bench.connections(), bounds::OPEN);
}

#[test]
fn the_one_that_nobody_waits_for_longest_makes_room() {
    let mut bench = Bench::new(1);
    let second = smoltcp::time::Duration::from_secs(1);
    // Port 100: a request in progress, the oldest of all. 101: its head has begun. 102: idle, but younger than 103.
    // 104: nothing left but its goodbye. The others answer requests.
    let mut streams: Vec<_> = ports(100, bounds::OPEN).map(|port| bench.open(port)).collect();
    let mut busy = Vec::new();
    for (index, (stream, ours)) in streams.iter_mut().enumerate() {
        let port = 100 + u16::try_from(index).unwrap();
        match index {
            1 => {
                bench.say(Raw { port, sequence: 1000, ack: Some(*ours), payload: b"G", ..Raw::default() });
                assert!(matches!(read(stream, Waker::noop()), Poll::Ready(Ok(_))));
            }
            2 | 3 => {}
            4 => {
                shut(stream);
                bench.turn();
                bench.say(Raw { port, sequence: 1000, ack: Some(*ours + 1), ..Raw::default() });
            }
            _ => busy.push(stream.progress().begin()),
        }
    }
    bench.turn();
    // A request on 102 comes and goes: it is idle anew.
    bench.now += second;
    drop(streams[2].0.progress().begin());
    assert!(read(&mut streams[2].0, Waker::noop()).is_pending());
    bench.turn();
    let mut newcomers = Vec::new();
    for (newcomer, expected) in [(5000, 104), (5001, 103), (5002, 102), (5003, 101)] {
        let ours = bench.begin(newcomer, 999).wrapping_add(1);
        let arrival = bench.say(Raw { port: newcomer, sequence: 1000, ack: Some(ours), ..Raw::default() });
        let Arrival::Established(connection) = arrival else { panic!("{arrival:?}") };
        let stream = TapStream::new(bench.shared.clone(), connection);
        busy.push(stream.progress().begin());
        newcomers.push(stream);
        let gone: Vec<u16> = bench.turn().iter().filter(|answer| answer.rst).map(|answer| answer.port).collect();
        assert_eq!(gone, [expected], "a reset for the evicted");
        assert_eq!(bench.ended(), [Ended::Evicted]);
    }
    let arrival = bench.say(Raw { port: 5004, sequence: 999, syn: true, ..Raw::default() });
    assert!(matches!(arrival, Arrival::NoShare), "nobody is left who may go");
}

#[test]
fn with_requests_in_progress_everywhere_a_syn_is_dropped_and_a_finished_handshake_reset() {
    let mut bench = Bench::new(1);
    let mut streams: Vec<_> = ports(101, bounds::OPEN - 1).map(|port| bench.open(port).0).collect();
    // Two handshakes are under way when there is one place left.
    let numbers = [5000, 5001].map(|port| bench.begin(port, 999).wrapping_add(1));
    let mut busy: Vec<_> = streams.iter().map(|stream| stream.progress().begin()).collect();
    let arrival = bench.say(Raw { port: 5000, sequence: 1000, ack: Some(numbers[0]), ..Raw::default() });
    let Arrival::Established(connection) = arrival else { panic!("{arrival:?}") };
    streams.push(TapStream::new(bench.shared.clone(), connection));
    busy.push(streams[bounds::OPEN - 1].progress().begin());
    let arrival = bench.say(Raw { port: 5001, sequence: 1000, ack: Some(numbers[1]), ..Raw::default() });
    assert!(matches!(arrival, Arrival::NoShare));
    assert!(matches!(bench.turn()[..], [Spoken { port: 5001, rst: true, .. }]));
    let arrival = bench.say(Raw { port: 5002, sequence: 999, syn: true, ..Raw::default() });
    assert!(matches!(arrival, Arrival::NoShare));
    assert_eq!((bench.turn(), bench.ended()), (vec![], vec![]), "silence, and nobody had to go");
    busy.pop();
    bench.begin(5002, 999);
}

#[test]
fn when_all_guests_hold_too_much_a_guest_beyond_its_grant_pays_with_its_own() {
    let mut bench = Bench::new(1);
    let mut streams: Vec<_> = ports(100, bounds::GRANTED).map(|port| bench.open(port).0).collect();
    bench.turn();
    // Grants have taken the others beyond the bound.
    bench.pool.hold(bounds::BUFFERS + (10 << 20));
    streams.push(bench.open(5000).0);
    assert_eq!(bench.ended(), [Ended::Evicted]);
    assert_reset(&mut streams[0]);
    assert_eq!(bench.connections(), bounds::GRANTED);
    let busy: Vec<_> = streams.iter().map(|stream| stream.progress().begin()).collect();
    let arrival = bench.say(Raw { port: 5001, sequence: 999, syn: true, ..Raw::default() });
    assert!(matches!(arrival, Arrival::NoShare));
    // One fewer, and the grant holds however much the others have.
    drop((busy, streams.pop()));
    bench.turn();
    bench.pool.hold(bounds::BUFFERS);
    bench.open(5001);
    assert_eq!(bench.ended(), []);
}

#[test]
fn a_turn_is_so_many_segments_and_connections_share_them() {
    let mut bench = Bench::new(1);
    let mut streams: Vec<_> = ports(1000, 200).map(|port| bench.open(port).0).collect();
    bench.turn();
    let answer = vec![7; bounds::SEND_BUFFER];
    assert!(streams.iter_mut().all(|stream| matches!(write(stream, &answer), Poll::Ready(Ok(_)))));
    let mut sent = std::collections::HashMap::new();
    for _ in 0..25 {
        let departure = bench.shared.lock().depart(bench.now, TAG, &mut bench.wire);
        assert_eq!((departure, bench.wire.sent.len()), (Departure::More, bounds::SEGMENTS_PER_TURN));
        for frame in bench.wire.sent.drain(..) {
            *sent.entry(Spoken::parse(&frame[ETHERNET_HEADER..]).unwrap().port).or_insert(0u32) += 1;
        }
    }
    assert_eq!(sent.len(), streams.len());
    assert!(sent.values().all(|segments| (14..=18).contains(segments)), "{sent:?}");
}
