#![allow(clippy::unwrap_used)]
use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::{ResponseBody, boxed, empty, full};

/// One line of the table: what the request is, how it is judged.
type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u64, Result<(), (u16, Outcome)>);

#[test]
fn the_table_holds() {
    let ours = ("host", "169.254.169.254");
    let forwarded = Err((403, Outcome::Forwarded));
    let refused = Err((403, Outcome::HostRefused));
    let method = Err((405, Outcome::MethodNotAllowed));
    let large = Err((413, Outcome::BodyTooLarge));
    let rows: &[Row] = &[
        ("GET", "/", &[], 0, Ok(())),
        ("GET", "/", &[ours], 0, Ok(())),
        ("HEAD", "/", &[ours], 0, Ok(())),
        ("PUT", "/latest/api/token", &[ours, ("content-length", "0")], 0, Ok(())),
        ("POST", "/pxe/done", &[ours], 8192, Ok(())),
        ("BREW", "/", &[ours], 0, Ok(())),
        ("GET", "/", &[ours, ("x-forwarded-for", "10.0.0.1")], 0, forwarded),
        ("GET", "/", &[ours, ("X-Forwarded-For", "")], 0, forwarded),
        ("GET", "/pxe", &[ours, ("forwarded", "for=10.0.0.1")], 0, forwarded),
        ("PUT", "/latest/api/token", &[ours, ("via", "1.1 squid")], 0, forwarded),
        ("GET", "/", &[("host", "evil.example.org"), ("via", "1.1 squid")], 0, forwarded),
        ("GET", "/", &[("host", "evil.example.org")], 0, refused),
        ("GET", "/pxe", &[("host", "evil.example.org")], 0, refused),
        ("GET", "/", &[ours, ("host", "evil.example.org")], 0, refused),
        ("GET", "/", &[("host", "caf\u{e9}")], 0, refused),
        ("GET", "http://169.254.169.254/", &[ours], 0, Ok(())),
        ("GET", "http://169.254.169.254/", &[], 0, Ok(())),
        ("GET", "http://evil.example.org/", &[ours], 0, refused),
        ("GET", "http://169.254.169.254@evil.example.org/", &[ours], 0, refused),
        ("GET", "http://169.254.169.254/", &[("host", "evil.example.org")], 0, refused),
        ("GET", "/", &[("host", "metadata.example.org")], 0, Ok(())),
        ("GET", "/", &[("host", "instance-data.ec2.internal")], 0, Ok(())),
        ("GET", "/", &[("host", "[fe80::a9fe:a9fe%25eth0]:80")], 0, Ok(())),
        ("TRACE", "/", &[ours], 0, method),
        ("CONNECT", "169.254.169.254:80", &[ours], 0, method),
        ("CONNECT", "evil.example.org:443", &[], 0, refused),
        ("TRACE", "/", &[ours], 9000, method),
        ("POST", "/", &[ours], 8193, large),
        ("GET", "/", &[ours], u64::MAX, large),
    ];
    let settings = GuardSettings { allowed_hosts: vec!["metadata.example.org".to_owned()], ..Default::default() };
    let rules = GuardLayer::new(settings).rules;
    for (method, target, headers, body, expected) in rows {
        let mut request = Request::builder().method(*method).uri(*target);
        for (name, value) in *headers {
            request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let got = rules.judge(&parts, *body).map_err(|fault| (fault.status(), fault.outcome()));
        assert_eq!(got, *expected, "{method} {target} {headers:?} {body}");
    }
}

#[test]
fn a_proxy_or_a_foreign_name_is_refused_on_every_path() {
    let rules = GuardLayer::new(GuardSettings::default()).rules;
    let paths = ["/", "/pxe", "/pxe/job", "/nocloud", "/nocloud/meta-data", "/nocloud/user-data", "/latest/api/token"];
    for path in paths {
        for (name, value, outcome) in [
            ("x-forwarded-for", "192.0.2.1", Outcome::Forwarded),
            ("forwarded", "for=192.0.2.1", Outcome::Forwarded),
            ("via", "1.1 proxy", Outcome::Forwarded),
            ("host", "evil.example.org", Outcome::HostRefused),
        ] {
            for method in ["GET", "HEAD", "POST", "PUT"] {
                let request = Request::builder().method(method).uri(path).header(name, value);
                let (parts, ()) = request.body(()).unwrap().into_parts();
                let refused = rules.judge(&parts, 0).map_err(|fault| (fault.status(), fault.outcome()));
                assert_eq!(refused, Err((403, outcome)), "{method} {path} {name}");
            }
        }
    }
}

/// A body of `pieces` KiB that does not say how long it is, and counts how many were read.
struct Unsized {
    pieces: usize,
    read: Arc<AtomicUsize>,
}

impl Body for Unsized {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.read.load(Ordering::Relaxed) == this.pieces {
            return Poll::Ready(None);
        }
        this.read.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 1024])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Posts `pieces` KiB to a reader that answers with the number of bytes, whatever stops it.
