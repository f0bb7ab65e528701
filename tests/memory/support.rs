//! A switch with a driver at one end and guests at the other.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use pve_imds_transport::bpf::{Epoch, Generation, Slot};
use pve_imds_transport::testing::{GuestStream, Impairment, Nic, Switch};
use pve_imds_transport::{Driver, Guests, Peer, Seat, Server};
use tokio::sync::watch;

/// Any but the first.
pub const EPOCH: Epoch = Epoch::new(5).unwrap();

/// A running driver over a switch.
pub struct World {
    pub switch: Switch,
    pub guests: Guests,
    pub drain: watch::Sender<bool>,
}

impl World {
    pub fn new(impairment: Impairment) -> Self {
        let switch = Switch::new(EPOCH, impairment);
        let mut seed = 0;
        let (driver, guests) = Driver::new(switch.wire(), EPOCH, move || {
            seed += 1;
            seed
        });
        tokio::spawn(driver.run());
        Self { switch, guests, drain: watch::Sender::new(false) }
    }

    /// A guest whose requests go to `service`.
    pub fn guest<S, F>(&self, number: u16, service: S) -> Nic
    where
        S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send + 'static,
    {
        let seat = seat(number, 0);
        self.guests.add(seat, Box::new(Server::new(tower::service_fn(service), self.drain.subscribe())));
        self.switch.plug(seat, mac(number), Ipv4Addr::new(169, 254, 1, 2), None)
    }
}

pub fn seat(slot: u16, generation: u8) -> Seat {
    Seat { slot: Slot::new(slot).unwrap(), generation: Generation::new(generation) }
}

pub fn mac(number: u16) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [0xbc, 0x24, 0x11, 0, high, low]
}

/// Answers with the guest's number, the peer's MAC and the length of the body it got.
pub async fn name_tag(number: u16, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let peer = request.extensions().get::<Peer>().copied().unwrap();
    let received = request.into_body().collect().await.map(|body| body.to_bytes().len());
    let text = format!("{number} {:02x?} {received:?}", peer.mac);
    Ok(Response::new(Full::new(text.into())))
}

/// A client connection of a guest.
pub async fn client(nic: &Nic) -> SendRequest<Full<Bytes>> {
    let stream: GuestStream = nic.connect().await.unwrap();
    let (sender, connection) = handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends one request and reads the whole answer.
pub async fn ask(client: &mut SendRequest<Full<Bytes>>, path: &str, body: Bytes) -> (u16, Bytes) {
    let request = Request::post(path).header("host", "169.254.169.254").body(Full::new(body)).unwrap();
    let response = client.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.unwrap().to_bytes())
}
