#![allow(clippy::unwrap_used)]
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use opentelemetry_sdk::error::OTelSdkError;
use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::prometheus::recorder;

/// A collector on loopback that answers with the given statuses in turn, then hangs up. It hands over each request's
/// first line and body.
fn collector(statuses: &'static [u16]) -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = channel();
    thread::spawn(move || {
        for status in statuses {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                head.push(line.trim().to_ascii_lowercase());
            }
            let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            assert!(head.contains(&"content-type: application/x-protobuf".to_owned()), "{head:?}");
            sender.send((head.remove(0), body)).unwrap();
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            reader.into_inner().write_all(answer.as_bytes()).unwrap();
        }
    });
    (base, received)
}

fn contains(body: &[u8], word: &str) -> bool {
    body.windows(word.len()).any(|part| part == word.as_bytes())
}

fn settings() -> Settings {
    Settings { service_version: "1.2.3-test".to_owned(), node: "pve7".to_owned(), ..Settings::default() }
}

#[test]
fn an_endpoint_is_a_base_url() {
    for (base, expected) in [
        ("http://127.0.0.1:4318", Some("http://127.0.0.1:4318/v1/traces")),
        ("http://collector:4318/", Some("http://collector:4318/v1/traces")),
        ("http://[::1]:4318/otlp", Some("http://[::1]:4318/otlp/v1/traces")),
        ("https://collector:4318", None),
        ("collector:4318", None),
        ("http://", None),
        ("http:///path", None),
        ("http://collector:4318/?a", None),
        ("http://col lector", None),
        ("", None),
    ] {
        assert_eq!(endpoint(base).ok().as_deref(), expected, "{base}");
    }
    let error = endpoint("http://user:secret@collector").unwrap_err().to_string();
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn our_spans_reach_the_collector_and_a_failure_only_costs_spans() {
    let (base, received) = collector(&[400, 200]);
    let (recorder, metrics) = recorder();
    let traces =
        metrics::with_local_recorder(&recorder, || Traces::start(&endpoint(&base).unwrap(), &settings()).unwrap());
    let subscriber = tracing_subscriber::registry().with(traces.layer());
    tracing::subscriber::with_default(subscriber, || {
        drop(tracing::info_span!(target: "pve_imds::access", "lost"));
        traces.provider.force_flush().unwrap_err();
        drop(tracing::info_span!(target: "hyper::client", "foreign"));
        drop(tracing::debug_span!(target: "pve_imds::access", "detail"));
        tracing::info_span!(target: "pve_imds::access", "request", vmid = 106, path = "/nocloud/meta-data").in_scope(
            || {
                tracing::info!(target: "pve_imds::access", "told");
            },
        );
        traces.provider.force_flush().unwrap();
    });
    assert!(metrics.render().contains("pve_imds_otlp_export_failures_total 1\n"), "{}", metrics.render());

    let (line, body) = received.recv().unwrap();
    assert_eq!(line, "post /v1/traces http/1.1");
    assert!(contains(&body, "lost"));
    let (_, body) = received.recv().unwrap();
    for word in ["request", "/nocloud/meta-data", "told", "service.name", "pve-imds", "1.2.3-test", "host.name", "pve7"]
    {
        assert!(contains(&body, word), "{word}");
    }
    for word in ["foreign", "detail", "lost"] {
        assert!(!contains(&body, word), "{word}");
    }
}

/// Takes what it is given, or not.
#[derive(Debug)]
struct Moody(bool);

impl SpanExporter for Moody {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        if self.0 { Ok(()) } else { Err(OTelSdkError::InternalFailure("connection refused".to_owned())) }
    }
}

#[test]
fn a_collector_that_takes_nothing_is_named_with_its_option_once() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        let mut exporter = Reported::new(Moody(false), "http://collector:4318/v1/traces");
        for takes in [false, false, true] {
            exporter.inner = Moody(takes);
            let export = std::pin::pin!(exporter.export(Vec::new()));
            assert!(export.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready());
        }
    });
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    for part in ["WARN", "takes no spans at http://collector:4318/v1/traces (otlp.endpoint)", "connection refused"] {
        assert!(lines[0].contains(part), "{part} in {text}");
    }
    assert!(lines[1].contains("takes spans again"), "{text}");
}

/// A log to look at.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
