//! Every URL of three VMs, byte for byte (`tests/fixtures/trees`).
//!
//! In comes a configuration; out comes what its guest finds by following every listing, from the paths that clients begin
//! with. A tree that changes is written beside the expected one with the extension `now`: whoever meant it moves it there.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG};
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use pve_imds_datasources::{Router, Settings};
use pve_imds_model::conf;
use pve_imds_model::endpoint::{EC2_VERSIONS, Endpoint, OPENSTACK_VERSIONS};
use pve_imds_model::request::{Caller, Emulation, Link};
use pve_imds_model::tap::TapName;
use pve_imds_model::vm::{Vm, VmId};
use tower::ServiceExt;

const TREES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/trees");

/// A guest and its router.
struct Guest {
    vm: Arc<Vm>,
    router: Router,
}

impl Guest {
    fn of(vmid: u32, config: &[u8]) -> Self {
        let vm = Arc::new(conf::parse(VmId::new(vmid).unwrap(), config).vm);
        Self { vm, router: Router::new(Settings { node: "pve1".to_owned(), ..Settings::default() }) }
    }

    /// Status, content type and body.
    async fn ask(&self, method: Method, path: &str) -> (u16, String, Bytes) {
        let mut request = Request::builder().method(method).uri(path).body(Empty::<Bytes>::new()).unwrap();
        let tap = TapName { vmid: self.vm.vmid, nic: 0 };
        request.extensions_mut().insert(Caller::admit(Arc::clone(&self.vm), Link { tap, index: 1, since: 0 }, None));
        request.extensions_mut().insert(Link { tap, index: 1, since: 0 });
        request.extensions_mut().insert(self.vm.emulation(Emulation::Auto));
        match self.router.clone().oneshot(request).await {
            Ok(response) => {
                let kind = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
                assert!(response.headers().contains_key(ETAG), "{path}");
                (response.status().as_u16(), kind, response.into_body().collect().await.unwrap().to_bytes())
            }
            Err(fault) => (fault.status(), "-".to_owned(), Bytes::from(fault.text())),
        }
    }

    /// Everything below `path`, and `path`, into `tree`.
    async fn walk(&self, path: &str, tree: &mut String) {
        let (status, kind, body) = self.ask(Method::GET, path).await;
        writeln!(tree, "== {status} {kind} {path}\n{}", String::from_utf8_lossy(&body)).unwrap();
        // A directory has its slash or has none, a leaf too.
        let slashed = format!("{}/", path.trim_end_matches('/'));
        for other in [&*slashed, path.trim_end_matches('/'), &path.replacen('/', "//", 2)] {
            if other.starts_with('/') {
                assert_eq!(self.ask(Method::GET, other).await, (status, kind.clone(), body.clone()), "{other}");
            }
        }
        let (head, _, nothing) = self.ask(Method::HEAD, path).await;
        assert_eq!(head, status, "HEAD {path}");
        assert!(nothing.is_empty() || status >= 400, "HEAD {path}");
        if status == 200 && is_listing(path) {
            for line in String::from_utf8_lossy(&body).lines() {
                let below = line.split_once('=').map_or_else(|| line.to_owned(), |(number, _)| format!("{number}/"));
                let below = format!("{slashed}{below}");
                Box::pin(self.walk(&below, tree)).await;
                assert!(self.ask(Method::GET, &below).await.0 != 404, "{below} is listed");
            }
        }
    }
}

fn is_listing(path: &str) -> bool {
    let below = |name: &str| path.ends_with('/') || path.ends_with(name);
    match Endpoint::classify(path) {
        Endpoint::NocloudIndex => true,
        Endpoint::OpenstackIndex | Endpoint::Ec2Index => path.matches('/').count() > 1 || path == "/latest",
        Endpoint::Ec2MetaData => below("/meta-data"),
        Endpoint::Ec2Dynamic => below("/dynamic"),
        _ => false,
    }
}

#[tokio::test]
async fn each_url_has_its_bytes() {
    let mut changed = Vec::new();
    for vmid in [201, 202, 203] {
        let file = Path::new(TREES).join(vmid.to_string());
        let guest = Guest::of(vmid, &fs::read(file.with_extension("conf")).unwrap());
        let mut tree = String::new();
        for path in
            ["/", "/latest", "/latest/user-data", "/openstack", "/openstack/latest", "/openstack/latest/user_data"]
        {
            guest.walk(path, &mut tree).await;
        }
        guest.walk("/nocloud", &mut tree).await;
        if fs::read_to_string(file.with_extension("tree")).unwrap_or_default() != tree {
            fs::write(file.with_extension("now"), &tree).unwrap();
            changed.push(vmid);
        }
    }
    assert_eq!(changed, Vec::<u32>::new(), "{TREES}: compare the file that ends in .now");
}

/// What one version says, each says.
#[tokio::test]
async fn versions_differ_in_nothing() {
    let guest = Guest::of(201, &fs::read(format!("{TREES}/201.conf")).unwrap());
    for (versions, above, paths) in [
        (OPENSTACK_VERSIONS, "/openstack/", &["", "/meta_data.json", "/network_data.json", "/user_data"][..]),
        (EC2_VERSIONS, "/", &["", "/meta-data/", "/meta-data/instance-id", "/user-data", "/dynamic/"]),
    ] {
        for path in paths {
            let latest = guest.ask(Method::GET, &format!("{above}latest{path}")).await;
            assert_eq!(latest.0, 200, "{path}");
            for version in versions {
                assert_eq!(guest.ask(Method::GET, &format!("{above}{version}{path}")).await, latest, "{version}{path}");
            }
        }
    }
}
