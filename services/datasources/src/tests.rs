use std::sync::Arc;

use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http_body::Body as _;
use http_body_util::{BodyExt, Empty, Full};
use pve_imds_model::conf;
use pve_imds_model::fault::Outcome;
use pve_imds_model::tap::TapName;
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

async fn ask(settings: Settings, method: Method, path: &str, caller: Option<Caller>) -> Result<Response<Body>, Fault> {
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
    let (plain, yaml, opaque) = ("text/plain; charset=utf-8", "text/yaml; charset=utf-8", "application/octet-stream");
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
        for (method, caller) in [(Method::POST, Some(known_caller())), (Method::PUT, None), (Method::OPTIONS, None)] {
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

/// A request of a VM with this configuration, which came through `link`; its status and outcome, and whether it is told to
/// wait.
async fn outcome(
    router: &Router,
    link: Option<Link>,
    config: &str,
    (method, path): (&str, &str),
) -> (u16, Option<Outcome>, bool) {
    let vm = Arc::new(conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm);
    let mut request = request(method.parse().unwrap(), path, Some(Caller::Known(vm)));
    link.map(|link| request.extensions_mut().insert(link));
    request.headers_mut().insert("x-aws-ec2-metadata-token-ttl-seconds", HeaderValue::from(60));
    match router.clone().oneshot(request).await {
        Ok(response) => (response.status().as_u16(), None, false),
        Err(fault) => (fault.status(), Some(fault.outcome()), fault.retry_after().is_some()),
    }
}

/// What is answered to whom nothing is withheld. This router has nothing to seal a token with.
fn given(method: &str) -> (u16, Option<Outcome>, bool) {
    if method == "PUT" { (503, Some(Outcome::NodeKeyUnreadable), true) } else { (200, None, false) }
}

/// Where each dialect's clients begin a boot, and what they could take for user data or vendor data.
#[tokio::test]
async fn whose_documents_cannot_be_had_is_let_in_nowhere() {
    const SECRETS: &str = "#<!--#user-data secrets=worker\n#{{ secret \"a\" }}\n#-->\nname: web\n";
    const USER: &str = "#<!--#user-data\n##cloud-config\nname: web\n";
    const VENDOR: &str = "#<!--#user-data\n#x\n#-->\n#<!--#vendor-data\n##cloud-config\nname: web\n";
    // A boot begins, user data, vendor data.
    let [entry, user, vendor, free] =
        [[true, true, true], [true, true, false], [false, false, true], [false, false, false]];
    for (method, path, withheld) in [
        ("GET", "/nocloud/user-data", user),
        ("HEAD", "/nocloud//user-data/", user),
        ("GET", "/nocloud/meta-data", free),
        ("GET", "/nocloud/vendor-data", vendor),
        ("GET", "/nocloud/network-config", free),
        ("GET", "/openstack", entry),
        ("HEAD", "/openstack/", entry),
        ("GET", "/openstack/2018-08-27", entry),
        ("GET", "/openstack/2018-08-27/meta_data.json", entry),
        ("GET", "/openstack/latest/user_data", user),
        ("GET", "/openstack/latest/vendor_data.json", vendor),
        ("GET", "/openstack/latest/vendor_data2.json", free),
        ("GET", "/openstack/latest/password", free),
        ("PUT", "/latest/api/token", entry),
        ("GET", "/2009-04-04/meta-data/instance-id", entry),
        ("GET", "/latest//meta-data/instance-id/", entry),
        ("GET", "/latest/user-data", user),
        ("GET", "/latest/user-data/", user),
        ("GET", "/latest/meta-data/local-hostname", free),
        ("GET", "/latest/dynamic/instance-identity/document", free),
    ] {
        let broken = [
            (SECRETS, withheld[0], Outcome::SecretsDisabled),
            (USER, withheld[1], Outcome::NotesInvalid),
            (VENDOR, withheld[2], Outcome::NotesInvalid),
            (CONFIG, false, Outcome::Ok),
        ];
        for (config, withheld, outcome_if) in broken {
            // Without an interface nobody is remembered, with whole documents or not.
            let expected = if withheld { (503, Some(outcome_if), true) } else { given(method) };
            for link in [None, link(7)] {
                let got = outcome(&Router::default(), link, config, (method, path)).await;
                assert_eq!(got, expected, "{method} {path} {config}");
            }
        }
    }
}

fn link(index: u32) -> Option<Link> {
    Some(Link { tap: TapName::parse("tap106i0").unwrap(), index, since: 1 })
}

/// An edit that breaks a running VM's Notes takes from it what it breaks, and nothing else.
#[tokio::test]
async fn who_has_entered_stays_in() {
    let entries = [
        ("GET", "/openstack"),
        ("GET", "/openstack/latest/meta_data.json"),
        ("PUT", "/latest/api/token"),
        ("GET", "/latest/meta-data/instance-id"),
    ];
    for (config, document, what) in [
        ("#<!--#user-data\n#x\nname: web\n", "/latest/user-data", Outcome::NotesInvalid),
        ("#<!--#vendor-data\n#x\nname: web\n", "/openstack/latest/vendor_data.json", Outcome::NotesInvalid),
        ("#<!--#user-data secrets=a\n#x\n#-->\nname: web\n", "/nocloud/user-data", Outcome::SecretsDisabled),
    ] {
        let kept_out = (503, Some(what), true);
        // A VM without a block is whole too, wherever it enters.
        for (whole, entry) in [CONFIG, "name: web\n"].into_iter().flat_map(|whole| entries.map(|entry| (whole, entry)))
        {
            let router = Router::default();
            assert_eq!(outcome(&router, link(7), config, entry).await, kept_out, "{entry:?} {config}");
            // What is not where a boot begins proves nothing.
            outcome(&router, link(7), whole, ("GET", "/nocloud/user-data")).await;
            assert_eq!(outcome(&router, link(7), config, entry).await, kept_out, "{entry:?} {config}");
            assert_eq!(outcome(&router, link(7), whole, entry).await, given(entry.0), "{entry:?} {whole}");
            for entry in entries {
                assert_eq!(outcome(&router, link(7), config, entry).await, given(entry.0), "{entry:?} {config}");
            }
            assert_eq!(outcome(&router, link(7), config, ("GET", document)).await, kept_out, "{document}");
            // The VM was started anew.
            assert_eq!(outcome(&router, link(8), config, entry).await, kept_out, "{entry:?} {config}");
        }
    }
}

/// Whoever switches Proxmox's options off means all of them.
#[tokio::test]
async fn options_that_are_not_heeded_are_in_no_answer() {
    let config = "name: web\nciuser: ops\nsshkeys: ssh-ed25519%20AAAA%20ops%0A\n\
                  net0: virtio=BC:24:11:00:00:01\nipconfig0: ip=192.0.2.5/24\nnameserver: 192.0.2.53\n";
    let vm = Arc::new(conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm);
    for (path, heeded, otherwise) in [
        ("/nocloud/meta-data", "ssh-ed25519 AAAA", 200),
        ("/nocloud/user-data", "ssh-ed25519 AAAA", 200),
        ("/nocloud/network-config", "192.0.2", 200),
        ("/openstack/latest/meta_data.json", "ssh-ed25519 AAAA", 200),
        ("/openstack/latest/user_data", "ssh-ed25519 AAAA", 404),
        ("/openstack/latest/network_data.json", "192.0.2", 200),
        ("/latest/meta-data/", "public-keys/", 200),
        ("/latest/meta-data/public-keys/0/openssh-key", "ssh-ed25519 AAAA", 404),
        ("/latest/meta-data/network/interfaces/macs/bc:24:11:00:00:01/local-ipv4s", "192.0.2.5", 404),
    ] {
        for cloudinit_enabled in [true, false] {
            let settings = Settings { cloudinit_enabled, ..Settings::default() };
            let got = ask(settings, Method::GET, path, Some(Caller::Known(Arc::clone(&vm)))).await;
            let (status, text) = match got {
                Ok(response) => (200, body(response).await),
                Err(fault) => (fault.status(), String::new()),
            };
            let expected = if cloudinit_enabled { 200 } else { otherwise };
            assert_eq!((status, text.contains(heeded)), (expected, cloudinit_enabled), "{path}: {text}");
        }
    }
}

#[tokio::test]
async fn what_the_stack_has_classified_is_not_classified_again() {
    let mut request = Request::new(Empty::<Bytes>::new());
    request.extensions_mut().insert(known_caller());
    request.extensions_mut().insert(Endpoint::NocloudUserData);
    let response = Router::default().oneshot(request).await.unwrap();
    assert_eq!(body(response).await, "#cloud-config");
}

/// 1 MiB of vendor data, which JSON writes with two letters for each.
fn verbose(vmid: u32) -> Caller {
    let config = format!("#<!--#vendor-data\n#{}\n#-->\nname: web\n", "\"".repeat(1 << 20));
    Caller::Known(Arc::new(conf::parse(VmId::new(vmid).unwrap(), config.as_bytes()).vm))
}

#[tokio::test]
async fn answers_that_nobody_takes_do_not_pile_up() {
    let router = Router::default();
    let (caller, path) = (verbose(106), "/openstack/latest/vendor_data.json");
    let mut untaken = Vec::new();
    for _ in 0..16 {
        untaken.push(router.clone().oneshot(request(Method::GET, path, Some(caller.clone()))).await);
    }
    let refused = untaken.iter().filter_map(|answer| answer.as_ref().err()).inspect(|fault| {
        assert_eq!((fault.status(), fault.outcome()), (503, Outcome::RateLimited));
    });
    assert_eq!(refused.count(), 13);
    let other = router.clone().oneshot(request(Method::GET, path, Some(verbose(107)))).await;
    assert!(body(other.unwrap()).await.len() > 2 << 20);
    drop(untaken);
    let again = router.oneshot(request(Method::GET, path, Some(caller))).await;
    assert!(body(again.unwrap()).await.len() > 2 << 20);
}

#[tokio::test]
async fn a_large_answer_is_handed_on_in_pieces() {
    let response = ask(Settings::default(), Method::GET, "/nocloud/vendor-data", Some(verbose(106))).await.unwrap();
    let mut body = response.into_body();
    let mut taken = 0;
    while let Some(frame) = body.frame().await {
        let piece = frame.unwrap().into_data().unwrap();
        assert!(piece.len() <= 16 << 10 && piece.iter().all(|byte| *byte == b'"'));
        taken += piece.len();
        assert_eq!(body.size_hint().exact(), Some(((1 << 20) - taken) as u64));
    }
    assert_eq!((taken, body.is_end_stream()), (1 << 20, true));
}

/// A VM of one document's letters, packed or plain the same to those who answer.
fn of_length(length: usize) -> Caller {
    let config = format!(
        "#<!--#vendor-data\n#{}\n#-->\nname: web\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n",
        "\"".repeat(length)
    );
    Caller::Known(Arc::new(conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm))
}

const OF_THE_VM: [&str; 6] = [
    "/openstack/latest/vendor_data.json",
    "/openstack/latest/network_data.json",
    "/nocloud/vendor-data",
    "/nocloud/meta-data",
    "/latest/meta-data/",
    "/latest/meta-data/network/interfaces/macs/bc:24:11:00:00:01/mac",
];

/// The answer is there when the call is over.
#[tokio::test]
async fn what_is_light_is_made_at_once() {
    for path in OF_THE_VM.into_iter().chain(PATHS) {
        for caller in [known_caller(), of_length(30 << 10)] {
            let answer = Router::default().call(request(Method::GET, path, Some(caller)));
            assert!(matches!(answer, Either::Left(_)), "{path}");
        }
    }
    for path in ["/latest/dynamic/", "/latest/", "/openstack/latest/password", "/nocloud/", "/pxe"] {
        let answer = Router::default().call(request(Method::GET, path, Some(of_length(1 << 20))));
        assert!(matches!(answer, Either::Left(_)), "{path} has nothing of the VM's length");
    }
}

#[tokio::test]
async fn what_is_heavy_takes_its_turn_and_is_the_same() {
    for path in OF_THE_VM {
        for method in [Method::GET, Method::HEAD] {
            let caller = of_length(1 << 20);
            let mut router = Router::default();
            let at_once =
                router.answer(Endpoint::classify(path), &request(method.clone(), path, Some(caller.clone())), None);
            let in_turn = router.call(request(method.clone(), path, Some(caller)));
            assert!(matches!(in_turn, Either::Right(_)), "{path}");
            let (at_once, in_turn) = (at_once.unwrap(), in_turn.await.unwrap());
            assert_eq!((in_turn.status(), in_turn.headers()), (at_once.status(), at_once.headers()), "{path}");
            assert_eq!(body(in_turn).await, body(at_once).await, "{path}");
        }
    }
    for (path, status) in [("/latest/meta-data/x", 404), ("/openstack/latest/user_data", 404)] {
        let fault = Router::default().oneshot(request(Method::GET, path, Some(of_length(1 << 20)))).await.unwrap_err();
        assert_eq!(fault.status(), status, "{path}");
    }
}
