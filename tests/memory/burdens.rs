//! Guests whose documents cost much: what that costs their neighbours.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use pve_imds::app::stack::{Node, Rules};
use pve_imds_datasources::{Router, Settings};
use pve_imds_model::conf;
use pve_imds_model::request::Emulation;
use pve_imds_model::vm::VmId;
use pve_imds_transport::testing::{Impairment, Nic};
use tokio::time::{Instant, sleep, sleep_until};

use crate::stack::{Fixtures, plug_router};
use crate::support::{World, client};

const CLIENTS: usize = 16;
const HEAVY: u32 = 106;
const OTHER_HEAVY: u32 = 107;
const LIGHT: u32 = 108;

/// 1 MiB that JSON writes six times as long, and many tags and keys.
fn heavy() -> String {
    let mut config = format!("#<!--#vendor-data\n#{}\n#-->\nname: web\n", "%01".repeat(1 << 20));
    let tags: Vec<_> = (0..2000).map(|at| format!("t{at}")).collect();
    writeln!(config, "tags: {}", tags.join(";")).unwrap();
    config
}

async fn head(client: &mut SendRequest<Full<Bytes>>, path: &str) {
    let request = Request::head(path).header("host", "169.254.169.254").body(Full::default()).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.into_body().collect().await.unwrap();
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// What the clients of `nic` wait for each answer, until `end`.
async fn hammer(nic: Nic, path: &'static str, end: Instant) -> Vec<Duration> {
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = client(&nic).await;
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < end {
                let asked = Instant::now();
                head(&mut client, path).await;
                times.push(asked.elapsed());
            }
            times
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all
}

/// In real time, because what is measured is who has the thread that serves everybody.
#[tokio::test]
async fn a_neighbour_does_not_wait_for_documents_that_cost_much() {
    let world = World::new(Impairment::default());
    let vms = [(HEAVY, heavy()), (OTHER_HEAVY, heavy()), (LIGHT, "name: light\n".to_owned())];
    let vms = vms.map(|(number, config)| {
        let vmid = VmId::new(number).unwrap();
        (vmid, Arc::new(conf::parse(vmid, config.as_bytes()).vm))
    });
    let node = Node::new(Arc::new(Fixtures(HashMap::from(vms))), Rules::default(), Emulation::default());
    let router = Router::new(Settings::default());
    let [heavy, other, light] = [(0, HEAVY), (1, OTHER_HEAVY), (2, LIGHT)]
        .map(|(slot, vmid)| plug_router(&world, &node, slot, vmid, router.clone()));
    let end = Instant::now() + Duration::from_secs(4);
    let hammered = tokio::spawn(hammer(heavy, "/openstack/latest/vendor_data.json", end));
    let mut neighbour = client(&light).await;
    let mut other = client(&other).await;
    sleep(Duration::from_millis(300)).await;
    // Another VM with much to do waits for one answer at a time, and not for all sixteen.
    let waits = tokio::spawn(async move {
        let mut times = Vec::new();
        while Instant::now() < end {
            let asked = Instant::now();
            head(&mut other, "/openstack/latest/vendor_data.json").await;
            times.push(asked.elapsed());
        }
        times
    });
    let mut times = Vec::new();
    let mut due = Instant::now();
    while due < end {
        sleep_until(due).await;
        head(&mut neighbour, "/latest/meta-data/instance-id").await;
        // From when it was due: a thread that is not there for the timer is not there for the guest either.
        times.push(due.elapsed());
        due = (due + Duration::from_millis(10)).max(Instant::now());
    }
    let (light, heavy, other) = (median(times), median(hammered.await.unwrap()), median(waits.await.unwrap()));
    println!("medians: light {light:?}, heavy with {CLIENTS} clients {heavy:?}, heavy with one {other:?}");
    assert!(light * 5 <= heavy, "the neighbour waits {light:?}, the guest itself {heavy:?}");
    assert!(other * 2 <= heavy, "who asks for one thing waits {other:?}, who asks for sixteen {heavy:?}");
}
