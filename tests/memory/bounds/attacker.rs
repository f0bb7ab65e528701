//! A world with a guest that speaks TCP by hand.
//!
//! The attacker sits on a guest's interface beside that guest's honest client, under addresses of its own; what our
//! stack says to it is heard at the wire. A probe looks at what its connections hold.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Body;
use hyper::body::Incoming;
use pve_imds_transport::bpf::Tag;
use pve_imds_transport::testing::{Holdings, Impairment, Nic, Probe, Raw, Spoken, Switch, SwitchWire};
use pve_imds_transport::{Account, Driver, Guests, Peer, Seat, Serve, Server, TapStream, Wire};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::{EPOCH, ask, client, mac, name_tag, seat};

/// The guest that misbehaves.
pub const ATTACKER: u16 = 1;

/// Where the attacker's own addresses begin; the honest client of the same guest is 169.254.1.2.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 0);

type Heard = Arc<Mutex<VecDeque<Spoken>>>;

/// The switch's wire, overheard.
struct Overheard {
    inner: SwitchWire,
    heard: Heard,
}

impl Wire for Overheard {
    type Frame = <SwitchWire as Wire>::Frame;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_ready(cx)
    }

    fn next(&mut self) -> Option<(Option<Tag>, Self::Frame)> {
        self.inner.next()
    }

    fn read(&mut self, frame: Self::Frame, into: &mut Vec<u8>) {
        self.inner.read(frame, into);
    }

    fn lent(&self, account: Account) -> i32 {
        self.inner.lent(account)
    }

    fn returned(&self, account: Account) -> u32 {
        self.inner.returned(account)
    }

    fn give_back(&mut self, account: Account, amount: i32) {
        self.inner.give_back(account, amount);
    }

    fn reclaim(&mut self) {
        self.inner.reclaim();
    }

    fn room(&mut self) -> usize {
        self.inner.room()
    }

    fn send<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let heard = &self.heard;
        self.inner.send(length, |frame| {
            let result = fill(frame);
            let slot = frame[6..12].first_chunk().and_then(Tag::decode).map(|tag| tag.slot.number());
            if slot == Some(ATTACKER)
                && let Some(spoken) = Spoken::parse(&frame[14..])
                && spoken.ip.octets()[2] == ADDRESS.octets()[2]
            {
                heard.lock().unwrap().push_back(spoken);
            }
            result
        })
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.inner.flush()
    }
}

/// Lets a probe into the guest whose streams pass through.
struct Probed<S> {
    inner: S,
    probe: Arc<OnceLock<Probe>>,
}

impl<S: Serve> Serve for Probed<S> {
    fn serve(&mut self, stream: TapStream, peer: Peer) {
        self.probe.get_or_init(|| Probe::of(&stream));
        self.inner.serve(stream, peer);
    }
}

/// A driver, an attacked guest and as many others as a test wants.
pub struct Arena {
    pub switch: Switch,
    guests: Guests,
    driver: JoinHandle<io::Result<()>>,
    drain: watch::Sender<bool>,
    heard: Heard,
    probe: Arc<OnceLock<Probe>>,
}

impl Arena {
    pub fn new() -> Self {
        let switch = Switch::new(EPOCH, Impairment::default());
        let heard = Heard::default();
        let mut seed = 0;
        let wire = Overheard { inner: switch.wire(), heard: heard.clone() };
        let (driver, guests) = Driver::new(wire, EPOCH, move || {
            seed += 1;
            seed
        });
        let driver = tokio::spawn(driver.run());
        Self { switch, guests, driver, drain: watch::Sender::new(false), heard, probe: Arc::default() }
    }

    /// A guest whose requests go to `service`.
    pub fn guest<S, F, B>(&self, number: u16, service: S) -> Nic
    where
        S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let inner = Server::new(tower::service_fn(service), self.drain.subscribe());
        let seat = seat(number, 0);
        if number == ATTACKER {
            self.guests.add(seat, Box::new(Probed { inner, probe: self.probe.clone() }));
        } else {
            self.guests.add(seat, Box::new(inner));
        }
        self.switch.plug(seat, mac(number), Ipv4Addr::new(169, 254, 1, 2), None)
    }

    /// What the attacked guest holds. It has had a connection.
    pub fn holdings(&self) -> Holdings {
        self.probe.get().unwrap().holdings()
    }

    /// Nothing the guest sent made it hold more than it may, or the driver fall.
    pub fn assert_bounded(&self) {
        assert!(!self.driver.is_finished(), "the driver runs");
        let Holdings { connections, half_open, buffers } = self.holdings();
        assert!(half_open <= 64 && connections <= 256 + 64, "{connections}, half-open {half_open}");
        // Two more: the honest guest's.
        assert!(buffers <= (connections + 2) * (80 << 10), "{buffers} bytes for {connections}");
    }

    /// Puts a segment of the attacker on the wire.
    pub fn say(&self, segment: Raw<'_>) {
        self.inject(&segment.packet());
    }

    /// Puts an IPv4 packet of the attacked guest on the wire.
    pub fn inject(&self, packet: &[u8]) {
        let Seat { slot, generation } = seat(ATTACKER, 0);
        let tag = Tag { epoch: EPOCH, vlan: None, generation, slot };
        self.switch.inject(&[&tag.encode()[..], &mac(ATTACKER), &[0x08, 0x00], packet].concat());
    }

    /// Lets the daemon work, and takes what it said to the attacker meanwhile.
    pub async fn listen(&self) -> Vec<Spoken> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.heard.lock().unwrap().drain(..).collect()
    }

    /// Opens connections from these ports, all at once; each with its next number of ours.
    pub async fn open(&self, peers: &[(Ipv4Addr, u16)], first: &[u8]) -> Vec<(Ipv4Addr, u16, u32)> {
        for (ip, port) in peers {
            self.say(Raw { ip: *ip, port: *port, sequence: 999, syn: true, ..Raw::default() });
        }
        let answers = self.listen().await.into_iter().filter(|answer| answer.syn);
        let open: Vec<_> = answers.map(|answer| (answer.ip, answer.port, answer.sequence.wrapping_add(1))).collect();
        for (ip, port, ack) in &open {
            let ack = Some(*ack);
            self.say(Raw { ip: *ip, port: *port, sequence: 1000, ack, payload: first, ..Raw::default() });
        }
        open
    }
}

/// The n-th of the attacker's far ends.
pub fn far_end(n: u32) -> (Ipv4Addr, u16) {
    let [.., high, low] = n.to_be_bytes();
    let [a, b, c, _] = ADDRESS.octets();
    (Ipv4Addr::new(a, b, c, 1 + high), 1024 + u16::from(low))
}

/// A connection and a request on it: both done within `time`.
pub async fn served(nic: &Nic, number: u16, time: Duration) {
    let answered = tokio::time::timeout(time, async { ask(&mut client(nic).await, "/", Bytes::new()).await });
    let (status, body) = answered.await.unwrap_or_else(|_| panic!("guest {number} waited longer than {time:?}"));
    assert!(status == 200 && body.starts_with(format!("{number} ").as_bytes()), "{status} {body:?}");
}

/// The usual service.
pub fn tagged(number: u16) -> impl Fn(Request<Incoming>) -> Tagged + Clone + Send + 'static {
    move |request| Box::pin(name_tag(number, request))
}

type Tagged = std::pin::Pin<Box<dyn Future<Output = Result<Response<http_body_util::Full<Bytes>>, Infallible>> + Send>>;
