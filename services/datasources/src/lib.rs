//! Which URL is answered by whom, in which bytes.
//!
//! In comes a request whose extensions say what it asks for ([`Endpoint`]) and who asks ([`Caller`]); out goes a whole
//! answer or a [`Fault`], which `middleware/rescue` turns into one. One file per URL family; [`user_data`] is the road
//! that all of them share. Refused: to guess who is asking, to speak status codes, and to answer with half of anything.
#![forbid(unsafe_code)]

mod ec2;
mod nocloud;
mod openstack;
mod pxe;
mod reply;
mod subject;
pub mod user_data;

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::Either;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use pve_imds_backends::clock::Clock;
use pve_imds_backends::keys::NodeKeys;
use pve_imds_backends::pve::Inventory;
use pve_imds_backends::resolver::Resolver;
use pve_imds_model::fault::{Fault, Outcome};
use pve_imds_model::request::{Caller, Emulation, Endpoint, Link, UnknownCaller};
use pve_imds_model::site::Site;
use pve_imds_model::vendor::Files;
use pve_imds_model::vm::Vm;
use tower::Service;

use self::ec2::Census;
use self::openstack::MAX_PASSWORD;
use self::reply::{Kind, Reply};
use self::subject::Subject;

/// What the answers are made from. Whoever builds the router also opens these.
pub use pve_imds_backends as backends;

pub use openstack::{Password, Passwords};
pub use reply::{Body, BoxError};

/// The methods of everything that is only read.
const READ: &str = "GET, HEAD";

/// The method of a session token.
const ASK: &str = "PUT";

/// The methods of a guest's password.
const READ_AND_SAY: &str = "GET, HEAD, POST";

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
}

/// Says what is counted here. Once, after the recorder is installed.
pub fn describe() {
    ec2::describe();
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
        }
    }
}

impl Settings {
    fn site(&self) -> Site {
        Site { cloudinit: self.cloudinit_enabled, dns: self.resolver.dns(), vendor: Arc::clone(&self.vendor) }
    }

    fn subject<'a>(&'a self, vm: &'a Arc<Vm>, link: Option<&Link>, emulation: Emulation) -> Subject<'a> {
        Subject {
            vm,
            nic: link.and_then(|link| vm.nic(link.tap.nic)),
            pool: self.inventory.as_ref().and_then(|inventory| inventory.vm(vm.vmid)?.pool),
            node: &self.node,
            site: self.site(),
            emulation,
        }
    }
}

/// The innermost service: path to datasource. Cheap to clone, always ready; it waits for nothing but a body that is
/// taken.
///
/// It reads [`Endpoint`], [`Caller`], [`Link`] and [`Emulation`] from the request's extensions. Without the first it
/// classifies the path itself; without the second the caller is unknown, so a stack that forgot to identify gives nobody's
/// data away.
#[derive(Clone, Debug, Default)]
pub struct Router {
    settings: Arc<Settings>,
    census: Census,
}

/// An answer that is there, or one that waits for a body.
type Answer =
    Either<Ready<Result<Response<Body>, Fault>>, Pin<Box<dyn Future<Output = Result<Response<Body>, Fault>> + Send>>>;

