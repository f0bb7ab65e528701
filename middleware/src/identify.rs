//! Says who asks: the VM behind the interface the request arrived on, and nothing the guest claims.
//!
//! It inserts the [`Link`] and a [`Caller`], which may be one that its own policy keeps from us, and never refuses: an unknown caller is a
//! value, because `/pxe` must let a machine boot from its disk whatever breaks. Everybody else calls [`Caller::require`].
//! The lookup is from memory and is made anew for each request, so a change of configuration reaches connections that are
//! already open.
//!
//! ```
//! use std::sync::Arc;
//! use http::{Request, Response};
//! use pve_imds_middleware::identify::IdentifyLayer;
//! use pve_imds_model::request::{Caller, Directory, Link, UnknownCaller};
//! use pve_imds_model::{tap::TapName, vm::Vm};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! struct Nobody;
//! impl Directory for Nobody {
//!     fn find(&self, _: Link) -> Result<Arc<Vm>, UnknownCaller> { Err(UnknownCaller::NoConfig) }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let link = Link { tap: TapName::parse("tap106i0").unwrap(), index: 7, since: 0 };
//! let service = ServiceBuilder::new().layer(IdentifyLayer::new(Arc::new(Nobody), link)).service(service_fn(
//!     |request: Request<()>| async move {
//!         assert!(matches!(request.extensions().get(), Some(Caller::Unknown(UnknownCaller::NoConfig))));
//!         Ok::<_, std::convert::Infallible>(Response::new(()))
//!     },
//! ));
//! service.oneshot(Request::new(())).await.unwrap();
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use pve_imds_model::request::{Caller, Directory, Link};
use tower::{Layer, Service};

/// Makes [`Identify`] for one interface.
#[derive(Clone)]
pub struct IdentifyLayer {
    directory: Arc<dyn Directory>,
    link: Link,
}

impl IdentifyLayer {
    /// `directory` answers whose `link` is.
    #[must_use]
    pub fn new(directory: Arc<dyn Directory>, link: Link) -> Self {
        Self { directory, link }
    }
}

impl fmt::Debug for IdentifyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyLayer").field("link", &self.link).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for IdentifyLayer {
    type Service = Identify<S>;

    fn layer(&self, inner: S) -> Identify<S> {
        Identify { inner, directory: Arc::clone(&self.directory), link: self.link }
    }
}

/// Tells those below who asks.
#[derive(Clone)]
pub struct Identify<S> {
    inner: S,
    directory: Arc<dyn Directory>,
    link: Link,
}

impl<S: fmt::Debug> fmt::Debug for Identify<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identify").field("inner", &self.inner).field("link", &self.link).finish_non_exhaustive()
    }
}

impl<S, B> Service<Request<B>> for Identify<S>
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
        let caller = match self.directory.find(self.link) {
            Ok(vm) => {
                // Recorded here and not where the span is made: the interface's name only claims a VMID.
                tracing::Span::current().record("vmid", vm.vmid.get());
                let caller = Caller::admit(vm, self.link, request.extensions().get().copied());
                if let Caller::Refused(_, refusal) = &caller {
                    tracing::debug!(tap = %self.link.tap, ?refusal, "its policy lets this VM have nothing");
                }
                caller
            }
            Err(unknown) => {
                let vmid = self.link.tap.vmid.get();
                tracing::debug!(tap = %self.link.tap, vmid, reason = %unknown, "nobody known behind this interface");
                Caller::Unknown(unknown)
            }
        };
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(self.link);
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::Response;
    use pve_imds_model::conf;
    use pve_imds_model::request::UnknownCaller;
    use pve_imds_model::vm::Vm;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::testing::link;

    /// Knows the VMs of taps in its list, and learns.
    struct Some106(Mutex<Option<Arc<Vm>>>);

    impl Directory for Some106 {
        fn find(&self, link: Link) -> Result<Arc<Vm>, UnknownCaller> {
            assert_eq!((link.tap.vmid.get(), link.index), (106, 7), "asked about the interface it was built for");
            self.0.lock().unwrap().clone().ok_or(UnknownCaller::NotReady)
        }
    }

    #[tokio::test]
    async fn each_request_asks_anew_and_none_is_refused() {
        let directory = Arc::new(Some106(Mutex::new(None)));
        let link = link();
        let service =
            IdentifyLayer::new(directory.clone(), link).layer(service_fn(|request: Request<()>| async move {
                let answer = match request.extensions().get::<Caller>().unwrap() {
                    Caller::Known(vm) => vm.vmid.to_string(),
                    other => format!("{other:?}"),
                };
                Ok::<_, Infallible>(Response::new(answer))
            }));
        let ask = || async { service.clone().oneshot(Request::new(())).await.unwrap().into_body() };

        assert_eq!(ask().await, "Unknown(NotReady)");
        *directory.0.lock().unwrap() = Some(Arc::new(conf::parse(link.tap.vmid, b"name: web\n").vm));
        assert_eq!(ask().await, "106");
        *directory.0.lock().unwrap() = None;
        assert_eq!(ask().await, "Unknown(NotReady)");
    }
}
