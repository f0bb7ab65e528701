//! Somebody who asks at a steady pace and keeps the books: how long each answer took, which did not come, and whether
//! any was somebody else's.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Guest;
use super::figures::{ms, quantile};

/// How somebody asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Requests a second. One that is late because the answer before it was late is sent at once.
    pub rate: u32,
    /// A connection for each request.
    pub fresh: bool,
    /// How long an answer, or a handshake, may take.
    pub patience: Duration,
}

impl Asker {
    /// Asks this often for the guest's user data, from its namespace.
    pub fn ask(self, guest: &Guest, requests: u32) -> Heard {
        let wanted = guest.user_data();
        guest.namespace.inside(|| self.run(&wanted, |asked| asked < requests))
    }

    /// Asks until it is stopped.
    pub fn start(self, guest: &Guest) -> Asking {
        let (wanted, enter) = (guest.user_data(), guest.namespace.door());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            enter();
            self.run(&wanted, |_| !stopped.load(Ordering::Relaxed))
        });
        Asking { stop, thread: Some(thread) }
    }

    fn run(self, wanted: &str, mut go_on: impl FnMut(u32) -> bool) -> Heard {
        let mut heard = Heard::default();
        let mut connection = None;
        let begun = Instant::now();
        let mut good = begun;
        let mut lapse: Option<Lapse> = None;
        let mut asked = 0;
        while go_on(asked) {
            let due = begun + Duration::from_secs(1) * asked / self.rate;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            asked += 1;
            let sent = Instant::now();
            let since = lapse.get_or_insert(Lapse { from: sent, until: sent, failed: 0, why: None });
            match self.once(&mut connection) {
                Ok((200, body)) if body == wanted => {
                    heard.times.push(sent.elapsed());
                    heard.stall = heard.stall.max(good.elapsed());
                    good = Instant::now();
                    since.until = good;
                    heard.lapses.extend(lapse.take().filter(Lapse::counts));
                }
                Ok(other) if other.0 == 200 => heard.wrong.push(other.1),
                Ok((status, _)) => heard.fail(since, format!("status {status}")),
                Err(error) => heard.fail(since, error.to_string()),
            }
            if self.fresh || heard.times.len() != asked as usize {
                connection = None;
            }
        }
        heard.stall = heard.stall.max(good.elapsed());
        heard.lapses.extend(lapse.filter(Lapse::counts));
        heard.times.sort_unstable();
        heard
    }

    /// One request and its whole answer.
    fn once(self, connection: &mut Option<TcpStream>) -> io::Result<(u16, String)> {
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect_timeout(&address(), self.patience)?;
                stream.set_read_timeout(Some(self.patience))?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        let answer = request(&mut stream, self.fresh)?;
        *connection = Some(stream);
        Ok(answer)
    }
}

fn address() -> SocketAddr {
    SocketAddr::from(([169, 254, 169, 254], 80))
}

/// Asks for the user data, for the last time or not; status and body.
pub fn request(stream: &mut TcpStream, last: bool) -> io::Result<(u16, String)> {
    let end = if last { "close" } else { "keep-alive" };
    // In one piece, as HTTP clients do: pieces would wait for each other (Nagle's algorithm and a delayed ACK).
    let request = format!("GET /nocloud/user-data HTTP/1.1\r\nhost: 169.254.169.254\r\nconnection: {end}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    answer(stream)
}

/// Status and body of an answer that says how long it is.
fn answer(stream: &mut TcpStream) -> io::Result<(u16, String)> {
    let mut bytes = Vec::new();
    let mut part = [0; 2048];
    loop {
        match stream.read(&mut part)? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "half an answer")),
            length => bytes.extend(&part[..length]),
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
        });
        if body.len() >= length.unwrap_or(0) {
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
            return Ok((status, body.to_owned()));
        }
    }
}

/// Somebody who is asking.
#[derive(Debug)]
pub struct Asking {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Heard>>,
}

impl Asking {
    /// Ends it; what was heard.
    pub fn stop(mut self) -> Heard {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A time in which requests were sent and none had a good answer.
#[derive(Clone, Debug)]
pub struct Lapse {
    /// When the first of them was sent.
    pub from: Instant,
    /// When the first good answer was there, or the last of them had failed.
    pub until: Instant,
    /// How many failed.
    pub failed: u32,
    /// Why the first did.
    pub why: Option<String>,
}

impl Lapse {
    /// Answers that take less are not worth a word.
    const SHORTEST: Duration = Duration::from_millis(20);

    pub fn length(&self) -> Duration {
        self.until - self.from
    }

    fn counts(&self) -> bool {
        self.failed > 0 || self.length() >= Self::SHORTEST
    }
}

/// What was heard.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// How long each good answer took from its request on, sorted.
    pub times: Vec<Duration>,
    /// Requests without a good answer.
    pub failed: u32,
    /// Bodies of good answers that were not this guest's.
    pub wrong: Vec<String>,
    /// The longest time without a good answer.
    pub stall: Duration,
    /// Why the first request failed that did.
    pub first_failure: Option<String>,
    /// Each time without a good answer that was worth a word.
    pub lapses: Vec<Lapse>,
}

impl Heard {
    fn fail(&mut self, lapse: &mut Lapse, why: String) {
        self.failed += 1;
        lapse.failed += 1;
        lapse.until = Instant::now();
        lapse.why.get_or_insert_with(|| why.clone());
        self.first_failure.get_or_insert(why);
    }

    /// Both together.
    pub fn and(mut self, other: Self) -> Self {
        self.times.extend(other.times);
        self.times.sort_unstable();
        self.failed += other.failed;
        self.wrong.extend(other.wrong);
        self.stall = self.stall.max(other.stall);
        self.first_failure = self.first_failure.or(other.first_failure);
        self.lapses.extend(other.lapses);
        self
    }
}

impl fmt::Display for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { times, failed, wrong, stall, .. } = self;
        if let [_, .., longest] = times[..] {
            let [p50, p99] = [0.5, 0.99].map(|share| ms(quantile(times, share)));
            write!(f, "{} answers, p50 {p50:.2} ms, p99 {p99:.2} ms, max {:.1} ms", times.len(), ms(longest))?;
        } else {
            write!(f, "{} answers", times.len())?;
        }
        write!(f, ", longest stall {:.0} ms, {failed} failed, {} wrong", ms(*stall), wrong.len())
    }
}
