//! Two VMs: the one that asks, and the one whose bytes it must never see.

use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use pve_imds_datasources::Router;
use pve_imds_model::conf;
use pve_imds_model::request::{Caller, Directory, Endpoint, Link, UnknownCaller};
use pve_imds_model::tap::TapName;
use pve_imds_model::vm::{Vm, VmId};
use tower::ServiceExt;

/// Stands in everything that the other VM has.
pub(crate) const CANARY: &str = "zebrafinch";

const OWN: u32 = 100;
const OTHER: u32 = 101;

/// What a VM hears at each path that it can find.
pub(crate) static DOCUMENTS: LazyLock<Vec<Bytes>> = LazyLock::new(|| {
    let mut found = Vec::new();
    for file in ["", "meta-data", "user-data", "vendor-data", "network-config"] {
        found.push(body(Method::GET, &format!("/nocloud/{file}"), &own()).unwrap());
    }
    crawl("/openstack", &mut found);
    crawl("/", &mut found);
    found
});

/// Everything that listings name, each of which must be there.
fn crawl(path: &str, found: &mut Vec<Bytes>) {
    let here = body(Method::GET, path, &own()).unwrap_or_else(|status| panic!("{path} is listed: {status}"));
    found.push(here.clone());
    let is_listing = match Endpoint::classify(path) {
        Endpoint::OpenstackIndex | Endpoint::Ec2Index => true,
        Endpoint::Ec2MetaData => path.ends_with('/') || path.ends_with("/meta-data"),
        Endpoint::Ec2Dynamic => path.ends_with('/') || path.ends_with("/dynamic"),
        _ => false,
    };
    for line in std::str::from_utf8(&here).unwrap_or_default().lines().filter(|_| is_listing) {
        // `0=name` is asked for as `0/`.
        let below = line.split_once('=').map_or_else(|| line.to_owned(), |(number, _)| format!("{number}/"));
        crawl(&format!("{}/{below}", path.trim_end_matches('/')), found);
    }
}

/// What a router of defaults says to this request of this caller: the body, or the status of the fault.
pub(crate) fn body(method: Method, target: &str, caller: &Caller) -> Result<Bytes, u16> {
    let request = Request::builder().method(method).uri(target).body(Empty::<Bytes>::new()).map_err(|_| 0u16)?;
    answer(&Router::default(), request, caller)
}

/// What `router` says.
pub(crate) fn answer(router: &Router, mut request: Request<Empty<Bytes>>, caller: &Caller) -> Result<Bytes, u16> {
    request.extensions_mut().insert(caller.clone());
    request.extensions_mut().insert(link());
    let answer = async {
        let response = router.clone().oneshot(request).await.map_err(|fault| fault.status())?;
        Ok(response.into_body().collect().await.unwrap().to_bytes())
    };
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a document waits for nothing"),
    }
}

/// The VM that asks.
pub(crate) fn own() -> Caller {
    static VM: LazyLock<Arc<Vm>> = LazyLock::new(|| vm(OWN, "heron"));
    Caller::Known(VM.clone())
}

/// Knows both.
pub(crate) struct Both {
    vms: [Arc<Vm>; 2],
}

impl Both {
    pub(crate) fn new() -> Self {
        Self { vms: [vm(OWN, "heron"), vm(OTHER, CANARY)] }
    }
}

impl Directory for Both {
    fn find(&self, link: Link) -> Result<Arc<Vm>, UnknownCaller> {
        self.vms.iter().find(|vm| vm.vmid == link.tap.vmid).cloned().ok_or(UnknownCaller::NoConfig)
    }
}

/// The interface of the VM that asks.
pub(crate) fn link() -> Link {
    Link { tap: TapName { vmid: VmId::new(OWN).unwrap(), nic: 0 }, index: 1, since: 0 }
}

/// A VM whose every text is `word`.
fn vm(number: u32, word: &str) -> Arc<Vm> {
    let vmid = VmId::new(number).unwrap();
    let config = format!(
        "#<!--#user-data\n##cloud-config {word}\n#-->\n#<!--#network-config\n#version%3A 2 # {word}\n#-->\n\
         name: {word}\nnet0: virtio=BC:24:11:00:00:{:02X},bridge=vmbr0\n",
        number & 0xff
    );
    Arc::new(conf::parse(vmid, config.as_bytes()).vm)
}
