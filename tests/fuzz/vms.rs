//! Two VMs: the one that asks, and the one whose bytes it must never see.

use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use pve_imds_datasources::Router;
use pve_imds_model::conf;
use pve_imds_model::request::{Caller, Directory, Link, UnknownCaller};
use pve_imds_model::tap::TapName;
use pve_imds_model::vm::{Vm, VmId};
use tower::ServiceExt;

/// Stands in everything that the other VM has.
pub(crate) const CANARY: &str = "zebrafinch";

const OWN: u32 = 100;
const OTHER: u32 = 101;

/// The paths of a VM's own documents, and what it hears there.
pub(crate) static DOCUMENTS: LazyLock<Vec<(&str, Bytes)>> = LazyLock::new(|| {
    ["/nocloud", "/nocloud/meta-data", "/nocloud/user-data", "/nocloud/vendor-data", "/nocloud/network-config"]
        .into_iter()
        .map(|path| (path, body(Method::GET, path, &own()).unwrap()))
        .collect()
});

/// What the router says to this request of this caller: the body, or the status of the fault.
pub(crate) fn body(method: Method, target: &str, caller: &Caller) -> Result<Bytes, u16> {
    let mut request = Request::builder().method(method).uri(target).body(()).map_err(|_| 0u16)?;
    request.extensions_mut().insert(caller.clone());
    let answer = async {
        let response = Router::default().oneshot(request).await.map_err(|fault| fault.status())?;
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
