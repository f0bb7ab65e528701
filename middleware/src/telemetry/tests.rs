#![allow(clippy::unwrap_used)]
use std::convert::Infallible;
use std::time::Duration;

use http_body_util::BodyExt;
use metrics_exporter_prometheus::PrometheusBuilder;
use pve_imds_model::fault::Outcome;
use pve_imds_model::request::Peer;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::testing::{Log, link};
use crate::{boxed, full};

/// What the records of some requests come to.
struct Told {
    log: String,
    metrics: String,
}

impl Told {
    /// The value of a series, named as Prometheus prints it.
    fn metric(&self, series: &str) -> Option<&str> {
        self.metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
    }
}

/// Runs `requests` against a small service behind the layer and tells what was recorded; time is paused.
fn record<F: Future<Output = ()>>(level: &str, requests: impl FnOnce(TestService) -> F) -> Told {
    let recorder = PrometheusBuilder::new().build_recorder();
    let log = Log::default();
    metrics::with_local_recorder(&recorder, || {
        let _on = log.install(level);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            requests(TestService(TelemetryLayer::with_meters(link(), Arc::new(Meters::new())))).await;
        });
    });
    Told { log: log.text(), metrics: recorder.handle().render() }
}

/// Answers by path.
#[derive(Clone)]
struct TestService(TelemetryLayer);

impl TestService {
    async fn ask(&self, method: Method, target: &str) -> Response<ResponseBody> {
        let mut request = Request::builder().method(method).uri(target).body(()).unwrap();
        let (mac, ip) = ([2, 0, 0, 0, 0, 1], "10.0.0.5".parse().unwrap());
        request.extensions_mut().insert(Peer { mac, ip, port: 4022 });
        let answers =
            service_fn(|request: Request<()>| async move { Ok::<_, Infallible>(answer(request.uri().path()).await) });
        self.0.layer(answers).oneshot(request).await.unwrap()
    }
}

async fn answer(path: &str) -> Response<ResponseBody> {
    let mut response = Response::new(match path {
        "/stuck" => std::future::pending().await,
        "/boom" => panic!("a secret"),
        "/empty" => ResponseBody::default(),
        "/broken" => {
            let pieces = [Ok(Frame::data(Bytes::from("ab"))), Err(BoxError::from("torn"))];
            boxed(http_body_util::StreamBody::new(futures_util::stream::iter(pieces)))
        }
        "/endless" => {
            let piece = Ok::<_, BoxError>(Frame::data(Bytes::from("abcd")));
            boxed(http_body_util::StreamBody::new(futures_util::stream::iter([piece])))
        }
        _ => full("hello"),
    });
    match path {
        "/slow" => tokio::time::sleep(Duration::from_millis(7)).await,
        "/endless" => drop(response.headers_mut().insert(CONTENT_LENGTH, 4.into())),
        "/refused" => {
            *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
            response.extensions_mut().insert(Outcome::RateLimited);
        }
        "/nocloud/meta-data" => {
            *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
            response.extensions_mut().insert(Outcome::VmUnknown);
            response.extensions_mut().insert(Endpoint::NocloudMetaData);
        }
        _ => {}
    }
    response
}

const IN_FLIGHT: &str = "pve_imds_http_in_flight_requests";

#[test]
fn a_request_is_told_when_its_body_has_ended_and_only_then() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let log = Log::default();
    metrics::with_local_recorder(&recorder, || {
        let _on = log.install("info");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let service = TestService(TelemetryLayer::with_meters(link(), Arc::new(Meters::new())));
            let response = service.ask(Method::GET, "/slow?token=secret").await;
            assert_eq!(log.text(), "");
            assert!(recorder.handle().render().contains(&format!("{IN_FLIGHT} 1\n")));
            tokio::time::advance(Duration::from_millis(5)).await;
            response.into_body().collect().await.unwrap();
        });
    });
    let told = Told { log: log.text(), metrics: recorder.handle().render() };
    assert_eq!(told.log.lines().count(), 1, "{}", told.log);
    for word in [
        "INFO",
        "pve_imds::access: tap106i0 10.0.0.5:4022 GET /slow 200 ok 5 B 12000 us",
        "status=200",
        "outcome=\"ok\"",
        "endpoint=\"other\"",
        "duration_us=12000",
    ] {
        assert!(told.log.contains(word), "{word} in {}", told.log);
    }
    assert!(!told.log.contains("secret"));
    assert_eq!(told.metric(IN_FLIGHT), Some("0"));
    assert_eq!(told.metric("pve_imds_http_response_bytes_total"), Some("5"));
    let series = "pve_imds_http_requests_total{endpoint=\"other\",code=\"200\",outcome=\"ok\"}";
    assert_eq!(told.metric(series), Some("1"), "{}", told.metrics);
    assert_eq!(told.metric("pve_imds_http_request_duration_seconds_sum{endpoint=\"other\"}"), Some("0.012"));
}

#[test]
fn what_is_known_further_in_is_told() {
    let told = record("info", |service| async move {
        service.ask(Method::GET, "/nocloud/meta-data").await.into_body().collect().await.unwrap();
    });
    assert!(told.log.contains("GET /nocloud/meta-data 503 vm_unknown 5 B"), "{}", told.log);
    let series = "pve_imds_http_requests_total{endpoint=\"nocloud_meta_data\",code=\"503\",outcome=\"vm_unknown\"}";
    assert_eq!(told.metric(series), Some("1"), "{}", told.metrics);
}

