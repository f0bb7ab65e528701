//! A hostile guest and its neighbour on one driver: the bytes are a script of what the hostile one does.
//!
//! Each step is a byte that says what (its low four bits) and on which of eight connections (the next three), then what
//! that step takes; the high bit leaves no time before the next one. Every string of bytes is a script, so that nothing
//! a fuzzer tries is in vain.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use pve_imds_transport::testing::fuzz::{Rogue, SHARE};
use pve_imds_transport::testing::{Impairment, Nic, Switch};
use pve_imds_transport::{Driver, Server};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::tcp::{ACK, Answer, FIN, PSH, RST, SYN, Segment};
use super::{EPOCH, contains, seat, world};

/// What only the neighbour may hear.
const CANARY: &[u8] = b"zebrafinch";

/// The neighbour's request and, in time, its answer.
const QUESTION: &[u8] = b"GET / HTTP/1.1\r\nhost: 169.254.169.254\r\nconnection: close\r\n\r\n";
const PROMPT: Duration = Duration::from_secs(1);

/// After this much silence nothing is held of anybody any more: no bound on a connection is longer, and the longest two
/// follow each other (an answer's 30 s, its delivery's 30 s).
const SILENCE: Duration = Duration::from_secs(90);

/// What one script may do in all, so that a long one says no more than a short one: frames, and time that passes.
const FRAMES: usize = 3000;
const TIME: Duration = Duration::from_secs(120);

/// The hostile guest holds no more than its share, makes no answer go astray and hears nothing that is its neighbour's.
/// The neighbour is answered at once. When both are silent, nothing is held.
pub fn conversation(bytes: &[u8]) {
    world().block_on(async {
        let switch = Switch::new(EPOCH, Impairment::default());
        let (driver, guests) = Driver::new(switch.wire(), EPOCH, || 1);
        let buffers = driver.buffers();
        let running = tokio::spawn(driver.run());
        let drain = watch::Sender::new(false);
        guests.add(seat(0), Box::new(Server::new(tower::service_fn(hostile), drain.subscribe())));
        guests.add(seat(1), Box::new(Server::new(tower::service_fn(neighbour), drain.subscribe())));
        let nic = switch.plug(seat(1), [0xbc, 0x24, 0x11, 0, 0, 2], SOURCE.into(), None);

        let mut script = Script::new(bytes, switch.plug_rogue(seat(0)));
        while script.step().await.is_some() {
            assert!(buffers() <= SHARE, "{} bytes held", buffers());
        }
        let answer = timeout(PROMPT, ask(&nic)).await.expect("the neighbour is answered at once");
        assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(CANARY), "{}", answer.escape_ascii());
        script.listen();
        let freed = async {
            while buffers() > 0 {
                sleep(Duration::from_secs(1)).await;
            }
        };
        timeout(SILENCE, freed).await.expect("what nobody uses is given back");
        assert_eq!(switch.astray(), 0);
        assert!(!running.is_finished(), "nothing a guest does ends the driver");
    });
}

/// The guests share an address; they never share a stack.
const SOURCE: [u8; 4] = [169, 254, 1, 2];

async fn ask(nic: &Nic) -> Vec<u8> {
    nic.connect().await.unwrap().exchange(QUESTION).await.unwrap()
}

async fn neighbour(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from(CANARY)))
}

/// Reads a body as far as the product would, and answers with much or little.
async fn hostile(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let length = if request.uri().path() == "/large" { 200_000 } else { 10 };
    let _ = timeout(Duration::from_secs(30), Limited::new(request.into_body(), 8 << 10).collect()).await;
    Ok(Response::new(Full::from(vec![b'.'; length])))
}

/// One side of a connection, as far as whoever plays it remembers.
#[derive(Clone, Copy)]
struct Line {
    port: u16,
    next: u32,
    heard: u32,
    window: u16,
}

/// The hostile guest and what is left of its script.
struct Script<'a> {
    bytes: &'a [u8],
    rogue: Rogue,
    lines: [Line; 8],
    said: VecDeque<Vec<u8>>,
    frames: usize,
    time: Duration,
    mac: [u8; 6],
}

impl<'a> Script<'a> {
    fn new(bytes: &'a [u8], rogue: Rogue) -> Self {
        let line = |index: u16| Line { port: 40_000 + index, next: 1000, heard: 0, window: u16::MAX };
        let lines = [0, 1, 2, 3, 4, 5, 6, 7].map(line);
        let said = VecDeque::new();
        Self { bytes, rogue, lines, said, frames: FRAMES, time: TIME, mac: [0xbc, 0x24, 0x11, 0, 0, 1] }
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes.split_off_first().copied()
    }

