//! Where answers go: to the station that the connection's last good packet came from.

use super::*;

const ELSEWHERE: Station = Station { mac: [2, 0, 0, 0, 0, 2], vlan: Some(42) };

#[test]
fn answers_follow_the_guest_and_no_packet_that_is_thrown_away() {
    for (what, flipped, expected) in [
        ("good", None, ELSEWHERE),
        ("another TCP checksum", Some(36), STATION),
        ("another IPv4 checksum", Some(10), STATION),
        ("another window, which the checksum is not of", Some(34), STATION),
    ] {
        let mut bench = Bench::new(1);
        let (mut stream, ours) = bench.open(7);
        let mut packet = Raw { port: 7, sequence: 1000, ack: Some(ours), ..Raw::default() }.packet();
        flipped.into_iter().for_each(|at: usize| packet[at] ^= 1);
        bench.shared.lock().arrive(bench.now, &packet, ELSEWHERE, TAG, &mut bench.wire);
        bench.turn();
        assert!(matches!(write(&mut stream, b"answer"), Poll::Ready(Ok(6))), "{what}");
        while bench.shared.lock().depart(bench.now, TAG, &mut bench.wire) == Departure::More {}
        let [frame] = &bench.wire.sent[..] else { panic!("{what}: {} frames", bench.wire.sent.len()) };
        let tag = Tag::decode(frame[6..].first_chunk().unwrap()).unwrap();
        assert_eq!(Station { mac: *frame.first_chunk().unwrap(), vlan: tag.vlan }, expected, "{what}");
    }
}
