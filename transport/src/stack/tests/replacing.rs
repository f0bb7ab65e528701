//! A SYN where there is a connection already, and the numbers that connections begin with.

use super::*;

#[test]
fn a_new_syn_replaces_a_connection_whatever_its_stage() {
    let stages: &[(&str, Bring, Option<Ended>)] = &[
        ("open", |_, _, _| (), Some(Ended::Replaced)),
        (
            "with a head begun",
            |bench, stream, ours| {
                bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours), payload: b"GET ", ..Raw::default() });
                assert!(matches!(read(stream, Waker::noop()), Poll::Ready(Ok(_))));
            },
            Some(Ended::Replaced),
        ),
        (
            "with an answer under way",
            |bench, stream, _| {
                assert!(matches!(write(stream, b"answer"), Poll::Ready(Ok(6))));
                assert_eq!(bench.turn().len(), 1);
            },
            Some(Ended::Replaced),
        ),
        (
            "with an answer that is not sent yet",
            |_, stream, _| assert!(matches!(write(stream, b"answer"), Poll::Ready(Ok(6)))),
            Some(Ended::Replaced),
        ),
        (
            "reset in the same turn",
            |bench, _, _| drop(bench.say(Raw { port: 7, sequence: 1000, rst: true, ..Raw::default() })),
            Some(Ended::ResetByPeer),
        ),
        (
            "FIN-WAIT-1",
            |bench, stream, _| {
                shut(stream);
                assert!(bench.turn()[0].fin);
            },
            None,
        ),
        (
            "FIN-WAIT-2",
            |bench, stream, ours| {
                shut(stream);
                bench.turn();
                bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours + 1), ..Raw::default() });
                bench.turn();
            },
            None,
        ),
        (
            "CLOSING",
            |bench, stream, ours| {
                shut(stream);
                bench.turn();
                bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours), fin: true, ..Raw::default() });
            },
            None,
        ),
        (
            "CLOSE-WAIT",
            |bench, _, ours| {
                bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours), fin: true, ..Raw::default() });
            },
            Some(Ended::Replaced),
        ),
        (
            "LAST-ACK",
            |bench, stream, ours| {
                bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours), fin: true, ..Raw::default() });
                shut(stream);
                bench.turn();
            },
            None,
        ),
        (
            "TIME-WAIT",
            |bench, stream, ours| {
                shut(stream);
                bench.turn();
                bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours + 1), fin: true, ..Raw::default() });
            },
            None,
        ),
    ];
    for (stage, bring, ended) in stages {
        let mut bench = Bench::new(1);
        let (mut old, ours) = bench.open(7);
        bring(&mut bench, &mut old, ours);
        bench.begin(7, 5_000_000);
        assert_reset(&mut old);
        drop(old);
        assert_eq!(bench.turn(), [], "{stage}: no word of the old one reaches the new one");
        assert_eq!(bench.ended(), Vec::from_iter(*ended), "{stage}");
        assert_eq!(bench.connections(), 1, "{stage}");
    }
}

#[test]
fn a_half_open_connection_and_one_that_was_dropped_are_replaced_too() {
    let mut bench = Bench::new(1);
    bench.begin(7, 1);
    bench.begin(7, 2);
    bench.begin(7, 1);
    let (stream, _) = bench.open(8);
    drop(stream);
    bench.begin(8, 2);
    assert_eq!((bench.turn(), bench.ended()), (vec![], vec![]));
}

#[test]
fn the_same_syn_again_and_a_broken_one_replace_nothing() {
    let mut bench = Bench::new(1);
    let (mut stream, ours) = bench.open(7);
    let again = Raw { port: 7, sequence: 999, syn: true, ..Raw::default() };
    let other = Raw { sequence: 5_000_000, ..again };
    assert!(matches!(bench.say(again), Arrival::Absorbed));
    assert_eq!(bench.turn(), []);
    for at in [11, 27, 36] {
        let mut broken = other.packet();
        broken[at] ^= 0x40;
        bench.hear(&broken);
        assert_eq!(bench.turn(), [], "byte {at}");
    }
    bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours), payload: b"still here", ..Raw::default() });
    assert!(matches!(read(&mut stream, Waker::noop()), Poll::Ready(Ok(bytes)) if bytes == b"still here"));
}

#[test]
fn a_stream_hears_at_once_that_its_connection_is_another_and_never_touches_that() {
    let mut bench = Bench::new(1);
    let (mut old, _) = bench.open(7);
    let bell = Arc::new(Bell::default());
    assert!(read(&mut old, &bell.clone().into()).is_pending());
    let ours = bench.begin(7, 5_000_000).wrapping_add(1);
    assert_eq!(bell.0.load(Ordering::Relaxed), 1);
    let arrival = bench.say(Raw { port: 7, sequence: 5_000_001, ack: Some(ours), payload: b"new", ..Raw::default() });
    let Arrival::Established(connection) = arrival else { panic!("{arrival:?}") };
    let mut new = TapStream::new(bench.shared.clone(), connection);
    assert_reset(&mut old);
    shut(&mut old);
    drop(old);
    assert!(matches!(read(&mut new, Waker::noop()), Poll::Ready(Ok(bytes)) if bytes == b"new"));
    assert!(matches!(write(&mut new, b"hello"), Poll::Ready(Ok(5))));
    let [answer] = bench.turn().try_into().unwrap();
    assert_eq!((answer.payload.as_slice(), answer.fin, answer.rst), (&b"hello"[..], false, false));
}

#[test]
fn sequence_numbers_say_nothing_of_another_guests() {
    let numbers = |seed| {
        let mut bench = Bench::new(seed);
        [7, 8, 9].map(|port| bench.begin(port, 1))
    };
    let (one, other) = (numbers(1), numbers(2));
    let steps = |[a, b, c]: [u32; 3]| [b.wrapping_sub(a), c.wrapping_sub(b)];
    let [first, second] = steps(one);
    assert!(first != second && first > 1 << 16 && second > 1 << 16, "no clock and no counter: {one:?}");
    assert!(one.iter().all(|number| !other.contains(number)) && steps(one) != steps(other));
}
