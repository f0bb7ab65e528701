//! Which URL is answered by whom, in which bytes.
//!
//! In comes a request whose extensions say what it asks for ([`Endpoint`]) and who asks ([`Caller`]); out goes a whole
//! answer or a [`Fault`], which `middleware/rescue` turns into one. One file per URL family; `user_data` is the road
//! that all of them share. Refused: to guess who is asking, to speak status codes, and to answer with half of anything.
#![forbid(unsafe_code)]

mod book;
mod ec2;
mod entry;
mod held;
mod identity_token;
mod nocloud;
mod openstack;
mod pxe;
mod rendered;
mod reply;
mod subject;
mod user_data;
mod weighing;

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::Either;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pve_imds_backends::clock::Clock;
use pve_imds_backends::keys::{NodeKeys, TokenKeys};
use pve_imds_backends::pve::Inventory;
use pve_imds_backends::resolver::Resolver;
use pve_imds_backends::secrets::Secrets;
use pve_imds_backends::turns::FairTurns;
use pve_imds_model::endpoint::Family;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::pools::PoolId;
use pve_imds_model::request::{Caller, Emulation, Endpoint, Link, UnknownCaller};
use pve_imds_model::site::Site;
use pve_imds_model::vendor::Files;
use pve_imds_model::vm::{Vm, VmId};
use tower::Service;

use self::ec2::Census;
use self::entry::Entered;
use self::held::Held;
use self::identity_token::{MAX_BODY, Mint};
use self::openstack::MAX_PASSWORD;
use self::rendered::{Part, Rendered};
use self::reply::{Kind, Reply};
use self::subject::Subject;

/// What the answers are made from. Whoever builds the router also opens these.
pub use pve_imds_backends as backends;

pub use identity_token::Rules as TokenRules;
pub use openstack::{Password, Passwords};
pub use reply::{Body, BoxError};

/// What this node serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `/nocloud/…`; without it these paths do not exist.
    pub nocloud_enabled: bool,
    /// Proxmox's own cloud-init options are heeded.
    pub cloudinit_enabled: bool,
    /// This node's name.
    pub node: String,
    /// Where the node itself asks for names.
    pub resolver: Resolver,
    /// Which pool a VM is in. Without one none is in any.
    pub inventory: Option<Arc<Inventory>>,
    /// The node's files of vendor data.
    pub vendor: Arc<Files>,
    /// What guests have said about themselves.
    pub passwords: Passwords,
    /// What seals session tokens, and opens them. Without this node's there are none to be had.
    pub keys: NodeKeys,
    /// When they end.
    pub clock: Clock,
    /// What signs identity tokens, and what they are checked with.
    pub token_keys: TokenKeys,
    /// What identity tokens say.
    pub token_rules: Arc<TokenRules>,
    /// What renders user data with secrets; `None`: nobody does.
    pub secrets: Option<Secrets>,
}

/// Says what is counted here. Once, after the recorder is installed.
pub fn describe() {
    ec2::describe();
    rendered::describe();
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nocloud_enabled: true,
            cloudinit_enabled: true,
            node: "localhost".to_owned(),
            resolver: Resolver::default(),
            inventory: None,
            vendor: Arc::default(),
            passwords: Passwords::default(),
            keys: NodeKeys::default(),
            clock: Clock::default(),
            token_keys: TokenKeys::default(),
            token_rules: Arc::default(),
            secrets: None,
        }
    }
}

impl Settings {
    /// What this node adds to its VMs' answers.
    #[must_use]
    pub fn site(&self) -> Site {
        Site {
            cloudinit: self.cloudinit_enabled,
            dns: self.resolver.dns(),
            vendor: Arc::clone(&self.vendor),
            secrets: self.secrets.is_some(),
        }
    }
}

/// The innermost service: path to datasource. Cheap to clone, always ready; it waits for nothing but a body that is
/// taken, and the turn of an answer that there is much to do for.
///
/// It reads [`Endpoint`], [`Caller`], [`Link`] and [`Emulation`] from the request's extensions. Without the first it
/// classifies the path itself; without the second the caller is unknown, so a stack that forgot to identify gives nobody's
/// data away.
#[derive(Clone, Debug, Default)]
pub struct Router {
    settings: Arc<Settings>,
    census: Census,
    entered: Entered,
    mint: Mint,
    held: Held,
    turns: FairTurns<VmId>,
}

/// An answer that is there, or one that waits for a body or its turn.
type Answer =
    Either<Ready<Result<Response<Body>, Fault>>, Pin<Box<dyn Future<Output = Result<Response<Body>, Fault>> + Send>>>;

