//! Whatever a guest sends, the daemon stands, holds no more than it may and serves the others.
//!
//! The dice are ours and seeded: a run that fails is the same run again.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pve_imds_transport::testing::{Raw, Spoken};
use tokio::time::sleep;

use super::attacker::{ATTACKER, Arena, far_end, served, tagged};
use super::{OTHER, SOON};

/// xorshift64*.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    fn number(&mut self) -> u32 {
        u32::try_from(self.roll() >> 32).unwrap()
    }

    fn happens(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn among<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[usize::try_from(self.below(choice.len() as u64)).unwrap()]
    }

    /// Near `value`, or anywhere.
    fn around(&mut self, value: u32) -> u32 {
        match self.below(8) {
            0 => self.number(),
            1 => value.wrapping_add(self.number() >> 16),
            2 => value.wrapping_sub(self.number() >> 18),
            3 => value.wrapping_add(1),
            4 => value.wrapping_sub(1),
            _ => value,
        }
    }
}

/// What the attacker remembers of a conversation: both sides' next numbers.
type Talks = HashMap<(Ipv4Addr, u16), (u32, u32)>;

fn remember(talks: &mut Talks, heard: Vec<Spoken>) {
    for Spoken { ip, port, sequence, ack, syn, fin, payload, .. } in heard {
        let length = u32::try_from(payload.len()).unwrap() + u32::from(syn) + u32::from(fin);
        talks.insert((ip, port), (ack, sequence.wrapping_add(length)));
    }
}

const REQUEST: &[u8] = b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello";

/// How an attacker goes about it.
#[derive(Clone, Copy)]
enum Manner {
    /// Many far ends, and a SYN whenever.
    Flood,
    /// Few far ends, and a SYN where there is no connection: deep into conversations.
    Talk,
}

/// One packet, from nonsense to almost honest.
fn packet(dice: &mut Dice, manner: Manner, talks: &Talks, noise: &[u8]) -> Vec<u8> {
    let (ip, port) = match dice.below(20) {
        // The honest client's own address, and addresses nobody has.
        0 => (Ipv4Addr::new(169, 254, 1, 2), 49_000 + u16::try_from(dice.below(400)).unwrap()),
        1 => (Ipv4Addr::from(dice.number()), u16::try_from(dice.below(65_536)).unwrap()),
        _ => far_end(u32::try_from(dice.below(if let Manner::Flood = manner { 600 } else { 40 })).unwrap()),
    };
    let begin = match manner {
        Manner::Flood => dice.happens(4),
        Manner::Talk => dice.happens(if talks.contains_key(&(ip, port)) { 50 } else { 1 }),
    };
    let (sequence, ours) = talks.get(&(ip, port)).copied().unwrap_or_else(|| (dice.number(), dice.number()));
    let from = usize::try_from(dice.below(64)).unwrap();
    let length = usize::try_from(dice.among(&[0, 1, 5, 500, 1460, 9000, 40_000])).unwrap();
    let payload = if dice.happens(2) { &REQUEST[from.min(REQUEST.len())..] } else { &noise[from..from + length] };
    let honest = Raw { ip, port, sequence, ack: Some(ours), ..Raw::default() };
    let segment = match dice.below(9) {
        _ if begin => Raw { sequence: dice.number(), ack: None, syn: true, ..honest },
        0..2 => Raw { payload: REQUEST, psh: true, ..honest },
        2 => Raw { fin: true, payload: if dice.happens(2) { payload } else { &[] }, ..honest },
        3 => Raw { rst: true, sequence: dice.around(sequence), ..honest },
        4 => Raw { window: 0, ..honest },
        5 => Raw { sequence: dice.around(sequence), ack: Some(dice.around(ours)), payload, ..honest },
        6 => honest,
        _ => Raw {
            sequence: dice.around(sequence),
            ack: if dice.happens(4) { None } else { Some(dice.around(ours)) },
            syn: dice.happens(4),
            fin: dice.happens(4),
            rst: dice.happens(8),
            psh: dice.happens(2),
            window: u16::try_from(dice.below(65_536)).unwrap(),
            payload,
            ..honest
        },
    };
    let mut packet = segment.packet();
    if dice.happens(10) {
        let cut = usize::try_from(dice.below(packet.len() as u64 + 1)).unwrap();
        packet.truncate(cut);
    }
    for _ in 0..dice.among(&[0, 0, 0, 0, 0, 0, 1, 3]) {
        if !packet.is_empty() {
            let at = usize::try_from(dice.below(packet.len().min(60) as u64)).unwrap();
            packet[at] = u8::try_from(dice.below(256)).unwrap();
        }
    }
    packet
}

/// As many hostile packets as a run has.
const PACKETS: usize = 60_000;

async fn run(seed: u64, manner: Manner) {
    let arena = Arena::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let counting = move |request| {
        counted.fetch_add(1, Ordering::Relaxed);
        tagged(ATTACKER)(request)
    };
    let (own, other) = (arena.guest(ATTACKER, counting), arena.guest(OTHER, tagged(OTHER)));
    served(&own, ATTACKER, SOON).await;
    let mut dice = Dice(seed);
    let noise: Vec<u8> = (0..41_000).map(|_| u8::try_from(dice.below(256)).unwrap()).collect();
    let mut talks = Talks::new();
    for batch in 0..PACKETS / 100 {
        for _ in 0..100 {
            let packet = packet(&mut dice, manner, &talks, &noise);
            arena.inject(&packet);
        }
        remember(&mut talks, arena.listen().await);
        arena.assert_bounded();
        if batch % 10 == 0 {
            served(&other, OTHER, SOON).await;
            sleep(Duration::from_millis(dice.below(1500))).await;
        }
    }
    assert!(asked.load(Ordering::Relaxed) > 500, "it got as far as asking");
    served(&own, ATTACKER, Duration::from_secs(5)).await;
    served(&other, OTHER, SOON).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(arena.holdings().connections, 0, "and nothing is left");
}

#[tokio::test(start_paused = true)]
async fn whatever_a_guest_sends_its_neighbour_is_served_and_its_bounds_hold() {
    for (seed, manner) in [(1, Manner::Flood), (2, Manner::Talk), (3, Manner::Talk)] {
        run(seed, manner).await;
    }
}