#[test]
fn each_way_to_end_is_counted_once() {
    const WHOLE: &str = "pve_imds_http_requests_total{endpoint=\"other\",code=\"200\",outcome=\"ok\"}";
    const ABORTED: &str = "pve_imds_http_requests_aborted_total{endpoint=\"other\"}";
    const PANIC: &str = "pve_imds_http_requests_total{endpoint=\"other\",code=\"500\",outcome=\"panic\"}";
    /// How far the answer is read.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Read {
        Never,
        OneFrame,
        All,
    }
    for (method, path, read, series, line) in [
        (Method::GET, "/hello", Read::All, WHOLE, "GET /hello 200 ok 5 B"),
        // A server does not ask for the end of a body when it knows that it is there, nor for any body of a HEAD.
        (Method::GET, "/hello", Read::OneFrame, WHOLE, "GET /hello 200 ok 5 B"),
        (Method::GET, "/endless", Read::OneFrame, WHOLE, "GET /endless 200 ok 4 B"),
        (Method::GET, "/empty", Read::Never, WHOLE, "GET /empty 200 ok 0 B"),
        (Method::HEAD, "/hello", Read::Never, WHOLE, "HEAD /hello 200 ok 0 B"),
        (Method::GET, "/hello", Read::Never, ABORTED, "GET /hello 200 aborted 0 B"),
        (Method::GET, "/broken", Read::OneFrame, ABORTED, "GET /broken 200 aborted 2 B"),
        (Method::GET, "/broken", Read::All, ABORTED, "GET /broken 200 aborted 2 B"),
        (Method::GET, "/stuck", Read::All, ABORTED, "GET /stuck - aborted 0 B"),
        (Method::GET, "/boom", Read::All, PANIC, "GET /boom 500 panic 0 B"),
    ] {
        let told = record("info", |service| async move {
            let task = tokio::task::LocalSet::new();
            let reading = async move {
                let mut body = service.ask(method, path).await.into_body();
                if read == Read::OneFrame {
                    drop(body.frame().await);
                }
                while read == Read::All && body.frame().await.is_some_and(|frame| frame.is_ok()) {}
            };
            // A guest that waits a minute goes away; a panic ends the task and not the test.
            let reading = task.spawn_local(tokio::time::timeout(Duration::from_secs(60), reading));
            drop(task.run_until(reading).await);
        });
        assert_eq!(told.metric(series), Some("1"), "{path} {read:?}\n{}", told.metrics);
        let ends: u32 =
            [WHOLE, ABORTED, PANIC].iter().filter_map(|series| told.metric(series)?.parse::<u32>().ok()).sum();
        assert_eq!(ends, 1, "{path} {read:?}");
        assert_eq!(told.metric(IN_FLIGHT), Some("0"), "{path} {read:?}");
        assert!(told.log.contains(line) && told.log.lines().count() == 1, "{line} in {}", told.log);
    }
}

#[test]
fn a_panic_on_a_pxe_path_is_counted_as_it_is_answered() {
    let told = record("info", |_| async {
        let layer = TelemetryLayer::with_meters(link(), Arc::new(Meters::new()));
        let service = layer.layer(service_fn(|_: Request<()>| async {
            if true {
                panic!("a secret")
            }
            Ok::<_, Infallible>(Response::new(full("")))
        }));
        let request = service.oneshot(Request::get("/pxe").body(()).unwrap());
        drop(futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(request)).await);
    });
    let series = "pve_imds_http_requests_total{endpoint=\"pxe\",code=\"200\",outcome=\"panic\"}";
    assert_eq!(told.metric(series), Some("1"), "{}", told.metrics);
    assert!(!told.log.contains("secret"), "{}", told.log);
}

#[test]
fn a_guest_that_is_limited_leaves_no_lines_but_is_counted() {
    let ask = |service: TestService| async move {
        for _ in 0..1000 {
            service.ask(Method::GET, "/refused").await.into_body().collect().await.unwrap();
        }
    };
    let told = record("info", ask);
    assert_eq!(told.log, "");
    let series = "pve_imds_http_requests_total{endpoint=\"other\",code=\"503\",outcome=\"rate_limited\"}";
    assert_eq!(told.metric(series), Some("1000"));
    assert_eq!(record("debug", ask).log.lines().count(), 1000);
}

#[test]
fn a_guest_that_asks_without_end_does_not_fill_the_log() {
    let told = record("info", |service| async move {
        for _ in 0..400 {
            service.ask(Method::GET, "/hello").await.into_body().collect().await.unwrap();
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        service.ask(Method::GET, "/hello").await.into_body().collect().await.unwrap();
    });
    let burst = usize::try_from(crate::bounds::LOG_LINE_BURST.get()).unwrap();
    assert_eq!(told.log.lines().count(), burst + 1);
    let unsaid = format!("us ({} more before it not logged)", 400 - burst);
    assert!(told.log.lines().last().unwrap().contains(&unsaid), "{}", told.log);
}