impl Router {
    /// A router that serves what `settings` allow.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings), ..Self::default() }
    }

    /// The one way in: whether there is such a thing, may be asked for in this way, and who asks. A wrong method is wrong
    /// for everyone, so nobody is looked for before.
    fn enter<'r, B>(&'r self, endpoint: Endpoint, request: &'r Request<B>) -> Result<Subject<'r>, Fault> {
        let extensions = request.extensions();
        let shown = extensions.get().copied().unwrap_or_default();
        let is_there = match endpoint.family() {
            Some(Family::Nocloud) => self.settings.nocloud_enabled,
            Some(Family::Openstack) => shown != Emulation::Ec2,
            Some(Family::Ec2 | Family::Identity) => true,
            Some(Family::Pxe) | None => false,
        };
        if !is_there {
            return Err(Fault::not_found());
        }
        asked_by(request.method(), methods(endpoint))?;
        let vm = extensions.get().unwrap_or(&NOBODY).require()?;
        if endpoint.family() == Some(Family::Nocloud) && vm.keeps_to_ec2() {
            return Err(Fault::not_found());
        }
        Ok(self.subject(vm, extensions.get().copied(), shown))
    }

    fn subject<'r>(&'r self, vm: &'r Arc<Vm>, link: Option<Link>, emulation: Emulation) -> Subject<'r> {
        let node = &self.settings.node;
        Subject {
            vm,
            link,
            nic: link.and_then(|link| vm.nic(link.tap.nic)),
            pool: self.pool(vm),
            node,
            site: self.settings.site(),
            emulation,
            entered: &self.entered,
            rendered: None,
        }
    }

    /// The VM whose user data the answer to this needs rendered first.
    fn renders<B>(&self, endpoint: Endpoint, request: &Request<B>) -> Option<Arc<Vm>> {
        let Caller::Known(vm) = request.extensions().get()? else { return None };
        vm.notes.secret_set()?;
        let part = rendered::part(endpoint, || ec2::is_instance_id(request.uri().path()));
        if part == Part::Nothing {
            return None;
        }
        let subject = self.enter(endpoint, request).ok()?;
        let Settings { keys, clock, .. } = &*self.settings;
        let needs_session = endpoint.family() == Some(Family::Ec2) && endpoint != Endpoint::Ec2Token;
        let is_let_in = !needs_session || ec2::judge(request.headers(), subject.vm, keys, clock).1.is_ok();
        let needs = is_let_in && (part == Part::Itself || !self.entered.has(subject.link));
        needs.then(|| Arc::clone(vm))
    }

    /// The answer to a request for which user data is rendered.
    async fn answer_rendered(
        self,
        vm: Arc<Vm>,
        endpoint: Endpoint,
        request: Request<()>,
    ) -> Result<Response<Body>, Fault> {
        let rendered = match &self.settings.secrets {
            Some(secrets) => rendered::told(vm.vmid, endpoint, secrets.render(vm.vmid, &self.turns).await),
            None => rendered::disabled(&vm, endpoint),
        };
        // Whoever has been given it once may lose it later without losing the rest.
        if rendered.is_ok() {
            let link = request.extensions().get().copied();
            _ = self.entered.admit(link, user_data::whole(&vm, Some(&rendered)));
        }
        match self.burdens(endpoint, &request) {
            None => self.answer(endpoint, &request, Some(rendered)),
            Some(vmid) => self.answer_in_turn(vmid, endpoint, request, Some(rendered)).await,
        }
    }

    fn pool(&self, vm: &Vm) -> Option<PoolId> {
        self.settings.inventory.as_ref().and_then(|inventory| inventory.vm(vm.vmid)?.pool)
    }

    /// The VM whose answer to this takes its turn.
    fn burdens<B>(&self, endpoint: Endpoint, request: &Request<B>) -> Option<VmId> {
        let Caller::Known(vm) = request.extensions().get()? else { return None };
        let light = weighing::is_light(endpoint, vm, || self.pool(vm), &self.settings.vendor);
        (!light).then_some(vm.vmid)
    }

    /// The same answer, made beside the thread that serves everybody. It goes on in the request's span, and what falls over
    /// falls over here.
    async fn answer_in_turn(
        self,
        vmid: VmId,
        endpoint: Endpoint,
        request: Request<()>,
        rendered: Option<Rendered>,
    ) -> Result<Response<Body>, Fault> {
        let span = tracing::Span::current();
        let turns = self.turns.clone();
        let made = turns.run(vmid, move || span.in_scope(|| self.answer(endpoint, &request, rendered))).await;
        made.map_err(|given_up| Fault::unavailable(Outcome::Deadline, RetryAfter::DEFAULT).because(given_up))?
    }

    /// The answer to a request whose body says nothing.
    fn answer<B>(
        &self,
        endpoint: Endpoint,
        request: &Request<B>,
        rendered: Option<Rendered>,
    ) -> Result<Response<Body>, Fault> {
        use Endpoint as E;
        let (method, headers, path) = (request.method(), request.headers(), request.uri().path());
        if endpoint == E::Pxe {
            asked_by(method, methods(endpoint))?;
            return Ok(pxe::exit(method));
        }
        let subject = Subject { rendered, ..self.enter(endpoint, request)? };
        let Settings { keys, clock, passwords, token_keys, .. } = &*self.settings;
        let reply = match endpoint {
            E::NocloudIndex
            | E::NocloudMetaData
            | E::NocloudUserData
            | E::NocloudVendorData
            | E::NocloudNetworkConfig => nocloud::serve(endpoint, &subject)?,
            E::OpenstackPassword => {
                let said = passwords.get(subject.vm);
                Reply::new(Kind::Text, said.map(|password| password.bytes()).unwrap_or_default())
            }
            E::OpenstackIndex
            | E::OpenstackMetaData
            | E::OpenstackUserData
            | E::OpenstackVendorData
            | E::OpenstackNetworkData => openstack::serve(endpoint, path, &subject)?,
            E::Ec2Token => return ec2::issue(headers, &subject, keys, clock),
            E::Ec2Index | E::Ec2MetaData | E::Ec2UserData | E::Ec2Dynamic => {
                let (token, verdict) = ec2::judge(headers, subject.vm, keys, clock);
                self.census.count(subject.vm.vmid, token);
                tracing::Span::current().record("token", token.word());
                verdict?;
                ec2::serve(endpoint, path, &subject)?
            }
            E::IdentityKeys => Reply::new(Kind::Json, identity_token::keys(token_keys)?),
            // Its method is another.
            E::IdentityToken | E::Pxe | E::Other => return Err(Fault::not_found()),
        };
        reply.answer(method, headers, |body| self.held.hold(subject.vm.vmid, body))
    }

    /// Takes down a password.
    async fn take_password<B>(self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let vm = Arc::clone(self.enter(Endpoint::OpenstackPassword, &request)?.vm);
        let body = Limited::new(request.into_body(), MAX_PASSWORD);
        let body = body.collect().await.map_err(|error| Fault::bad_request().because(error))?;
        let password = Password::new(&body.to_bytes()).map_err(|error| Fault::bad_request().because(error))?;
        match self.settings.passwords.say(&vm, password) {
            Ok(()) => Ok(Reply::new(Kind::Text, Bytes::new()).with_status(StatusCode::OK)),
            Err(_) => Err(Fault::conflict(Outcome::PasswordSet)),
        }
    }

    /// Says who a VM is, to those it names.
    async fn issue_token<B>(self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, ());
        let subject = self.enter(Endpoint::IdentityToken, &request)?;
        let Settings { keys, clock, token_keys, token_rules, inventory, .. } = &*self.settings;
        // Whoever is to be kept from what a VM can be talked into GETting is to be kept from its identity.
        ec2::judge(request.headers(), subject.vm, keys, clock).1?;
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| {
            let fault = if error.is::<LengthLimitError>() { Fault::body_too_large() } else { Fault::bad_request() };
            fault.because(error)
        })?;
        let asks = (request.headers(), &*body.to_bytes());
        self.mint.issue(&subject, asks, (token_rules, token_keys, clock), inventory.as_deref()).await
    }
}

