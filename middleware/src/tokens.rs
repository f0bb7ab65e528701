//! A VM's share of identity tokens: so many a second, over all its interfaces together.
//!
//! A token costs a signature, which is a thousand times what another answer costs. It stands below guard, so that what is
//! refused anyway costs no share, and above all that looks for who asks. Requests for anything else pass untouched. A
//! request beyond the share is refused with the true wait, and with a 429: who asks for tokens is a program that knows it.
//!
//! ```
//! use http::{Request, Response};
//! use pve_imds_middleware::tokens::{TokenLayer, TokenShares};
//! use pve_imds_model::fault::Fault;
//! use pve_imds_model::vm::VmId;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let service = ServiceBuilder::new()
//!     .layer(TokenLayer::new(TokenShares::default(), VmId::new(106).unwrap()))
//!     .service(service_fn(|_: Request<()>| async { Ok::<_, Fault>(Response::new(())) }));
//! service.oneshot(Request::new(())).await.unwrap();
//! # }
//! ```

use std::fmt;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use governor::Quota;
use governor::clock::Clock;
use http::{Method, Request, Response};
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::request::Endpoint;
use pve_imds_model::vm::VmId;
use tower::{Layer, Service};

use crate::bounds::{TOKEN_BURST, TOKENS_PER_SECOND};
use crate::clock::{Buckets, buckets};

/// VMs whose shares are remembered, before it is looked for those that are full again.
const MAX_SHARES: usize = 1024;

/// What is left of each VM's share. Clones are the same shares: make one for a node.
#[derive(Clone)]
pub struct TokenShares(Arc<Buckets<VmId>>);

impl TokenShares {
    fn take(&self, vmid: VmId) -> Result<(), Fault> {
        if self.0.len() >= MAX_SHARES {
            self.0.retain_recent();
        }
        self.0.check_key(&vmid).map_err(|refused| {
            let wait = RetryAfter::at_least(refused.wait_time_from(self.0.clock().now()));
            Fault::too_many_requests(Outcome::TokenRateLimited, wait)
        })
    }
}

impl Default for TokenShares {
    fn default() -> Self {
        Self(Arc::new(buckets(Quota::per_second(TOKENS_PER_SECOND).allow_burst(TOKEN_BURST))))
    }
}

impl fmt::Debug for TokenShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenShares").field("vms", &self.0.len()).finish()
    }
}

/// Makes [`Tokens`] for one VM.
#[derive(Clone, Debug)]
pub struct TokenLayer {
    shares: TokenShares,
    vmid: VmId,
}

impl TokenLayer {
    /// `vmid` draws from its own of `shares`.
    #[must_use]
    pub fn new(shares: TokenShares, vmid: VmId) -> Self {
        Self { shares, vmid }
    }
}

impl<S> Layer<S> for TokenLayer {
    type Service = Tokens<S>;

    fn layer(&self, inner: S) -> Tokens<S> {
        Tokens { inner, share: self.clone() }
    }
}

/// Refuses identity tokens beyond the VM's share.
#[derive(Clone, Debug)]
pub struct Tokens<S> {
    inner: S,
    share: TokenLayer,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Tokens<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Error = Fault>,
{
    type Response = S::Response;
    type Error = Fault;
    type Future = Either<S::Future, Ready<Result<Response<ResBody>, Fault>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let asks = request.extensions().get() == Some(&Endpoint::IdentityToken) && request.method() == Method::POST;
        let TokenLayer { shares, vmid } = &self.share;
        match if asks { shares.take(*vmid) } else { Ok(()) } {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(fault) => Either::Right(ready(Err(fault))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tokio::time::advance;
    use tower::{ServiceExt, service_fn};

    use super::*;

    async fn ask(shares: &TokenShares, vmid: u32, method: Method, endpoint: Endpoint) -> Result<(), Fault> {
        let service = service_fn(|_: Request<()>| async { Ok::<_, Fault>(Response::new(())) });
        let mut request = Request::new(());
        *request.method_mut() = method;
        request.extensions_mut().insert(endpoint);
        TokenLayer::new(shares.clone(), VmId::new(vmid).unwrap()).layer(service).oneshot(request).await.map(drop)
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_is_ten_a_second_and_twenty_at_once() {
        let shares = TokenShares::default();
        let token = |vmid| ask(&shares, vmid, Method::POST, Endpoint::IdentityToken);
        for _ in 0..20 {
            token(106).await.unwrap();
        }
        let refused = token(106).await.unwrap_err();
        let wait = refused.retry_after().map(RetryAfter::seconds);
        assert_eq!((refused.status(), refused.outcome(), wait), (429, Outcome::TokenRateLimited, Some(1)));
        token(107).await.expect("another VM has its own share");
        ask(&shares, 106, Method::GET, Endpoint::IdentityToken).await.expect("no token is asked for");
        ask(&shares, 106, Method::POST, Endpoint::OpenstackPassword).await.expect("nothing that is signed");
        advance(Duration::from_secs(1)).await;
        for _ in 0..10 {
            token(106).await.unwrap();
        }
        token(106).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn shares_that_are_full_are_forgotten() {
        let shares = TokenShares::default();
        for vmid in (100..).take(MAX_SHARES) {
            ask(&shares, vmid, Method::POST, Endpoint::IdentityToken).await.unwrap();
        }
        assert_eq!(shares.0.len(), MAX_SHARES);
        advance(Duration::from_secs(3)).await;
        ask(&shares, 99_999, Method::POST, Endpoint::IdentityToken).await.unwrap();
        assert_eq!(shares.0.len(), 1);
    }
}
