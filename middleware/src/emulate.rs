//! Puts into each request which dialects the VM is shown: what its own policy leaves of the node's setting.
//!
//! It stands below identify, because only there the VM is known. Nothing is refused.
//!
//! ```
//! use http::{Request, Response};
//! use pve_imds_middleware::emulate::EmulateLayer;
//! use pve_imds_model::request::Emulation;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let service = ServiceBuilder::new().layer(EmulateLayer::new(Emulation::Ec2)).service(service_fn(
//!     |request: Request<()>| async move {
//!         assert_eq!(request.extensions().get(), Some(&Emulation::Ec2));
//!         Ok::<_, std::convert::Infallible>(Response::new(()))
//!     },
//! ));
//! service.oneshot(Request::new(())).await.unwrap();
//! # }
//! ```

use std::task::{Context, Poll};

use http::Request;
use pve_imds_model::request::{Caller, Emulation};
use tower::{Layer, Service};

/// Makes [`Emulate`].
#[derive(Clone, Copy, Debug, Default)]
pub struct EmulateLayer {
    setting: Emulation,
}

impl EmulateLayer {
    /// `setting` is what a VM without a policy of its own is shown.
    #[must_use]
    pub fn new(setting: Emulation) -> Self {
        Self { setting }
    }
}

impl<S> Layer<S> for EmulateLayer {
    type Service = Emulate<S>;

    fn layer(&self, inner: S) -> Emulate<S> {
        Emulate { inner, setting: self.setting }
    }
}

/// Tells those below which dialects to speak.
#[derive(Clone, Copy, Debug)]
pub struct Emulate<S> {
    inner: S,
    setting: Emulation,
}

impl<S, B> Service<Request<B>> for Emulate<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let shown = match request.extensions().get() {
            Some(Caller::Known(vm)) => vm.emulation(self.setting),
            _ => self.setting,
        };
        request.extensions_mut().insert(shown);
        self.inner.call(request)
    }
}