/// Who asks, where nobody looked.
const NOBODY: Caller = Caller::Unknown(UnknownCaller::NoConfig);

/// How an endpoint may be asked for, as `Allow` lists it.
fn methods(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Ec2Token => "PUT",
        Endpoint::IdentityToken => "POST",
        Endpoint::OpenstackPassword => "GET, HEAD, POST",
        _ => "GET, HEAD",
    }
}

fn asked_by(method: &Method, allowed: &'static str) -> Result<(), Fault> {
    if allowed.split(", ").any(|known| known == method.as_str()) {
        Ok(())
    } else {
        Err(Fault::method_not_allowed(allowed))
    }
}

impl<B> Service<Request<B>> for Router
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Fault;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let known = request.extensions().get().copied();
        let endpoint = known.unwrap_or_else(|| Endpoint::classify(request.uri().path()));
        match (endpoint, request.method()) {
            (Endpoint::OpenstackPassword, &Method::POST) => {
                Either::Right(Box::pin(self.clone().take_password(request)))
            }
            (Endpoint::IdentityToken, &Method::POST) => Either::Right(Box::pin(self.clone().issue_token(request))),
            _ => match (self.renders(endpoint, &request), self.burdens(endpoint, &request)) {
                (Some(vm), _) => Either::Right(Box::pin(self.clone().answer_rendered(vm, endpoint, request.map(drop)))),
                (None, Some(vmid)) => {
                    let request = request.map(drop);
                    Either::Right(Box::pin(self.clone().answer_in_turn(vmid, endpoint, request, None)))
                }
                (None, None) => Either::Left(ready(self.answer(endpoint, &request, None))),
            },
        }
    }
}

#[cfg(test)]
mod tests;
