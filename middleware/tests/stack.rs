//! All layers at their heights over a small datasource: what a guest hears, what the operator sees.
#![allow(clippy::unwrap_used, missing_docs)]

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use http::header::{HOST, RETRY_AFTER};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use metrics_exporter_prometheus::PrometheusBuilder;
use pve_imds_middleware::bounds::{REQUEST_BURST, REQUEST_TIME};
use pve_imds_middleware::catch::CatchLayer;
use pve_imds_middleware::classify::ClassifyLayer;
use pve_imds_middleware::deadline::DeadlineLayer;
use pve_imds_middleware::emulate::EmulateLayer;
use pve_imds_middleware::guard::{GuardLayer, GuardSettings};
use pve_imds_middleware::identify::IdentifyLayer;
use pve_imds_middleware::limits::{GuestLimits, LimitsLayer};
use pve_imds_middleware::rescue::RescueLayer;
use pve_imds_middleware::telemetry::{Meters, TelemetryLayer};
use pve_imds_middleware::{RequestBody, ResponseBody, full};
use pve_imds_model::conf;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::request::{Caller, Directory, Emulation, Endpoint, Link, Peer, UnknownCaller};
use pve_imds_model::tap::TapName;
use pve_imds_model::vm::Vm;
use tower::util::BoxCloneService;
use tower::{ServiceBuilder, ServiceExt, service_fn};

type Stack = BoxCloneService<Request<RequestBody>, Response<ResponseBody>, Infallible>;

/// A writer into a string.
#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// All that is logged in this process. A subscriber for one thread would do, but a line that another thread meets first
/// without one would be switched off for all (tracing caches each line's interest).
static LOG: LazyLock<Text> = LazyLock::new(|| {
    let text = Text::default();
    let writer = text.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    text
});

/// Knows VM 106 and nobody else.
struct Only106;

impl Directory for Only106 {
    fn find(&self, link: Link) -> Result<Arc<Vm>, UnknownCaller> {
        let vmid = link.tap.vmid;
        if vmid.get() == 106 {
            Ok(Arc::new(conf::parse(vmid, b"name: web\n").vm))
        } else {
            Err(UnknownCaller::NoConfig)
        }
    }
}

fn stack(tap: &str) -> Stack {
    LazyLock::force(&LOG);
    let link = Link { tap: TapName::parse(tap).unwrap(), index: 7, since: 0 };
    ServiceBuilder::new()
        .layer(CatchLayer::new(link))
        .layer(TelemetryLayer::with_meters(link, Arc::new(Meters::new())))
        .layer(ClassifyLayer::new())
        .layer(RescueLayer::new(link))
        .layer(LimitsLayer::new(GuestLimits::new()))
        .layer(DeadlineLayer::default())
        .layer(GuardLayer::new(GuardSettings::default()))
        .layer(IdentifyLayer::new(Arc::new(Only106), link))
        .layer(EmulateLayer::new(Emulation::Auto))
        .service(service_fn(datasource))
        .boxed_clone()
}

/// Answers like a datasource: from extensions, with faults.
async fn datasource(request: Request<RequestBody>) -> Result<Response<ResponseBody>, Fault> {
    let extensions = request.extensions();
    assert_eq!(extensions.get(), Some(&Emulation::Auto));
    let endpoint = *extensions.get::<Endpoint>().unwrap();
    match request.uri().path() {
        "/boom" | "/pxe/boom" => panic!("canary-in-a-panic"),
        "/stuck" => std::future::pending().await,
        "/sink" => {
            let body = request.into_body().collect().await.map_err(|_| Fault::bad_request())?;
            return Ok(Response::new(full(body.to_bytes().len().to_string())));
        }
        _ => {}
    }
    let vm = extensions.get::<Caller>().unwrap().require()?;
    match endpoint {
        Endpoint::NocloudMetaData => Ok(Response::new(full(format!("{}\n", vm.vmid)))),
        Endpoint::NocloudUserData => {
            Err(Fault::unavailable(Outcome::NotesInvalid, RetryAfter::DEFAULT).because("line 3: not closed"))
        }
        _ => Err(Fault::not_found()),
    }
}

/// Asks and tells the answer as `status outcome retry-after body`.
async fn ask(stack: &Stack, method: Method, target: &str, headers: &[(&str, &str)], body: &'static str) -> String {
    let mut request = Request::builder().method(method).uri(target).header(HOST, "169.254.169.254");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(full(body)).unwrap();
    request.extensions_mut().insert(Peer { mac: [2, 0, 0, 0, 0, 1], ip: "10.0.0.5".parse().unwrap(), port: 4022 });
    let (parts, body) = stack.clone().oneshot(request).await.unwrap().into_parts();
    let outcome = parts.extensions.get().map_or("-", |outcome: &Outcome| outcome.word());
    let retry = parts.headers.get(RETRY_AFTER).map_or("-", |value| value.to_str().unwrap());
    let body = body.collect().await.unwrap().to_bytes();
    format!("{} {outcome} {retry} {:?}", parts.status.as_u16(), std::str::from_utf8(&body).unwrap())
}

async fn get(stack: &Stack, target: &str) -> String {
    ask(stack, Method::GET, target, &[], "").await
}

