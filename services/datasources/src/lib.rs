//! Which URL is answered by whom, in which bytes.
//!
//! In comes a request whose extensions say what it asks for ([`Endpoint`]) and who asks ([`Caller`]); out goes a whole
//! answer or a [`Fault`], which `middleware/rescue` turns into one. One file per URL family; [`user_data`] is the road
//! that all of them share. Refused: to guess who is asking, to speak status codes, and to answer with half of anything.
#![forbid(unsafe_code)]

mod nocloud;
mod reply;
pub mod user_data;

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use pve_imds_model::fault::Fault;
use pve_imds_model::request::{Caller, Endpoint, UnknownCaller};
use tower::Service;

pub use reply::{Body, BoxError};

/// The methods of everything that is only read.
const READ: &str = "GET, HEAD";

/// What this node serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `/nocloud/…`; without it these paths do not exist.
    pub nocloud_enabled: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { nocloud_enabled: true }
    }
}

/// The innermost service: path to datasource. Cheap to clone, always ready, never waits.
///
/// It reads [`Endpoint`] and [`Caller`] from the request's extensions. Without the first it classifies the path itself;
/// without the second the caller is unknown, so a stack that forgot to identify gives nobody's data away.
#[derive(Clone, Debug, Default)]
pub struct Router {
    settings: Settings,
}

impl Router {
    /// A router that serves what `settings` allow.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// The answer to one request.
    fn answer<B>(self, request: &Request<B>) -> Result<Response<Body>, Fault> {
        let extensions = request.extensions();
        let endpoint = extensions.get().copied().unwrap_or_else(|| Endpoint::classify(request.uri().path()));
        let nobody = Caller::Unknown(UnknownCaller::NoConfig);
        let caller = extensions.get().unwrap_or(&nobody);

        let file = match endpoint {
            Endpoint::NocloudIndex => nocloud::File::Index,
            Endpoint::NocloudMetaData => nocloud::File::MetaData,
            Endpoint::NocloudUserData => nocloud::File::UserData,
            Endpoint::NocloudVendorData => nocloud::File::VendorData,
            Endpoint::NocloudNetworkConfig => nocloud::File::NetworkConfig,
            Endpoint::Pxe | Endpoint::Other => return Err(Fault::not_found()),
        };
        if !self.settings.nocloud_enabled {
            return Err(Fault::not_found());
        }
        // After "is there such a thing", before "who are you": a wrong method is wrong for everyone.
        let head = match *request.method() {
            Method::GET => false,
            Method::HEAD => true,
            _ => return Err(Fault::method_not_allowed(READ)),
        };
        let reply = nocloud::serve(file, caller.require()?)?;
        Ok(if head { reply.into_head() } else { reply.into_response() })
    }
}

impl<B> Service<Request<B>> for Router {
    type Response = Response<Body>;
    type Error = Fault;
    type Future = Ready<Result<Self::Response, Fault>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ready(self.clone().answer(&request))
    }
}
