//! How long connections are waited for, and what is left of them.

use super::*;

#[test]
fn every_phase_ends_in_its_time_with_its_word_and_a_fitting_goodbye() {
    let rows: &[(&str, Bring, u64, Option<Ended>, &str)] = &[
        ("idle", |_, _, _| (), 15, Some(Ended::IdleTime), "fin"),
        (
            "a head begun",
            |bench, stream, ours| {
                bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours), payload: b"G", ..Raw::default() });
                assert!(matches!(read(stream, Waker::noop()), Poll::Ready(Ok(_))));
            },
            5,
            Some(Ended::HeadTime),
            "rst",
        ),
        (
            "a window that is shut",
            |bench, stream, ours| {
                assert!(matches!(write(stream, b"answer"), Poll::Ready(Ok(6))));
                let shut = Raw { port: 7, sequence: 1000, ack: Some(ours), window: 0, ..Raw::default() };
                bench.say(shut);
            },
            15,
            Some(Ended::Stalled),
            "rst",
        ),
        (
            "our goodbye unanswered",
            |bench, stream, ours| {
                shut(stream);
                bench.turn();
                bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours + 1), ..Raw::default() });
            },
            5,
            Some(Ended::HalfClosed),
            "rst",
        ),
        (
            "an answer that is not taken before our goodbye",
            |_, stream, _| {
                assert!(matches!(write(stream, b"answer"), Poll::Ready(Ok(6))));
                shut(stream);
            },
            30,
            Some(Ended::Undelivered),
            "rst",
        ),
    ];
    for (what, bring, time, ended, last) in rows {
        let mut bench = Bench::new(1);
        let (mut stream, ours) = bench.open(7);
        bring(&mut bench, &mut stream, ours);
        bench.pass(time - 1);
        assert_eq!(bench.ended(), [], "{what}: not yet");
        let spoken = bench.pass(1);
        assert_eq!(bench.ended(), Vec::from_iter(*ended), "{what}");
        let spoken = spoken.last().unwrap();
        assert_eq!((spoken.rst, spoken.fin), (*last == "rst", *last == "fin"), "{what}: {spoken:?}");
        assert_reset(&mut stream);
    }
}

#[test]
fn a_request_in_progress_and_a_reader_that_takes_a_byte_are_waited_for() {
    let mut bench = Bench::new(1);
    let (mut stream, ours) = bench.open(7);
    let request = stream.progress().begin();
    bench.pass(100);
    assert!(matches!(write(&mut stream, &[7; 10]), Poll::Ready(Ok(10))));
    for taken in 1..10 {
        bench.pass(14);
        bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours + taken), window: 0, ..Raw::default() });
    }
    drop(request);
    bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours + 10), ..Raw::default() });
    bench.pass(14);
    assert_eq!(bench.ended(), []);
    assert!(read(&mut stream, Waker::noop()).is_pending());
    bench.pass(1);
    assert_eq!(bench.ended(), [Ended::IdleTime], "idle since the last byte was taken");
}

#[test]
fn an_answer_that_ends_without_another_byte_starts_the_idle_time() {
    let mut bench = Bench::new(1);
    let (mut stream, _) = bench.open(7);
    let request = stream.progress().begin();
    bench.pass(100);
    drop(request);
    assert!(read(&mut stream, Waker::noop()).is_pending());
    bench.pass(14);
    assert_eq!(bench.ended(), []);
    bench.pass(1);
    assert_eq!(bench.ended(), [Ended::IdleTime]);
}

#[test]
fn nothing_is_left_of_connections_that_are_gone() {
    let mut bench = Bench::new(1);
    let streams: Vec<_> = (0..300).map(|port| bench.open(100 + port).0).collect();
    drop(streams);
    bench.pass(60);
    let stack = bench.shared.lock();
    assert_eq!((stack.table.len(), stack.half_open.len(), stack.timers.len()), (0, 0, 0));
    assert_eq!((stack.touched.len(), stack.round.len()), (0, 0));
    assert!(stack.touched.capacity().max(stack.round.capacity()) <= 8);
    assert_eq!(bench.pool.held(), 0);
}