#[tokio::test(start_paused = true)]
async fn every_way_through_the_stack_ends_in_an_answer() {
    const EXIT: &str = "\"#!ipxe\\nexit\\n\"";
    let (known, unknown) = (stack("tap106i0"), stack("tap107i0"));
    assert_eq!(get(&known, "/nocloud/meta-data").await, "200 - - \"106\\n\"");
    assert_eq!(get(&known, "//nocloud/meta-data/").await, "200 - - \"106\\n\"");
    assert_eq!(get(&known, "/nocloud/user-data").await, "503 notes_invalid 2 \"notes_invalid\\n\"");
    assert_eq!(get(&known, "/nothing").await, "404 not_found - \"\"");
    assert_eq!(get(&known, "/boom").await, "500 panic - \"panic\\n\"");
    assert_eq!(get(&known, "/pxe/boom").await, format!("200 panic - {EXIT}"));
    assert_eq!(get(&known, "/pxe").await, format!("200 not_found - {EXIT}"));
    assert_eq!(get(&unknown, "/nocloud/meta-data").await, "503 vm_unknown 1 \"vm_unknown\\n\"");
    assert_eq!(get(&unknown, "/pxe").await, format!("200 vm_unknown - {EXIT}"));

    let forwarded = [("x-forwarded-for", "10.0.0.9")];
    let answer = ask(&known, Method::GET, "/nocloud/meta-data", &forwarded, "").await;
    assert_eq!(answer, "403 forwarded - \"forwarded\\n\"");
    let answer = ask(&known, Method::GET, "/pxe", &[("host", "evil.example.org")], "").await;
    assert_eq!(answer, "403 host_refused - \"host_refused\\n\"");
    let answer = ask(&known, Method::TRACE, "/nocloud/meta-data", &[], "").await;
    assert_eq!(answer, "405 method_not_allowed - \"method_not_allowed\\n\"");

    static LARGE: [u8; 8193] = [b'x'; 8193];
    let large = std::str::from_utf8(&LARGE).unwrap();
    assert_eq!(ask(&known, Method::POST, "/sink", &[], &large[1..]).await, "200 - - \"8192\"");
    assert_eq!(ask(&known, Method::POST, "/sink", &[], large).await, "413 body_too_large - \"body_too_large\\n\"");

    let start = tokio::time::Instant::now();
    assert_eq!(get(&known, "/stuck").await, "503 deadline 2 \"deadline\\n\"");
    assert_eq!(start.elapsed(), REQUEST_TIME);
    assert_eq!(get(&known, "/nocloud/meta-data").await, "200 - - \"106\\n\"", "the guest is served on");
}

#[tokio::test(start_paused = true)]
async fn a_guest_beyond_its_share_is_told_to_wait_and_its_neighbour_is_not() {
    let (greedy, neighbour) = (stack("tap106i0"), stack("tap106i1"));
    for _ in 0..REQUEST_BURST.get() {
        assert!(get(&greedy, "/nocloud/meta-data").await.starts_with("200"));
    }
    // Another connection of the same guest is a clone of the same stack.
    assert_eq!(get(&greedy.clone(), "/nocloud/meta-data").await, "503 rate_limited 1 \"rate_limited\\n\"");
    assert!(get(&neighbour, "/nocloud/meta-data").await.starts_with("200"));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(get(&greedy, "/nocloud/meta-data").await.starts_with("200"));
}

#[test]
fn the_operator_sees_each_request_once_and_no_secret() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let stack = stack("tap106i5");
            let token = [("x-aws-ec2-metadata-token", "canary-in-a-header"), ("authorization", "canary-too")];
            for target in ["/nocloud/meta-data?canary-in-a-query", "/nocloud/user-data", "/boom", "/nothing"] {
                ask(&stack, Method::POST, target, &token, "canary-in-a-body").await;
            }
        });
    });

    let metrics = recorder.handle().render();
    for series in [
        r#"endpoint="nocloud_meta_data",code="200",outcome="ok"} 1"#,
        r#"endpoint="nocloud_user_data",code="503",outcome="notes_invalid"} 1"#,
        r#"endpoint="other",code="500",outcome="panic"} 1"#,
        r#"endpoint="other",code="404",outcome="not_found"} 1"#,
        "pve_imds_http_in_flight_requests 0",
    ] {
        assert!(metrics.contains(series), "{series} in {metrics}");
    }
    let log = String::from_utf8(LOG.0.lock().unwrap().clone()).unwrap();
    let log: String = log.split_inclusive('\n').filter(|line| line.contains("tap106i5")).collect();
    for line in [
        "pve_imds::access: tap106i5 10.0.0.5:4022 POST /nocloud/meta-data 200 ok 4 B 0 us",
        "pve_imds::access: tap106i5 10.0.0.5:4022 POST /nocloud/user-data 503 notes_invalid 14 B 0 us",
        "pve_imds::access: tap106i5 10.0.0.5:4022 POST /boom 500 panic 0 B 0 us",
        "pve_imds::access: tap106i5 10.0.0.5:4022 POST /nothing 404 not_found 0 B 0 us",
        "request failed: notes_invalid (503): line 3: not closed",
        "request failed: a panic",
        "vmid=106",
    ] {
        assert!(log.contains(line), "{line} in {log}");
    }
    assert_eq!(log.matches("pve_imds::access: ").count(), 4, "{log}");
    assert!(!log.contains("canary") && !metrics.contains("canary"), "{log}");
}
