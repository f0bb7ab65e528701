//! What the benchmarks run besides the product itself: servers to compare, and clocks finer than a shell's.
//!
//! ```text
//! server guest CONFIG              the daemon, without a guest's limits
//! server tcp CONFIG INTERFACE      the daemon's stack, without limits, over the kernel's TCP: what our transport costs
//! server sink CONFIG               the daemon with a service that takes every body
//! server births NODE GUEST PINS COUNT              see `clock::births`
//! server restart NODE ROUNDS GUEST… -- COMMAND…    see `clock::restart`
//! server writes GUEST TREE moved|unheard COUNT     see `clock::writes`
//! ```
//!
//! Servers run until they are killed. Clocks print one line of numbers (milliseconds) a round. NODE and GUEST are
//! network namespaces, CONFIG is a file of the product's configuration.
#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_methods)]

mod clock;

use std::convert::Infallible;
use std::env;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use pve_imds::app::stack::{Answers, Node, Rules, adopt, stack};
use pve_imds::{app, config};
use pve_imds_datasources::Passwords;
use pve_imds_datasources::backends::pve::Inventory;
use pve_imds_middleware::guard::GuardSettings;
use pve_imds_middleware::limits::Allowance;
use pve_imds_middleware::{RequestBody, ResponseBody, full};
use pve_imds_model::fault::Fault;
use pve_imds_model::request::Link;
use pve_imds_model::tap::TapName;
use pve_imds_observability::{Guard as Receivers, Settings, install};
use pve_imds_transport::Peer;
use pve_imds_transport::bpf::Bucket;
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt};

/// As good as none.
const LIFTED: Allowance = Allowance {
    requests_per_second: NonZeroU32::new(1_000_000).unwrap(),
    request_burst: NonZeroU32::new(1_000_000).unwrap(),
    requests_in_flight: 1_000_000,
};

/// Connections are opened as fast as they can be: a bucket's drop is a second of the client's patience.
const OPEN: Bucket =
    Bucket { per_second: NonZeroU32::new(1_000_000).unwrap(), burst: NonZeroU32::new(1_000_000).unwrap() };

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["guest", config] => guest(config),
        ["tcp", config, interface] => tcp(config, interface),
        ["sink", config] => sink(config),
        ["births", node, guest, pins, count] => clock::births(node, guest, Path::new(pins), count.parse().unwrap()),
        ["restart", node, rounds, ref rest @ ..] => {
            let (guests, command) = rest.split_at(rest.iter().position(|word| *word == "--").unwrap());
            clock::restart(node, rounds.parse().unwrap(), guests, &command[1..]);
        }
        ["writes", guest, tree, how, count] => {
            clock::writes(guest, Path::new(tree), how == "moved", count.parse().unwrap());
        }
        // Cargo may run what it calls a benchmark.
        _ => eprintln!("run: make bench"),
    }
}

fn guest(file: &str) {
    let (checked, receivers) = prepare(file);
    let rules = Rules { allowance: LIFTED, bucket: OPEN, ..app::rules(&checked) };
    serve(checked, &receivers, rules, app::router);
}

fn sink(file: &str) {
    let (checked, receivers) = prepare(file);
    let guard = GuardSettings { body_limit: 64 << 20, ..GuardSettings::default() };
    serve(checked, &receivers, Rules { guard, allowance: LIFTED, bucket: OPEN }, |_, _, _| tower::service_fn(swallow));
}

fn serve<R: Answers>(
    checked: config::Checked,
    receivers: &Receivers,
    rules: Rules,
    router: impl FnOnce(&config::Checked, &Arc<Inventory>, &Passwords) -> R,
) {
    let metrics = receivers.metrics().clone();
    runtime().block_on(app::serve(checked, metrics, rules, router, std::future::pending())).unwrap();
}

/// One interface's stack behind a listener on the metadata address, as `pve_imds_transport::Server` runs it behind ours.
fn tcp(file: &str, interface: &str) {
    let (checked, _receivers) = prepare(file);
    let link = Link { tap: TapName::parse(interface).unwrap(), index: 1, since: 0 };
    runtime().block_on(async {
        let (inventory, _watcher) = Inventory::open(app::inventory(&checked)).unwrap();
        let router = app::router(&checked, &inventory, &Passwords::default());
        let node = Node::new(inventory, Rules { allowance: LIFTED, ..app::rules(&checked) }, checked.emulation);
        let service = ServiceBuilder::new().map_request(adopt).service(stack(&node, link, router));
        let listener = TcpListener::bind(SocketAddr::from(([169, 254, 169, 254], 80))).await.unwrap();
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let peer = Peer { mac: [2, 0, 0, 0, 0, 1], ip: peer.ip(), port: peer.port() };
            let service = service.clone();
            let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                service.clone().oneshot(request)
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(15));
            builder.max_buf_size(8 << 10).max_headers(64).half_close(true).pipeline_flush(true);
            tokio::spawn(async move { drop(builder.serve_connection(TokioIo::new(stream), service).await) });
        }
    });
}

fn prepare(file: &str) -> (config::Checked, Receivers) {
    let checked = config::load(Some(Path::new(file))).unwrap().checked;
    let receivers = install(&Settings { level: checked.log_level.clone(), ..Settings::default() }).unwrap();
    app::describe();
    (checked, receivers)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn swallow(request: Request<RequestBody>) -> Result<Response<ResponseBody>, Fault> {
    let mut body = request.into_body();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Fault::bad_request().because(error))?;
        length += frame.data_ref().map_or(0, |data| data.len());
    }
    Ok::<_, Infallible>(Response::new(full(format!("took {length}\n")))).map_err(|never| match never {})
}
