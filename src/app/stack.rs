//! The tower stack: what happens to every request of one guest, outermost first.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use pve_imds_middleware::catch::CatchLayer;
use pve_imds_middleware::classify::ClassifyLayer;
use pve_imds_middleware::deadline::DeadlineLayer;
use pve_imds_middleware::emulate::EmulateLayer;
use pve_imds_middleware::guard::{GuardLayer, GuardSettings};
use pve_imds_middleware::identify::IdentifyLayer;
use pve_imds_middleware::limits::{Allowance, GuestLimits, LimitsLayer};
use pve_imds_middleware::rescue::RescueLayer;
use pve_imds_middleware::telemetry::TelemetryLayer;
use pve_imds_middleware::tokens::{TokenLayer, TokenShares};
use pve_imds_middleware::{RequestBody, ResponseBody, bounds, boxed};
use pve_imds_model::fault::Fault;
use pve_imds_model::request::{Directory, Emulation, Link, Peer};
use pve_imds_transport::{self as transport, bpf::Bucket};
use tower::{Service, ServiceBuilder};

/// What a guest may ask, and how much of it.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Names, sizes.
    pub guard: GuardSettings,
    /// How often, how many at once.
    pub allowance: Allowance,
    /// How many connections it may try to open.
    pub bucket: Bucket,
}

/// What all guests' stacks share.
#[derive(Clone)]
pub struct Node {
    /// Whose interface is it?
    pub directory: Arc<dyn Directory>,
    /// Names, sizes.
    pub guard: GuardLayer,
    /// Each guest's share.
    pub allowance: Allowance,
    /// Each VM's share of identity tokens, through whichever of its interfaces it asks.
    pub tokens: TokenShares,
    /// What VMs are shown unless they say otherwise.
    pub emulation: Emulation,
}

impl Node {
    /// Guests are looked up in `directory`.
    #[must_use]
    pub fn new(directory: Arc<dyn Directory>, rules: Rules, emulation: Emulation) -> Self {
        let (guard, tokens) = (GuardLayer::new(rules.guard), TokenShares::default());
        Self { directory, guard, allowance: rules.allowance, tokens, emulation }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("emulation", &self.emulation).finish_non_exhaustive()
    }
}

/// What stands at the bottom of the stack: the product's router, or a test's.
pub trait Answers:
    Service<Request<RequestBody>, Response = Response<ResponseBody>, Error = Fault, Future: Send + 'static>
    + Clone
    + Send
    + 'static
{
}

impl<R> Answers for R where
    R: Service<Request<RequestBody>, Response = Response<ResponseBody>, Error = Fault, Future: Send + 'static>
        + Clone
        + Send
        + 'static
{
}

/// The stack of the guest behind `link`, around `router`. Made once for each interface: what is fixed while it lives
/// is decided here and not per request. Clones share the guest's limits.
pub fn stack<R: Answers>(
    node: &Node,
    link: Link,
    router: R,
) -> impl Service<Request<RequestBody>, Response = Response<ResponseBody>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ 'static {
    ServiceBuilder::new()
        // Outside everything: a panic anywhere below costs one answer and nobody else's connection.
        .layer(CatchLayer::new(link))
        // Above rescue, so that it sees how every request ended, refusals and all; below catch, which ends what it
        // cannot see the end of.
        .layer(TelemetryLayer::new(link))
        // Above rescue, which speaks the endpoint's language, and first of all that look at the path.
        .layer(ClassifyLayer::new())
        // Below it errors are errors, above it they are answers.
        .layer(RescueLayer::new(link))
        // Before anything is spent on the request.
        .layer(LimitsLayer::new(GuestLimits::of(node.allowance)))
        // Around all that can take time; a refused request never starts the clock.
        .layer(DeadlineLayer::new(bounds::REQUEST_TIME))
        // Forwarded, misnamed and oversized requests end before anyone looks the guest up.
        .layer(node.guard.clone())
        // Beyond its share a VM costs nobody a signature, and no look at who else has its UUID.
        .layer(TokenLayer::new(node.tokens.clone(), link.tap.vmid))
        // Never rejects: some endpoints answer whatever breaks.
        .layer(IdentifyLayer::new(node.directory.clone(), link))
        // Last, because a VM's own policy will decide it.
        .layer(EmulateLayer::new(node.emulation))
        .service(router)
}

/// A request as the transport hands it over, made into one the stack takes: its body as the one type, its far end in
/// the model's words.
pub fn adopt(request: Request<hyper::body::Incoming>) -> Request<RequestBody> {
    let peer = request.extensions().get::<transport::Peer>().copied();
    let mut request = request.map(boxed);
    if let Some(transport::Peer { mac, ip, port }) = peer {
        request.extensions_mut().insert(Peer { mac, ip, port });
    }
    request
}
