//! The daemon with a test's service at the bottom of its stack, in this process.
//!
//! The product serves nothing that takes megabytes from a guest yet; the way there has to carry them all the same.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use http::{Request, Response};
use http_body_util::BodyExt;
use pve_imds::app::{self, stack::Rules};
use pve_imds::config;
use pve_imds_middleware::guard::GuardSettings;
use pve_imds_middleware::{RequestBody, ResponseBody, full};
use pve_imds_model::fault::Fault;
use pve_imds_observability::{Settings, install};
use tokio::sync::oneshot;

use super::{Node, until};

/// A daemon that takes every body and says how long it was.
pub struct Sink {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Bytes taken, all requests together.
    pub taken: Arc<AtomicU64>,
}

impl Sink {
    /// Starts it in the node's namespace and waits until it serves.
    pub fn start(node: &Node) -> Self {
        let taken = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = oneshot::channel();
        let (counter, config) = (taken.clone(), node.config());
        let enter = node.namespace.door();
        let thread = std::thread::spawn(move || {
            enter();
            let metrics = install(&Settings { level: "warn".into(), ..Settings::default() }).unwrap().metrics().clone();
            let checked = config::load(Some(&config)).unwrap().checked;
            let guard = GuardSettings { body_limit: 64 << 20, ..GuardSettings::default() };
            let rules = Rules { guard, ..Rules::default() };
            let service = tower::service_fn(move |request| swallow(request, counter.clone()));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let stop = async { drop(stopped.await) };
            runtime.block_on(app::serve(checked, metrics, rules, |_, _, _| service, stop)).unwrap();
        });
        until("the sink is healthy", || node.management("/healthz"));
        Self { stop: Some(stop), thread: Some(thread), taken }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn swallow(request: Request<RequestBody>, taken: Arc<AtomicU64>) -> Result<Response<ResponseBody>, Fault> {
    let mut body = request.into_body();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Fault::bad_request().because(error))?;
        length += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    taken.fetch_add(length, Ordering::Relaxed);
    Ok::<_, Infallible>(Response::new(full(format!("took {length}\n")))).map_err(|never| match never {})
}