impl Router {
    /// A router that serves what `settings` allow.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings), census: Census::default() }
    }

    /// The answer to a request that is only read.
    fn answer<B>(&self, endpoint: Endpoint, request: &Request<B>) -> Result<Response<Body>, Fault> {
        use Endpoint as E;
        let extensions = request.extensions();
        let (method, path) = (request.method(), request.uri().path());
        let shown = extensions.get().copied().unwrap_or_default();
        match endpoint {
            E::Pxe => {
                read_only(method, READ)?;
                return Ok(pxe::exit(method));
            }
            E::Other => return Err(Fault::not_found()),
            _ if !self.serves(endpoint, shown) => return Err(Fault::not_found()),
            _ => {}
        }
        // After "is there such a thing", before "who are you": a wrong method is wrong for everyone.
        match endpoint {
            E::Ec2Token if method == Method::PUT => {}
            E::Ec2Token => return Err(Fault::method_not_allowed(ASK)),
            E::OpenstackPassword => read_only(method, READ_AND_SAY)?,
            _ => read_only(method, READ)?,
        }
        let nobody = Caller::Unknown(UnknownCaller::NoConfig);
        let vm = extensions.get().unwrap_or(&nobody).require()?;
        if is_nocloud(endpoint) && vm.keeps_to_ec2() {
            return Err(Fault::not_found());
        }
        let subject = self.settings.subject(vm, extensions.get(), shown);
        let Settings { keys, clock, .. } = &*self.settings;
        if endpoint == E::Ec2Token {
            return ec2::issue(request.headers(), &subject, keys, clock);
        }
        if is_ec2(endpoint) {
            let (token, verdict) = ec2::judge(request.headers(), vm, keys, clock);
            self.census.count(vm.vmid, token);
            tracing::Span::current().record("token", token.word());
            verdict?;
        }
        let reply = match endpoint {
            E::NocloudIndex => nocloud::serve(nocloud::File::Index, &subject)?,
            E::NocloudMetaData => nocloud::serve(nocloud::File::MetaData, &subject)?,
            E::NocloudUserData => nocloud::serve(nocloud::File::UserData, &subject)?,
            E::NocloudVendorData => nocloud::serve(nocloud::File::VendorData, &subject)?,
            E::NocloudNetworkConfig => nocloud::serve(nocloud::File::NetworkConfig, &subject)?,
            E::OpenstackPassword => {
                let said = self.settings.passwords.get(vm);
                Reply::new(Kind::Text, said.map(|password| password.bytes()).unwrap_or_default())
            }
            E::OpenstackIndex
            | E::OpenstackMetaData
            | E::OpenstackUserData
            | E::OpenstackVendorData
            | E::OpenstackNetworkData => openstack::serve(endpoint, path, &subject)?,
            E::Ec2Index | E::Ec2MetaData | E::Ec2UserData | E::Ec2Dynamic => ec2::serve(endpoint, path, &subject)?,
            E::Ec2Token | E::Pxe | E::Other => return Err(Fault::not_found()),
        };
        Ok(reply.answer(method, request.headers()))
    }

    /// Whether there is such a thing for whom `shown` is decided.
    fn serves(&self, endpoint: Endpoint, shown: Emulation) -> bool {
        use Endpoint as E;
        match endpoint {
            _ if is_nocloud(endpoint) => self.settings.nocloud_enabled,
            E::OpenstackIndex
            | E::OpenstackMetaData
            | E::OpenstackUserData
            | E::OpenstackVendorData
            | E::OpenstackNetworkData
            | E::OpenstackPassword => shown != Emulation::Ec2,
            _ => true,
        }
    }

    /// Takes down a password.
    async fn take_password<B>(self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        if !self.serves(Endpoint::OpenstackPassword, request.extensions().get().copied().unwrap_or_default()) {
            return Err(Fault::not_found());
        }
        let nobody = Caller::Unknown(UnknownCaller::NoConfig);
        let vm = Arc::clone(request.extensions().get().unwrap_or(&nobody).require()?);
        let body = Limited::new(request.into_body(), MAX_PASSWORD);
        let body = body.collect().await.map_err(|error| Fault::bad_request().because(error))?;
        let password = Password::new(body.to_bytes()).map_err(|error| Fault::bad_request().because(error))?;
        match self.settings.passwords.say(&vm, password) {
            Ok(()) => Ok(Reply::new(Kind::Text, Bytes::new()).with_status(StatusCode::OK)),
            Err(_) => Err(Fault::conflict(Outcome::PasswordSet)),
        }
    }
}

fn is_nocloud(endpoint: Endpoint) -> bool {
    use Endpoint as E;
    matches!(
        endpoint,
        E::NocloudIndex | E::NocloudMetaData | E::NocloudUserData | E::NocloudVendorData | E::NocloudNetworkConfig
    )
}

