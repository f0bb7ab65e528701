use std::sync::Arc;

use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http_body::Body as _;
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

/// Where each dialect's clients begin a boot, and what they could take for user data.
#[tokio::test]
async fn whose_secrets_cannot_be_had_is_let_in_nowhere() {
    let asks = "#<!--#user-data secrets=worker\n#{{ secret \"a\" }}\n#-->\nname: web\n";
    for (method, path, withheld) in [
        ("GET", "/nocloud/user-data", true),
        ("HEAD", "/nocloud//user-data/", true),
        ("GET", "/nocloud/meta-data", false),
        ("GET", "/nocloud/vendor-data", false),
        ("GET", "/nocloud/network-config", false),
        ("GET", "/openstack", true),
        ("HEAD", "/openstack/", true),
        ("GET", "/openstack/2018-08-27", true),
        ("GET", "/openstack/2018-08-27/meta_data.json", true),
        ("GET", "/openstack/latest/user_data", true),
        ("GET", "/openstack/latest/vendor_data.json", false),
        ("GET", "/openstack/latest/password", false),
        ("PUT", "/latest/api/token", true),
        ("GET", "/2009-04-04/meta-data/instance-id", true),
        ("GET", "/latest//meta-data/instance-id/", true),
        ("GET", "/latest/user-data", true),
        ("GET", "/latest/user-data/", true),
        ("GET", "/latest/meta-data/local-hostname", false),
        ("GET", "/latest/dynamic/instance-identity/document", false),
    ] {
        for (config, withheld) in [(asks, withheld), (CONFIG, false)] {
            let vm = Arc::new(conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm);
            let mut request = request(method.parse().unwrap(), path, Some(Caller::Known(vm)));
            request.headers_mut().insert("x-aws-ec2-metadata-token-ttl-seconds", HeaderValue::from(60));
            let got = match Router::default().oneshot(request).await {
                Ok(response) => (response.status().as_u16(), None, false),
                Err(fault) => (fault.status(), Some(fault.outcome()), fault.retry_after().is_some()),
            };
            let expected = match (withheld, method) {
                (true, _) => (503, Some(Outcome::SecretsDisabled), true),
                // This router has nothing to seal one with.
                (false, "PUT") => (503, Some(Outcome::NodeKeyUnreadable), true),
                (false, _) => (200, None, false),
            };
            assert_eq!(got, expected, "{method} {path} {config}");
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
