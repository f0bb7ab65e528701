//! The product's whole stack over the wire's twin: what a guest hears, from its first frame to the last byte.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use pve_imds::app::admission::Admission;
use pve_imds::app::stack::{Node, Rules, adopt, stack};
use pve_imds_datasources::backends::pve::Inventory;
use pve_imds_datasources::backends::testing::PveTree;
use pve_imds_datasources::{Router, Settings};
use pve_imds_model::conf;
use pve_imds_model::exclude::Exclude;
use pve_imds_model::request::{Directory, Emulation, Link, UnknownCaller};
use pve_imds_model::tap::TapName;
use pve_imds_model::vm::{Vm, VmId};
use pve_imds_transport::Server;
use pve_imds_transport::testing::{Impairment, Nic};
use tower::ServiceBuilder;

use crate::support::{World, client, mac, seat};

/// The VMs of the fixtures, and nobody else.
pub struct Fixtures(pub HashMap<VmId, Arc<Vm>>);

impl Fixtures {
    fn load() -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qemu-conf");
        let vms = (1001..=1009).map(|number| {
            let vmid = VmId::new(number).unwrap();
            let bytes = std::fs::read(format!("{folder}/{number}.conf")).unwrap();
            (vmid, Arc::new(conf::parse(vmid, &bytes).vm))
        });
        Self(vms.collect())
    }
}

impl Directory for Fixtures {
    fn find(&self, link: Link) -> Result<Arc<Vm>, UnknownCaller> {
        self.0.get(&link.tap.vmid).cloned().ok_or(UnknownCaller::NoConfig)
    }
}

/// A guest of this VM, behind the product's stack.
fn plug(world: &World, node: &Node, slot: u16, vmid: u32) -> Nic {
    plug_router(world, node, slot, vmid, Router::new(Settings::default()))
}

pub fn plug_router(world: &World, node: &Node, slot: u16, vmid: u32, router: Router) -> Nic {
    let link = Link { tap: TapName { vmid: VmId::new(vmid).unwrap(), nic: 0 }, index: u32::from(slot) + 1, since: 0 };
    let service = ServiceBuilder::new().map_request(adopt).service(stack(node, link, router));
    world.guests.add(seat(slot, 0), Box::new(Server::new(service, world.drain.subscribe())));
    world.switch.plug(seat(slot, 0), mac(slot), Ipv4Addr::new(169, 254, 1, 2), None)
}

fn node() -> Node {
    Node::new(Arc::new(Fixtures::load()), Rules::default(), Emulation::default())
}

struct Answer {
    status: u16,
    retry_after: Option<String>,
    body: Bytes,
}

async fn ask(client: &mut SendRequest<Full<Bytes>>, method: Method, path: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "169.254.169.254");
    let response = client.send_request(request.body(Full::default()).unwrap()).await.unwrap();
    let retry_after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    let status = response.status().as_u16();
    Answer { status, retry_after, body: response.into_body().collect().await.unwrap().to_bytes() }
}

/// What a client of the NoCloud datasource does: one connection for each file.
async fn boot(nic: &Nic) -> [Bytes; 4] {
    let mut files = Vec::new();
    for file in ["meta-data", "user-data", "vendor-data", "network-config"] {
        let mut client = client(nic).await;
        let answer = ask(&mut client, Method::GET, &format!("/nocloud/{file}")).await;
        assert_eq!(answer.status, 200, "{file}");
        files.push(answer.body);
    }
    files.try_into().unwrap()
}

const USER_DATA_1001: &str = "#cloud-config\nhostname: web-01\nusers:\n  - name: ops\n    passwd: \"$6$r%ounds$abc/DEF.\"\nruncmd:\n  - [ sh, -c, \"echo 100% über; date +%F\" ]";

#[tokio::test(start_paused = true)]
async fn a_boot_sequence_gets_the_vms_own_files() {
    let world = World::new(Impairment::default());
    let nic = plug(&world, &node(), 0, 1001);
    let [meta, user, vendor, network] = boot(&nic).await;
    assert_eq!(meta, "instance-id: \"6f1c1c1e-9d1b-4c57-9d61-0a1f7a6d0001\"\nlocal-hostname: \"web-01\"\n");
    assert_eq!(user, USER_DATA_1001);
    assert_eq!(vendor, "");
    assert!(network.windows(19).any(|bytes| bytes == b"\"bc:24:11:00:00:01\""), "{network:?}");
}