/// What a session token is looked at for.
fn is_ec2(endpoint: Endpoint) -> bool {
    use Endpoint as E;
    matches!(endpoint, E::Ec2Index | E::Ec2MetaData | E::Ec2UserData | E::Ec2Dynamic)
}

fn read_only(method: &Method, allowed: &'static str) -> Result<(), Fault> {
    match *method {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(Fault::method_not_allowed(allowed)),
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
        if endpoint == Endpoint::OpenstackPassword && request.method() == Method::POST {
            return Either::Right(Box::pin(self.clone().take_password(request)));
        }
        Either::Left(ready(self.answer(endpoint, &request)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::HeaderValue;
    use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
    use http_body_util::{BodyExt, Empty, Full};
    use pve_imds_model::conf;
    use pve_imds_model::fault::Outcome;
    use pve_imds_model::vm::VmId;
    use tower::ServiceExt;

    use super::*;

    const CONFIG: &str = "#<!--#user-data\n##cloud-config\n#-->\nname: web\n";
    const PATHS: [&str; 5] =
        ["/nocloud/", "/nocloud/meta-data", "/nocloud/user-data", "/nocloud/vendor-data", "/nocloud/network-config"];

    fn known_caller() -> Caller {
        Caller::Known(Arc::new(conf::parse(VmId::new(106).unwrap(), CONFIG.as_bytes()).vm))
    }

    fn request(method: Method, path: &str, caller: Option<Caller>) -> Request<Empty<Bytes>> {
        let mut request = Request::builder().method(method).uri(path).body(Empty::new()).unwrap();
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        request
    }

    async fn ask(
        settings: Settings,
        method: Method,
        path: &str,
        caller: Option<Caller>,
    ) -> Result<Response<Body>, Fault> {
        Router::new(settings).oneshot(request(method, path, caller)).await
    }

    async fn get(path: &str) -> Result<Response<Body>, Fault> {
        ask(Settings::default(), Method::GET, path, Some(known_caller())).await
    }

    async fn body(response: Response<Body>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn every_path_has_its_bytes() {
        const LISTING: &str = "meta-data\nuser-data\nvendor-data\nnetwork-config\n";
        const META_DATA: &str = "instance-id: \"106\"\nlocal-hostname: \"web\"\n";
        const NETWORK: &str = "version: 2\nethernets: {}\n";
        let (plain, yaml, opaque) =
            ("text/plain; charset=utf-8", "text/yaml; charset=utf-8", "application/octet-stream");
        for (path, kind, expected) in [
            ("/nocloud", plain, LISTING),
            ("/nocloud/", plain, LISTING),
            ("/nocloud/meta-data", yaml, META_DATA),
            ("/nocloud//meta-data/", yaml, META_DATA),
            ("/nocloudmeta-data", yaml, META_DATA),
            ("/nocloud/user-data", opaque, "#cloud-config"),
            ("/nocloud/vendor-data", opaque, ""),
            ("/nocloud/network-config", yaml, NETWORK),
        ] {
            let response = get(path).await.unwrap();
            assert_eq!(response.status(), 200, "{path}");
            assert_eq!(response.headers()[CONTENT_TYPE], kind, "{path}");
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store", "{path}");
            assert_eq!(response.headers()[CONTENT_LENGTH], expected.len().to_string(), "{path}");
            assert_eq!(body(response).await, expected, "{path}");
        }
    }

    #[tokio::test]
    async fn head_is_get_without_the_body() {
        for path in PATHS {
            let get = get(path).await.unwrap();
            let head = ask(Settings::default(), Method::HEAD, path, Some(known_caller())).await.unwrap();
            assert_eq!(head.headers(), get.headers(), "{path}");
            assert_eq!(body(head).await, "", "{path}");
        }
    }

    #[tokio::test]
    async fn who_has_it_already_is_not_told_again() {
        for path in PATHS {
            let etag = get(path).await.unwrap().headers()[ETAG].to_str().unwrap().to_owned();
            for (known, status) in [
                (etag.clone().into_bytes(), 304),
                (format!("W/{etag}").into(), 304),
                (format!("\"x\", {etag}").into(), 304),
                ([b"\"\xe9\x80\", W/", etag.as_bytes()].concat(), 304),
                (b"*".into(), 304),
                (b"\"x\"".into(), 200),
                (b"\"\xff\"".into(), 200),
                (etag.replace('"', "").into(), 200),
                (b"".into(), 200),
            ] {
                for method in [Method::GET, Method::HEAD] {
                    let mut request = request(method, path, Some(known_caller()));
                    request.headers_mut().insert(IF_NONE_MATCH, HeaderValue::from_bytes(&known).unwrap());
                    let response = Router::default().oneshot(request).await.unwrap();
                    let known = known.escape_ascii();
                    assert_eq!(response.status(), status, "{path} {known}");
                    assert_eq!(response.headers()[ETAG], *etag, "{path} {known}");
                    assert_eq!(response.headers().contains_key(CONTENT_LENGTH), status == 200, "{path} {known}");
                }
            }
        }
    }

    #[tokio::test]
    async fn other_methods_are_told_which_there_are() {
        for path in PATHS {
            for (method, caller) in [(Method::POST, Some(known_caller())), (Method::PUT, None), (Method::OPTIONS, None)]
            {
                let fault = ask(Settings::default(), method, path, caller).await.unwrap_err();
                assert_eq!((fault.status(), fault.allow()), (405, Some("GET, HEAD")), "{path}");
            }
        }
    }

    #[tokio::test]
    async fn other_paths_do_not_exist_for_any_method() {
        for path in
            ["/x", "/nocloud/x", "/nocloud/meta-data/x", "/noclouds", "/openstack/x", "/1999/meta-data", "/latest/x"]
        {
            for method in [Method::GET, Method::POST] {
                let fault = ask(Settings::default(), method, path, Some(known_caller())).await.unwrap_err();
                assert_eq!(fault.status(), 404, "{path}");
            }
        }
    }

    #[tokio::test]
    async fn whoever_asks_for_a_script_boots_from_disk() {
        let settings = || Settings { nocloud_enabled: false, ..Settings::default() };
        for path in ["/pxe", "/pxe/", "/pxe/job"] {
            for caller in [Some(known_caller()), Some(Caller::Unknown(UnknownCaller::NotReady)), None] {
                for (method, expected) in [(Method::GET, "#!ipxe\nexit\n"), (Method::HEAD, "")] {
                    let mut request = request(method, path, caller.clone());
                    request.headers_mut().insert(IF_NONE_MATCH, "*".parse().unwrap());
                    let response = Router::new(settings()).oneshot(request).await.unwrap();
                    assert_eq!(response.status(), 200, "{path}");
                    assert_eq!(response.extensions().get::<Outcome>(), None, "{path} is ok");
                    assert_eq!(response.headers()[CONTENT_TYPE], "text/plain", "{path}");
                    assert_eq!(response.headers()[CACHE_CONTROL], "no-store", "{path}");
                    assert_eq!(response.headers()[CONTENT_LENGTH], "12", "{path}");
                    assert_eq!(body(response).await, expected, "{path}");
                }
                let fault = ask(settings(), Method::POST, path, caller).await.unwrap_err();
                assert_eq!((fault.status(), fault.allow()), (405, Some("GET, HEAD")), "{path}");
            }
        }
    }

    #[tokio::test]
    async fn nobody_in_particular_is_asked_to_wait() {
        for path in PATHS {
            for caller in [Some(Caller::Unknown(UnknownCaller::NotReady)), None] {
                let fault = ask(Settings::default(), Method::GET, path, caller).await.unwrap_err();
                assert_eq!((fault.status(), fault.outcome()), (503, Outcome::VmUnknown), "{path}");
                assert!(fault.retry_after().is_some(), "{path}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_switched_off_does_not_exist_for_anybody() {
        for path in PATHS {
            for (method, caller) in [(Method::GET, Some(known_caller())), (Method::POST, None)] {
                let fault = ask(Settings { nocloud_enabled: false, ..Settings::default() }, method, path, caller)
                    .await
                    .unwrap_err();
                assert_eq!(fault.status(), 404, "{path}");
            }
        }
    }

    #[tokio::test]
    async fn emulation_hides_dialects() {
        let policy = |text: &str| format!("#<!--#imds\n#{text}\n#-->\n");
        let required = policy("ec2_tokens%3A required");
        for (notes, shown, openstack, (ec2, is_cut), nocloud) in [
            ("", Emulation::Auto, 200, (200, false), 200),
            ("", Emulation::Openstack, 200, (200, true), 200),
            ("", Emulation::Ec2, 404, (200, false), 200),
            (&policy("emulate%3A ec2"), Emulation::Ec2, 404, (200, false), 404),
            (&required, Emulation::Ec2, 404, (401, true), 404),
            (&policy("emulate%3A openstack"), Emulation::Openstack, 200, (200, true), 200),
        ] {
            let config = format!("{notes}name: web\n");
            let vm = Arc::new(conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm);
            let get = async |path: &str| {
                let mut request = request(Method::GET, path, Some(Caller::Known(Arc::clone(&vm))));
                request.extensions_mut().insert(shown);
                match Router::default().oneshot(request).await {
                    Ok(response) => (response.status().as_u16(), body(response).await),
                    Err(fault) => (fault.status(), String::new()),
                }
            };
            assert_eq!(get("/openstack/latest/meta_data.json").await.0, openstack, "{notes} {shown:?}");
            let (status, listed) = get("/latest/meta-data/").await;
            assert_eq!((status, listed.is_empty()), (ec2, is_cut), "{notes} {shown:?}");
            assert_eq!(get("/latest/meta-data/local-hostname").await.0, ec2, "{notes} {shown:?}");
            assert_eq!(get("/nocloud/meta-data").await.0, nocloud, "{notes} {shown:?}");
        }
    }

    #[tokio::test]
    async fn a_password_is_said_once_and_read_by_whoever_said_it() {
        let router = Router::default();
        let path = "/openstack/2013-04-04/password";
        let ask = async |method: Method, text: &'static str, caller: Option<Caller>| {
            let request = request(method, path, caller).map(|_| Full::from(text));
            match router.clone().oneshot(request).await {
                Ok(response) => (response.status().as_u16(), body(response).await),
                Err(fault) => (fault.status(), fault.text().to_owned()),
            }
        };
        let long: &'static str = String::from_utf8(vec![b'x'; MAX_PASSWORD + 1]).unwrap().leak();
        let known = || Some(known_caller());
        assert_eq!(ask(Method::GET, "", known()).await, (200, String::new()));
        assert_eq!(ask(Method::POST, long, known()).await, (400, "bad_request".to_owned()));
        assert_eq!(ask(Method::POST, "c2VjcmV0", known()).await, (200, String::new()));
        assert_eq!(ask(Method::POST, "other", known()).await, (409, "password_set".to_owned()));
        assert_eq!(ask(Method::GET, "", known()).await, (200, "c2VjcmV0".to_owned()));
        assert_eq!(ask(Method::PUT, "x", known()).await.0, 405);
        assert_eq!(ask(Method::POST, "x", None).await.0, 503);
        let other = conf::parse(VmId::new(107).unwrap(), CONFIG.as_bytes()).vm;
        assert_eq!(ask(Method::GET, "", Some(Caller::Known(other.into()))).await, (200, String::new()));
    }

    #[tokio::test]
    async fn what_the_stack_has_classified_is_not_classified_again() {
        let mut request = Request::new(Empty::<Bytes>::new());
        request.extensions_mut().insert(known_caller());
        request.extensions_mut().insert(Endpoint::NocloudUserData);
        let response = Router::default().oneshot(request).await.unwrap();
        assert_eq!(body(response).await, "#cloud-config");
    }
}