async fn post(layer: &GuardLayer, pieces: usize, headers: &[(&str, &str)]) -> (Result<String, u16>, usize) {
    let read = Arc::new(AtomicUsize::new(0));
    let mut request = Request::post("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(boxed(Unsized { pieces, read: Arc::clone(&read) })).unwrap();
    let reader = service_fn(|request: Request<RequestBody>| async move {
        let text = match request.into_body().collect().await {
            Ok(body) => body.to_bytes().len().to_string(),
            Err(error) => error.downcast::<Fault>().unwrap().outcome().to_string(),
        };
        Ok::<_, Fault>(Response::new(full(text)))
    });
    let result = match layer.layer(reader).oneshot(request).await {
        Ok(response) => {
            let text = response.into_body().collect().await.unwrap().to_bytes();
            Ok(String::from_utf8(text.to_vec()).unwrap())
        }
        Err(fault) => Err(fault.status()),
    };
    (result, read.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_body_that_does_not_say_its_length_is_counted() {
    let layer = GuardLayer::new(GuardSettings::default());
    assert_eq!(post(&layer, 8, &[]).await, (Ok("8192".to_owned()), 8));
    assert_eq!(post(&layer, 9, &[]).await, (Err(413), 9), "the reader's 200 is not believed");
    assert_eq!(post(&layer, 1 << 20, &[]).await, (Err(413), 9), "nothing more is read");
}

#[tokio::test]
async fn a_body_that_says_so_is_drained_a_little() {
    let layer = GuardLayer::new(GuardSettings::default());
    assert_eq!(post(&layer, 64, &[("content-length", "65536")]).await, (Err(413), 64));
    assert_eq!(post(&layer, 9, &[("content-length", "65536")]).await, (Err(413), 9), "it may end early");
    assert_eq!(post(&layer, 65, &[("content-length", "65537")]).await, (Err(413), 0));
    assert_eq!(post(&layer, 64, &[("content-length", "65536"), ("expect", "100-continue")]).await, (Err(413), 0));
}

#[tokio::test]
async fn the_limit_is_a_setting() {
    let layer = GuardLayer::new(GuardSettings { body_limit: 4 << 20, ..Default::default() });
    assert_eq!(post(&layer, 3 << 10, &[("content-length", "3145728")]).await, (Ok("3145728".to_owned()), 3 << 10));
}

#[tokio::test]
async fn a_request_without_body_is_passed_on_as_it_is() {
    let service =
        GuardLayer::new(GuardSettings::default()).layer(service_fn(|request: Request<RequestBody>| async move {
            assert!(request.body().is_end_stream());
            Ok::<_, Fault>(Response::new(ResponseBody::default()))
        }));
    service.oneshot(Request::get("/").body(empty()).unwrap()).await.unwrap();
}
