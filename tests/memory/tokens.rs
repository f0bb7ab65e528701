//! EC2's session tokens through the whole stack of one guest: what is asked how, and what is said.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use pve_imds::app::stack::{Node, Rules, stack};
use pve_imds_datasources::backends::clock::Clock;
use pve_imds_datasources::backends::keys::NodeKeys;
use pve_imds_datasources::backends::pve::{self, Inventory};
use pve_imds_datasources::backends::testing::PveTree;
use pve_imds_datasources::{Router, Settings};
use pve_imds_middleware::boxed;
use pve_imds_model::conf;
use pve_imds_model::request::{Directory, Emulation, Link, UnknownCaller};
use pve_imds_model::tap::TapName;
use pve_imds_model::vm::{Vm, VmId};
use tower::ServiceExt;

const TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds";
const TOKEN: &str = "x-aws-ec2-metadata-token";
const NOW: u64 = 1_800_000_000;

/// One VM, or none.
struct One(Option<Arc<Vm>>);

impl Directory for One {
    fn find(&self, _: Link) -> Result<Arc<Vm>, UnknownCaller> {
        self.0.clone().ok_or(UnknownCaller::NotReady)
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

/// What `vm` hears on `node`, whose keys these are, at this time.
async fn ask(vm: Option<Arc<Vm>>, (node, keys, now): (&str, &NodeKeys, u64), request: Request<Full<Bytes>>) -> Answer {
    let clock = Clock::new(move || now);
    let router = Router::new(Settings { node: node.to_owned(), keys: keys.clone(), clock, ..Settings::default() });
    let link = Link { tap: TapName::parse("tap106i0").unwrap(), index: 1, since: 0 };
    let stands = Node::new(Arc::new(One(vm)), Rules::default(), Emulation::default());
    let response = stack(&stands, link, router).oneshot(request.map(boxed)).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: head.status.as_u16(), headers: head.headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

fn request(method: &Method, path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(path).header("host", "169.254.169.254");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(Full::default()).unwrap()
}

fn vm(number: u32, policy: &str, uuid: &str) -> Arc<Vm> {
    let notes = match policy.split_once("+ ") {
        Some((policy, block)) => format!("#<!--#imds\n#{policy}\n#-->\n#<!--#user-data {block}\n#x\n#-->\n"),
        None => format!("#<!--#imds\n#{policy}\n#-->\n#<!--#user-data\n#x\n#-->\n"),
    };
    let config = format!("{notes}name: web\nsmbios1: uuid={uuid}\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n");
    Arc::new(conf::parse(VmId::new(number).unwrap(), config.as_bytes()).vm)
}

const UUID: &str = "2c8c7c76-a26c-4eb7-b04c-bf52bc095b81";

/// Keys as two nodes of one cluster read them, with the inventory's own eyes.
fn read_keys(tree: &PveTree, node: &str) -> NodeKeys {
    let settings = pve::Settings { node: node.to_owned(), events: false, ..tree.settings() };
    let (inventory, _watcher) = Inventory::open(settings).unwrap();
    inventory.keys().clone()
}

async fn issue(vm: &Arc<Vm>, at: (&str, &NodeKeys, u64), ttl: &str) -> String {
    let answer = ask(Some(Arc::clone(vm)), at, request(&Method::PUT, "/latest/api/token", &[(TTL, ttl)])).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// What a client knows by name: each made in a way of its own.
async fn tokens(keys: &NodeKeys) -> HashMap<&'static str, String> {
    let own = vm(106, "enabled%3A true", UUID);
    let here = ("pve1", keys, NOW);
    let valid = issue(&own, here, "60").await;
    let mut altered = valid.clone().into_bytes();
    altered[40] = if altered[40] == b'A' { b'B' } else { b'A' };
    let other_uuid = UUID.replace("81", "82");
    HashMap::from([
        ("valid", valid.clone()),
        ("last second", issue(&own, ("pve1", keys, NOW - 59), "60").await),
        ("expired", issue(&own, ("pve1", keys, NOW - 60), "60").await),
        ("from later", issue(&own, ("pve1", keys, NOW + 400), "21600").await),
        ("of pve2", issue(&own, ("pve2", keys, NOW), "60").await),
        ("of a stranger", issue(&own, ("pve3", keys, NOW), "60").await),
        ("of another vm", issue(&vm(107, "enabled%3A true", UUID), here, "60").await),
        ("of another uuid", issue(&vm(106, "enabled%3A true", &other_uuid), here, "60").await),
        ("altered", String::from_utf8(altered).unwrap()),
        ("cut", valid[..valid.len() - 1].to_owned()),
        ("longer", format!("{valid}A")),
        ("empty", String::new()),
        ("an error's text", "node_key_unreadable".to_owned()),
        ("endless", "A".repeat(6000)),
    ])
}

/// Method, path, policy and headers: status, what is in the body or a header. `T:` is a token by name, `S:` a time.
type Row = (&'static str, &'static str, &'static str, &'static [&'static str], u16, &'static str);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    // A session begins.
    ("PUT", "/latest/api/token", "optional", &["S:21600"], 200, "ttl: 21600"),
    ("PUT", "/latest/api/token", "optional", &["S:1"], 200, "ttl: 1"),
    ("PUT", "/latest/api/token", "optional", &["S:060"], 200, "ttl: 60"),
    ("PUT", "/latest/api/token/", "optional", &["S:60"], 200, "ttl: 60"),
    ("PUT", "//latest/api//token", "optional", &["S:60"], 200, "ttl: 60"),
    ("PUT", "/latest/api/token", "required", &["S:60"], 200, "ttl: 60"),
    ("PUT", "/latest/api/token", "required, emulate: auto", &["S:60"], 200, "ttl: 60"),
    ("PUT", "/latest/api/token", "emulate: openstack", &["S:60"], 200, "ttl: 60"),
    ("PUT", "/latest/api/token", "emulate: ec2", &["S:60"], 200, "ttl: 60"),
    ("PUT", "/latest/api/token", "optional", &["S:60", "T:valid"], 200, "ttl: 60"),
    ("PUT", "/latest/api/token", "required", &["S:60", "T:expired"], 200, "ttl: 60"),
    ("PUT", "/latest/api/token", "optional", &[], 400, "bad_request"),
    ("PUT", "/latest/api/token", "optional", &["S:0"], 400, "bad_request"),
    ("PUT", "/latest/api/token", "optional", &["S:21601"], 400, "bad_request"),
    ("PUT", "/latest/api/token", "optional", &["S:-1"], 400, "bad_request"),
    ("PUT", "/latest/api/token", "optional", &["S:+1"], 400, "bad_request"),
    ("PUT", "/latest/api/token", "optional", &["S:sixty"], 400, "bad_request"),
    ("PUT", "/latest/api/token", "optional", &["S:"], 400, "bad_request"),
    ("PUT", "/latest/api/token", "optional", &["S:60", "S:60"], 400, "bad_request"),
    ("PUT", "/latest/api/token", "optional", &["S:99999999999999999999"], 400, "bad_request"),
    ("PUT", "/latest/api/token", "optional", &["S:60", "x-forwarded-for: 192.0.2.1"], 403, "forwarded"),
    ("PUT", "/latest/api/token", "optional", &["S:60", "forwarded: for=192.0.2.1"], 403, "forwarded"),
    ("PUT", "/latest/api/token", "optional", &["S:60", "via: 1.1 proxy"], 403, "forwarded"),
    ("PUT", "/latest/api/token", "optional", &["x-forwarded-for: 192.0.2.1"], 403, "forwarded"),
    ("PUT", "/latest/api/token", "enabled: false", &["S:60"], 404, ""),
    ("PUT", "/latest/api/token", "enabled: maybe", &["S:60"], 503, "policy_invalid"),
    ("PUT", "/latest/api/token", "mac: own", &["S:60"], 403, "mac_refused"),
    ("PUT", "/latest/api/token", "enabled: true+ secrets=worker", &["S:60"], 503, "secrets_disabled"),
    ("PUT", "/latest/api/token", "nobody", &["S:60"], 503, "vm_unknown"),
    ("GET", "/latest/api/token", "optional", &["S:60"], 405, "allow: PUT"),
    ("HEAD", "/latest/api/token", "optional", &["S:60"], 405, "allow: PUT"),
    ("POST", "/latest/api/token", "optional", &["S:60"], 405, "allow: PUT"),
    ("DELETE", "/latest/api/token", "required", &["S:60"], 405, "allow: PUT"),
    ("GET", "/latest/api/token", "nobody", &[], 405, "allow: PUT"),
    ("PUT", "/2021-03-23/api/token", "optional", &["S:60"], 404, ""),
    ("PUT", "/latest/api/token/x", "optional", &["S:60"], 404, ""),
    ("PUT", "/latest/api", "optional", &["S:60"], 404, ""),
    ("PUT", "/latest/meta-data/", "optional", &["S:60"], 405, "allow: GET, HEAD"),
    ("PUT", "/latest/user-data", "optional", &["T:valid"], 405, "allow: GET, HEAD"),
    // Where one may do without.
    ("GET", "/latest/meta-data/hostname", "optional", &[], 200, "web"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:valid"], 200, "web"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:of pve2"], 200, "web"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:last second"], 200, "web"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:expired"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:from later"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:of a stranger"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:of another vm"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:of another uuid"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:altered"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:cut"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:longer"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:empty"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:an error's text"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:endless"], 401, "token_invalid"),
    ("GET", "/latest/meta-data/hostname", "optional", &["T:valid", "T:valid"], 401, "token_invalid"),
    ("GET", "/latest/user-data", "optional", &[], 200, "x"),
    ("HEAD", "/latest/user-data", "optional", &["T:altered"], 401, ""),
    ("GET", "/latest/nothing", "optional", &["T:altered"], 404, ""),
    // Where one may not.
    ("GET", "/", "required", &[], 401, "token_required"),
    ("GET", "/latest/", "required", &[], 401, "token_required"),
    ("GET", "/2009-04-04/meta-data/", "required", &[], 401, "token_required"),
    ("GET", "/latest/meta-data/hostname", "required", &[], 401, "token_required"),
    ("HEAD", "/latest/meta-data/hostname", "required", &[], 401, ""),
    ("GET", "/latest/meta-data/nothing", "required", &[], 401, "token_required"),
    ("GET", "/latest/user-data", "required", &[], 401, "token_required"),
    ("GET", "/latest/dynamic/instance-identity/document", "required", &[], 401, "token_required"),
    ("GET", "/latest/meta-data/hostname", "required", &["T:valid"], 200, "web"),
    ("GET", "/latest/meta-data/nothing", "required", &["T:valid"], 404, ""),
    ("GET", "/latest/user-data", "required", &["T:of pve2"], 200, "x"),
    ("GET", "/latest/user-data", "required", &["T:expired"], 401, "token_invalid"),
    ("GET", "/latest/user-data", "required", &["T:of another vm"], 401, "token_invalid"),
    ("GET", "/latest/user-data", "required", &["T:empty"], 401, "token_invalid"),
    ("POST", "/latest/user-data", "required", &[], 405, "allow: GET, HEAD"),
    ("GET", "/latest/user-data", "required", &["T:valid", "via: 1.1 proxy"], 403, "forwarded"),
    // Other dialects know nothing of it; a policy closes them.
    ("GET", "/nocloud/user-data", "optional", &["T:altered"], 200, "x"),
    ("GET", "/openstack/latest/user_data", "optional", &["T:altered"], 200, "x"),
    ("GET", "/nocloud/user-data", "required", &["T:valid"], 404, ""),
    ("GET", "/openstack/latest/user_data", "required", &["T:valid"], 404, ""),
    ("GET", "/openstack/latest/user_data", "required, emulate: auto", &[], 200, "x"),
    ("GET", "/pxe", "required", &[], 200, "#!ipxe"),
];

#[tokio::test(start_paused = true)]
async fn the_table_of_tokens() {
    let tree = PveTree::cluster("pve1").unwrap();
    for node in ["pve2", "pve3"] {
        tree.put_key(node).unwrap();
    }
    let tokens = tokens(&read_keys(&tree, "pve1")).await;
    std::fs::remove_dir_all(tree.path().join("nodes/pve3")).unwrap();
    let keys = read_keys(&tree, "pve1");
    assert!(TABLE.len() >= 60);
    for (method, path, policy, said, status, expected) in TABLE {
        let row = format!("{method} {path} {policy} {said:?}");
        let policy = match policy.split_once(", ") {
            _ if *policy == "optional" || *policy == "required" => format!("ec2_tokens: {policy}"),
            Some((first, second)) => format!("{{ec2_tokens: {first}, {second}}}"),
            None => (*policy).to_owned(),
        };
        let headers = said.iter().map(|header| match header.split_once(':').unwrap() {
            ("S", seconds) => (TTL, seconds),
            ("T", name) => (TOKEN, tokens[name].as_str()),
            (name, value) => (name, value.trim()),
        });
        let request = request(&method.parse().unwrap(), path, &headers.collect::<Vec<_>>());
        let vm = (policy != "nobody").then(|| vm(106, &policy.replace(':', "%3A"), UUID));
        let answer = ask(vm, ("pve1", &keys, NOW), request).await;
        assert_eq!(answer.status, *status, "{row}: {}", answer.body);
        let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().unwrap());
        match expected.split_once(": ") {
            Some(("ttl", seconds)) => {
                assert_eq!(header(TTL), Some(seconds), "{row}");
                assert!(answer.body.len() <= 4096 && answer.body.bytes().all(|b| b.is_ascii_graphic()), "{row}");
                assert!(header("content-type").unwrap().starts_with("text/plain"), "{row}");
                assert_eq!((header("etag"), header("cache-control")), (None, Some("no-store")), "{row}");
            }
            Some((name, value)) => assert_eq!(header(name), Some(value), "{row}"),
            None => {
                let line = answer.body.lines().next().unwrap_or_default();
                let line = if *method == "HEAD" { "" } else { line };
                assert_eq!(line, *expected, "{row}");
            }
        }
        assert_eq!(header("retry-after").is_some(), *status == 503, "{row}");
        assert!(*status != 401 || header("www-authenticate").is_none(), "{row}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_outlives_the_daemon_and_the_node_but_not_the_nodes_key() {
    let tree = PveTree::cluster("a").unwrap();
    tree.put_key("b").unwrap();
    let vm = vm(106, "ec2_tokens%3A required", UUID);
    let token = issue(&vm, ("a", &read_keys(&tree, "a"), NOW), "21600").await;
    let status = async |node: &str, keys: &NodeKeys| {
        let request = request(&Method::GET, "/latest/meta-data/instance-id", &[(TOKEN, &token)]);
        ask(Some(Arc::clone(&vm)), (node, keys, NOW + 3600), request).await.status
    };
    // Read anew by each: no more than the files is shared.
    assert_eq!(status("a", &read_keys(&tree, "a")).await, 200, "a restart");
    assert_eq!(status("b", &read_keys(&tree, "b")).await, 200, "a migration");
    tree.remove_key("b").unwrap();
    assert_eq!(status("b", &read_keys(&tree, "b")).await, 200, "to a node without a key of its own");
    tree.put_key("a").unwrap();
    assert_eq!(status("a", &read_keys(&tree, "a")).await, 401);
    assert_eq!(status("b", &read_keys(&tree, "b")).await, 401);
}

#[tokio::test(start_paused = true)]
async fn without_a_key_nobody_gets_a_token_and_everything_else_goes_on() {
    let plain = PveTree::plain("pve1").unwrap();
    let cluster = PveTree::cluster("pve1").unwrap();
    cluster.remove_key("pve1").unwrap();
    for keys in [read_keys(&plain, "pve1"), read_keys(&cluster, "pve1"), NodeKeys::default()] {
        let vm = vm(106, "ec2_tokens%3A optional", UUID);
        let here = ("pve1", &keys, NOW);
        let refused =
            ask(Some(Arc::clone(&vm)), here, request(&Method::PUT, "/latest/api/token", &[(TTL, "60")])).await;
        assert_eq!((refused.status, refused.body.as_str()), (503, "node_key_unreadable\n"));
        assert_eq!(refused.headers["retry-after"], "2");
        for path in ["/latest/meta-data/hostname", "/nocloud/user-data", "/openstack/latest/meta_data.json"] {
            assert_eq!(ask(Some(Arc::clone(&vm)), here, request(&Method::GET, path, &[])).await.status, 200, "{path}");
        }
    }
}
