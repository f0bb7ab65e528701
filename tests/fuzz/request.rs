//! Bytes on one TCP connection, up to the router and back.

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use hyper::rt::Write;
use pve_imds::app::stack::{Node, Rules, adopt, stack};
use pve_imds_datasources::Router;
use pve_imds_model::fault::Outcome;
use pve_imds_model::ipxe;
use pve_imds_model::request::Emulation;
use pve_imds_transport::testing::{Impairment, Nic, Switch};
use pve_imds_transport::{Driver, Server};
use tokio::sync::watch;
use tower::ServiceBuilder;

use super::vms::{Both, CANARY, DOCUMENTS, link};
use super::{EPOCH, contains, seat, world};

/// A connection has ended by then, whatever was sent on it: a head has 15 s, its answer 30 s, a goodbye 5 s.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is no HTTP is told so or hears nothing; every answer is whole, has a status we know and a body that is the
/// VM's own or says what went wrong; and the connection ends.
pub fn request(bytes: &[u8]) {
    LazyLock::force(&DOCUMENTS);
    let heard = world().block_on(async {
        let (nic, drain) = plug();
        let heard = tokio::time::timeout(PATIENCE, exchange(&nic, bytes)).await.expect("a connection ends in time");
        drop(drain);
        heard
    });
    assert!(!contains(&heard, CANARY.as_bytes()), "a body of another VM");
    let mut rest = &heard[..];
    while !rest.is_empty() {
        rest = answer(rest);
    }
}

/// A guest behind the product's stack, and what has to be kept while it runs.
fn plug() -> (Nic, watch::Sender<bool>) {
    static NODE: LazyLock<Node> =
        LazyLock::new(|| Node::new(Arc::new(Both::new()), Rules::default(), Emulation::default()));
    let switch = Switch::new(EPOCH, Impairment::default());
    let (driver, guests) = Driver::new(switch.wire(), EPOCH, || 1);
    let drain = watch::Sender::new(false);
    let service = ServiceBuilder::new().map_request(adopt).service(stack(&NODE, link(), Router::default()));
    guests.add(seat(0), Box::new(Server::new(service, drain.subscribe())));
    tokio::spawn(async move {
        // Nobody else would keep the driver from ending.
        let _guests = guests;
        driver.run().await
    });
    (switch.plug(seat(0), [0xbc, 0x24, 0x11, 0, 0, 1], Ipv4Addr::new(169, 254, 1, 2), None), drain)
}

/// Sends in one piece or two, as the last byte says, and closes its half or waits, as it says too.
async fn exchange(nic: &Nic, bytes: &[u8]) -> Vec<u8> {
    let last = bytes.last().copied().unwrap_or(0);
    let mut stream = nic.connect().await.unwrap();
    let (first, second) = bytes.split_at(if last & 2 == 0 { 0 } else { bytes.len() / 2 });
    // A server that has heard enough may have hung up before the rest.
    if stream.send(first).await.is_ok() {
        if last & 2 != 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let _ = stream.send(second).await;
    }
    if last & 1 == 1 {
        let _ = poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await;
    }
    stream.read_to_end().await.unwrap()
}

/// Judges the first of these answers; what comes after it.
fn answer(bytes: &[u8]) -> &[u8] {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head is whole");
    let (head, rest) = bytes.split_at(end + 4);
    let head = str::from_utf8(head).expect("a head is text");
    let (line, fields) = head.split_once("\r\n").unwrap();
    let version = line.strip_prefix("HTTP/1.").and_then(|line| line.strip_prefix(['0', '1']));
    let status =
        version.and_then(|line| line.get(1..4)?.parse().ok()).unwrap_or_else(|| panic!("no status line: {line}"));
    if status == 100 {
        return rest;
    }
    let length = fields.lines().find_map(|field| {
        let (name, value) = field.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().unwrap())
    });
    // The answer to HEAD has a length and no body; no document begins like an answer.
    let length =
        if rest.is_empty() || rest.starts_with(b"HTTP/1.") { 0 } else { length.expect("every answer has a length") };
    let (body, rest) = rest.split_at_checked(length).expect("a body is whole");
    judge(status, body);
    rest
}

fn judge(status: u16, body: &[u8]) {
    let word = |outcomes: &[Outcome]| {
        body.is_empty() || outcomes.iter().any(|outcome| body == format!("{}\n", outcome.word()).as_bytes())
    };
    let known = match status {
        200 => body.is_empty() || body == ipxe::EXIT.as_bytes() || DOCUMENTS.iter().any(|document| body == document),
        400 => word(&[Outcome::BadRequest]),
        401 => word(&[Outcome::TokenInvalid]),
        403 => word(&[Outcome::Forwarded, Outcome::HostRefused]),
        404 | 414 | 431 => body.is_empty(),
        405 => word(&[Outcome::MethodNotAllowed]),
        413 => word(&[Outcome::BodyTooLarge]),
        503 => word(&[Outcome::RateLimited, Outcome::Deadline, Outcome::NodeKeyUnreadable]),
        // A 500 is a panic that was caught.
        _ => false,
    };
    assert!(known, "{status} {:?}", body.escape_ascii().to_string());
}