#[tokio::test(start_paused = true)]
async fn boots_over_lossy_links_are_whole_and_nobody_elses() {
    let world = World::new(Impairment {
        delay: Duration::from_millis(1),
        loss: 50,
        duplicate: 20,
        seed: 7,
        ..Impairment::default()
    });
    let node = node();
    let boots: Vec<_> = (1001..=1009u32)
        .enumerate()
        .map(|(slot, vmid)| {
            let nic = plug(&world, &node, slot.try_into().unwrap(), vmid);
            tokio::spawn(async move { (vmid, boot(&nic).await) })
        })
        .collect();
    let fixtures = Fixtures::load();
    for boot in boots {
        let (vmid, [meta, user, _, _]) = boot.await.unwrap();
        let vm = &fixtures.0[&VmId::new(vmid).unwrap()];
        let expected = format!("instance-id: \"{}\"\nlocal-hostname: \"{}\"\n", vm.instance_id(), vm.hostname());
        assert_eq!(meta, expected, "{vmid}");
        assert_eq!(user, if vmid == 1001 { USER_DATA_1001 } else { "" }, "{vmid}");
    }
    assert!(world.switch.lost() > 5, "the links were lossy");
}

#[tokio::test(start_paused = true)]
async fn every_refusal_speaks_the_clients_language() {
    let world = World::new(Impairment::default());
    let node = node();
    let (known, unknown) = (plug(&world, &node, 0, 1001), plug(&world, &node, 1, 4711));
    for (nic, method, path, status, retry_after, body) in [
        (&unknown, Method::GET, "/nocloud/meta-data", 503, Some("1"), "vm_unknown\n"),
        (&unknown, Method::GET, "/pxe", 200, None, "#!ipxe\nexit\n"),
        (&known, Method::GET, "/pxe", 200, None, "#!ipxe\nexit\n"),
        (&known, Method::GET, "/latest/meta-data/x", 404, None, ""),
        (&known, Method::PUT, "/nocloud/meta-data", 405, None, "method_not_allowed\n"),
        (&known, Method::HEAD, "/nocloud/meta-data", 200, None, ""),
        (&known, Method::GET, "/nocloud", 200, None, "meta-data\nuser-data\nvendor-data\nnetwork-config\n"),
        (&known, Method::GET, "/nocloud//vendor-data/", 200, None, ""),
    ] {
        let mut client = client(nic).await;
        let answer = ask(&mut client, method.clone(), path).await;
        assert_eq!(answer.status, status, "{method} {path}");
        assert_eq!(answer.retry_after.as_deref(), retry_after, "{method} {path}");
        assert_eq!(answer.body, body, "{method} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn nocloud_can_be_switched_off() {
    let world = World::new(Impairment::default());
    let nic =
        plug_router(&world, &node(), 0, 1001, Router::new(Settings { nocloud_enabled: false, ..Settings::default() }));
    let mut client = client(&nic).await;
    assert_eq!(ask(&mut client, Method::GET, "/nocloud/meta-data").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_asks_too_often_waits_and_its_neighbour_does_not() {
    let world = World::new(Impairment::default());
    let node = node();
    let (greedy, modest) = (plug(&world, &node, 0, 1001), plug(&world, &node, 1, 1002));
    let mut connection = client(&greedy).await;
    let mut refused = 0;
    for _ in 0..2000 {
        let answer = ask(&mut connection, Method::GET, "/nocloud/meta-data").await;
        if answer.status == 503 {
            assert!(answer.retry_after.is_some());
            refused += 1;
        }
    }
    assert!(refused > 0, "a guest's share is bounded");
    boot(&modest).await;
}

/// One VM that has this policy at the moment.
struct OnePolicy(Mutex<&'static str>);

impl Directory for OnePolicy {
    fn find(&self, link: Link) -> Result<Arc<Vm>, UnknownCaller> {
        let policy = *self.0.lock().unwrap();
        let config = format!("#<!--#imds\n#{policy}\n#-->\nnet0: virtio=BC:24:11:00:00:00,bridge=vmbr0\n");
        Ok(Arc::new(conf::parse(link.tap.vmid, config.as_bytes()).vm))
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_holds_for_connections_that_are_open_already() {
    let world = World::new(Impairment::default());
    let directory = Arc::new(OnePolicy(Mutex::new("")));
    let node = Node::new(directory.clone(), Rules::default(), Emulation::default());
    // The first has the address of the VM's NIC, the second is a container in it.
    let (own, other) = (plug(&world, &node, 0, 1001), plug(&world, &node, 1, 1001));
    let (mut own, mut other) = (client(&own).await, client(&other).await);
    let refused = ((403, "mac_refused\n"), (403, "mac_refused\n"));
    let (served, exits) = ((200, "meta-data\nuser-data\nvendor-data\nnetwork-config\n"), (200, "#!ipxe\nexit\n"));
    let gone = ((404, ""), exits);
    let unread = ((503, "policy_invalid\n"), exits);
    for (policy, to_own, to_other) in [
        ("", (served, exits), (served, exits)),
        ("mac%3A own", (served, exits), refused),
        ("mac%3A any", (served, exits), (served, exits)),
        ("enabled%3A false", gone, gone),
        ("enabled%3A perhaps", unread, unread),
        ("enabled%3A true", (served, exits), (served, exits)),
    ] {
        *directory.0.lock().unwrap() = policy;
        for (client, expected) in [(&mut own, to_own), (&mut other, to_other)] {
            for (path, (status, body)) in [("/nocloud/", expected.0), ("/pxe", expected.1)] {
                let answer = ask(client, Method::GET, path).await;
                let known_to_ipxe = path == "/pxe" && status == 403;
                // Nothing is served to iPXE yet that a policy could keep from it.
                let (status, body) = if known_to_ipxe { exits } else { (status, body) };
                assert_eq!((answer.status, &answer.body[..]), (status, body.as_bytes()), "{policy:?} {path}");
                let waits = (status == 503).then_some("2");
                assert_eq!(answer.retry_after.as_deref(), waits, "{policy:?} {path}");
            }
        }
    }
}

/// Answers with what the VM is shown.
async fn shown(
    request: Request<pve_imds_middleware::RequestBody>,
) -> Result<http::Response<pve_imds_middleware::ResponseBody>, pve_imds_model::fault::Fault> {
    let shown = request.extensions().get::<Emulation>().map_or("none", |emulation| emulation.word());
    Ok(http::Response::new(pve_imds_middleware::full(shown)))
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_shown_what_its_policy_leaves_of_what_the_node_shows() {
    let world = World::new(Impairment::default());
    let directory = Arc::new(OnePolicy(Mutex::new("")));
    let node = Node::new(directory.clone(), Rules::default(), Emulation::Openstack);
    let link = Link { tap: TapName::parse("tap1001i0").unwrap(), index: 1, since: 0 };
    let service = ServiceBuilder::new().map_request(adopt).service(stack(&node, link, tower::service_fn(shown)));
    world.guests.add(seat(0, 0), Box::new(Server::new(service, world.drain.subscribe())));
    let nic = world.switch.plug(seat(0, 0), mac(0), Ipv4Addr::new(169, 254, 1, 2), None);
    let mut client = client(&nic).await;
    for (policy, expected) in [
        ("", "openstack"),
        ("emulate%3A ec2", "ec2"),
        ("emulate%3A auto", "openstack"),
        ("ec2_tokens%3A required", "ec2"),
        ("hop_limit%3A 2", "openstack"),
    ] {
        *directory.0.lock().unwrap() = policy;
        assert_eq!(ask(&mut client, Method::GET, "/").await.body, expected, "{policy}");
    }
}

/// Over the real inventory: what its tree says is what packets do.
#[tokio::test]
async fn answers_travel_as_far_as_the_notes_say_now() {
    let mut tree = PveTree::cluster("pve1").unwrap();
    let config = |policy: &str| format!("#<!--#imds\n#{policy}\n#-->\nnet0: virtio=BC:24:11:00:00:00,bridge=vmbr0\n");
    tree.put(1001, &config("")).unwrap();
    let (inventory, _watcher) = Inventory::open(tree.settings()).unwrap();
    let admission = Admission::new(inventory.clone(), Exclude::default());
    let node = Node::new(inventory.clone(), Rules::default(), Emulation::default());
    let world = World::new(Impairment::default());
    let link = Link { tap: TapName::parse("tap1001i0").unwrap(), index: 1, since: 0 };
    let router = Router::new(Settings::default());
    let service = ServiceBuilder::new().map_request(adopt).service(stack(&node, link, router));
    let server = Server::new(service, world.drain.subscribe()).within(admission.hops(link));
    world.guests.add(seat(0, 0), Box::new(server));
    let nic = world.switch.plug(seat(0, 0), mac(0), Ipv4Addr::new(169, 254, 1, 2), None);
    let mut client = client(&nic).await;
    let mut changes = admission.changes();
    for (policy, hops, status) in [
        ("", 64, 200),
        ("hop_limit%3A 1", 1, 200),
        ("hop_limit%3A 17", 17, 200),
        // Nobody knows what it would have said.
        ("hop_limit%3A 65", 1, 503),
        ("enabled%3A true", 64, 200),
    ] {
        let config = config(policy);
        if inventory.vm(link.tap.vmid).is_none_or(|record| record.digest.to_string() != digest(&config)) {
            tree.put(1001, &config).unwrap();
            while inventory.vm(link.tap.vmid).is_none_or(|record| record.digest.to_string() != digest(&config)) {
                changes.changed().await.unwrap();
            }
        }
        drop(nic.hops());
        assert_eq!(ask(&mut client, Method::GET, "/nocloud/meta-data").await.status, status, "{policy}");
        let travelled = nic.hops();
        assert!(!travelled.is_empty() && travelled.iter().all(|it| *it == hops), "{policy}: {travelled:?}");
    }
}

fn digest(config: &str) -> String {
    pve_imds_datasources::backends::pve::Digest::of(config.as_bytes()).to_string()
}