    /// A byte that says how many, and as many of those as there are.
    fn some(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.byte()?).min(self.bytes.len());
        self.bytes.split_off(..length)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// One step. `None`: the script is over.
    async fn step(&mut self) -> Option<()> {
        let what = self.byte().filter(|_| self.frames > 0)?;
        let block = what >> 4 & 7;
        let line = usize::from(block);
        match what & 0xf {
            0 => self.open(line),
            1 => self.segment(line, ACK, &[], &[]),
            2 => {
                let payload = self.some()?;
                self.segment(line, ACK | PSH, &[], payload);
            }
            3 => self.segment(line, ACK | FIN, &[], &[]),
            4 => self.segment(line, RST, &[], &[]),
            5 => self.wild(line)?,
            6 => {
                let packet = self.some()?;
                self.say([&self.mac[..], &[0x08, 0x00], packet].concat());
            }
            7 => {
                let frame = self.some()?;
                let vlan = (line == 7).then_some(0x2001);
                self.rogue.say(vlan, frame);
                self.frames -= 1;
            }
            8 => {
                let length = usize::from(self.byte()?);
                let mut frame = self.said.back().cloned().unwrap_or_default();
                frame.truncate(length);
                self.say(frame);
            }
            9 => {
                let (place, change) = (usize::from(self.byte()?), self.byte()?);
                let mut frame = self.said.back().cloned().unwrap_or_default();
                frame.get_mut(place).into_iter().for_each(|byte| *byte ^= change);
                self.say(frame);
            }
            10 => {
                let pause = Duration::from_millis(1 << (self.byte()? & 15)).min(self.time);
                self.time -= pause;
                sleep(pause).await;
            }
            11 => {
                let (count, first) = (self.byte()?, self.byte()?);
                (0..count).for_each(|n| self.stranger([10, 1, block, n.wrapping_add(first)], SYN, 0));
            }
            12 => {
                let request = REQUESTS[usize::from(self.byte()?) % REQUESTS.len()];
                self.segment(line, ACK | PSH, &[], request);
            }
            13 => self.crowd(block).await?,
            14 => self.arp(),
            _ => self.lines[line].window = self.word()?,
        }
        if what & 0x80 == 0 {
            self.settle().await;
        }
        Some(())
    }

    /// Lets everybody finish what they can, and listens.
    async fn settle(&mut self) {
        sleep(Duration::from_millis(1)).await;
        self.listen();
    }

    fn listen(&mut self) {
        while let Some(frame) = self.rogue.hear() {
            assert!(!contains(&frame, CANARY), "an answer of the neighbour's");
            let Some(answer) = Answer::read(&frame) else { continue };
            if let Some(line) = self.lines.iter_mut().find(|line| line.port == answer.port) {
                line.heard = answer.next;
            }
        }
    }

    fn say(&mut self, frame: Vec<u8>) {
        self.rogue.say(None, &frame);
        self.frames = self.frames.saturating_sub(1);
        self.said.push_back(frame);
        if self.said.len() > 4 {
            self.said.pop_front();
        }
    }

    /// A new connection in the place of whatever there was.
    fn open(&mut self, line: usize) {
        self.lines[line].next = self.lines[line].next.wrapping_add(100_000);
        self.lines[line].heard = 0;
        // Segments of 1460 bytes, windows times 8.
        self.segment(line, SYN, &[2, 4, 5, 0xb4, 3, 3, 3, 1], &[]);
    }

    /// The segment that an honest guest would send next.
    fn segment(&mut self, line: usize, flags: u8, options: &[u8], payload: &[u8]) {
        let Line { port, next, heard, window } = self.lines[line];
        let segment =
            Segment { source: SOURCE, port, sequence: next, acknowledged: heard, flags, window, options, payload };
        let counts = payload.len() + usize::from(flags & SYN != 0) + usize::from(flags & FIN != 0);
        self.lines[line].next = next.wrapping_add(u32::try_from(counts).unwrap());
        self.say(segment.frame(self.mac));
    }

    /// A segment that no honest guest sends: any flags, numbers that are off, any window, options and payload.
    fn wild(&mut self, line: usize) -> Option<()> {
        let Line { port, next, heard, .. } = self.lines[line];
        let flags = self.byte()?;
        let off = |word: u16| u32::from(word) << (word >> 12);
        let (sequence, acknowledged) = (next.wrapping_add(off(self.word()?)), heard.wrapping_sub(off(self.word()?)));
        let (window, options, payload) = (self.word()?, self.some()?, self.some()?);
        let segment = Segment { source: SOURCE, port, sequence, acknowledged, flags, window, options, payload };
        self.say(segment.frame(self.mac));
        Some(())
    }

    /// A segment from one of many addresses.
    fn stranger(&mut self, source: [u8; 4], flags: u8, acknowledged: u32) {
        let (port, sequence) = (50_000 + u16::from(source[3]), u32::from(flags & ACK != 0));
        let segment = Segment { source, port, sequence, acknowledged, flags, window: 1000, options: &[], payload: &[] };
        self.say(segment.frame(self.mac));
    }

    /// So many connections that are opened and then say nothing.
    async fn crowd(&mut self, block: u8) -> Option<()> {
        let (count, first) = (self.byte()?, self.byte()?);
        let sources: Vec<_> = (0..count).map(|n| [10, 0, block, n.wrapping_add(first)]).collect();
        // No more at once than may be half open.
        for some in sources.chunks(32) {
            some.iter().for_each(|source| self.stranger(*source, SYN, 0));
            sleep(Duration::from_millis(1)).await;
            let answers: Vec<_> = std::iter::from_fn(|| self.rogue.hear()).filter_map(|it| Answer::read(&it)).collect();
            for source in some {
                let answer = answers.iter().find(|answer| answer.port == 50_000 + u16::from(source[3]));
                self.stranger(*source, ACK, answer.map_or(0, |answer| answer.next));
            }
        }
        Some(())
    }

    fn arp(&mut self) {
        let question =
            [&self.mac[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &self.mac, &SOURCE, &[0; 6], &[169, 254, 169, 254]];
        self.say(question.concat());
    }
}

/// What a script need not spell.
const REQUESTS: &[&[u8]] = &[
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\nhello",
    b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: ",
    b"nonsense\r\n\r\n",
];
