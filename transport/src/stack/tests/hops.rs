//! How far packets travel: what is said now holds for every packet that leaves from now on.

use smoltcp::wire::Ipv4Packet;

use super::*;

impl Bench {
    /// The time to live of everything that was sent and not looked at yet, and what it was.
    fn travelled(&mut self) -> Vec<(u8, Spoken)> {
        while self.shared.lock().depart(self.now, TAG, &mut self.wire) == Departure::More {}
        let read = |frame: Vec<u8>| {
            let packet = Ipv4Packet::new_checked(&frame[ETHERNET_HEADER..]).unwrap();
            assert!(packet.verify_checksum(), "a kernel would throw it away");
            (packet.hop_limit(), Spoken::parse(&frame[ETHERNET_HEADER..]).unwrap())
        };
        self.wire.sent.drain(..).map(read).collect()
    }

    fn limit(&mut self, hops: u8) {
        self.shared.lock().hops = hops;
    }
}

#[test]
fn every_kind_of_packet_travels_as_far_as_is_said_and_no_further() {
    for hops in [1, 2, 63, 64, 255] {
        let mut bench = Bench::new(1);
        bench.limit(hops);
        let (mut stream, ours) = bench.open(7);
        assert!(matches!(write(&mut stream, b"answer"), Poll::Ready(Ok(6))));
        bench.say(Raw { port: 7, sequence: 1000, ack: Some(ours), payload: b"GET", ..Raw::default() });
        // To a connection that nobody knows, and to one that is begun.
        bench.say(Raw { port: 8, sequence: 1, ack: Some(1), ..Raw::default() });
        bench.say(Raw { port: 9, sequence: 1, syn: true, ..Raw::default() });
        shut(&mut stream);
        drop(stream);
        let travelled = bench.travelled();
        let kinds: [&dyn Fn(&Spoken) -> bool; 4] =
            [&|it| it.syn && it.port == 9, &|it| it.rst && it.port == 8, &|it| it.payload == b"answer", &|it| {
                it.fin && it.port == 7
            }];
        for kind in kinds {
            assert!(travelled.iter().any(|(_, spoken)| kind(spoken)), "{travelled:?}");
        }
        assert!(travelled.iter().all(|(travels, _)| *travels == hops), "{hops}: {travelled:?}");
    }
}

#[test]
fn what_is_sent_again_travels_as_is_said_by_then() {
    let mut bench = Bench::new(1);
    let (mut stream, _) = bench.open(7);
    assert!(matches!(write(&mut stream, b"answer"), Poll::Ready(Ok(6))));
    assert_eq!(bench.travelled().iter().map(|(hops, _)| *hops).collect::<Vec<_>>(), [64]);
    bench.limit(1);
    bench.now = bench.shared.lock().due().unwrap();
    let again = bench.travelled();
    assert!(matches!(&again[..], [(1, spoken)] if spoken.payload == b"answer"), "{again:?}");
}
