//! The installation as a whole, in a process of its own: all three receivers, once, and a farewell.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use pve_imds_observability::{Format, InstallError, Settings, install};

#[test]
fn installed_once_it_counts_traces_and_says_farewell() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = listener.local_addr().unwrap();
    let (heard, first_bytes) = channel();
    thread::spawn(move || {
        // A collector that takes a request and never answers: the farewell must end all the same.
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 20];
        stream.read_exact(&mut bytes).unwrap();
        heard.send(bytes.to_vec()).unwrap();
        thread::park();
    });

    let settings = Settings {
        level: "off".to_owned(),
        format: Format::Json,
        otlp_endpoint: Some(format!("http://{collector}")),
        service_version: "1.2.3".to_owned(),
        node: "pve7".to_owned(),
    };
    // What cannot work installs nothing, so that the next try may.
    let bad = Settings { otlp_endpoint: Some("nowhere".to_owned()), ..settings.clone() };
    assert!(matches!(install(&bad), Err(InstallError::Endpoint(_))));
    assert!(matches!(install(&Settings { level: "inof".to_owned(), ..settings.clone() }), Err(InstallError::Level(_))));

    let guard = install(&settings).unwrap();
    let error = install(&settings).unwrap_err();
    assert!(matches!(error, InstallError::Twice));
    assert_eq!(error.to_string(), "logs, metrics and traces are already installed in this process");

    metrics::counter!("some_total", "outcome" => "ok").increment(3);
    drop(tracing::info_span!(target: "pve_imds::access", "request"));
    let metrics = guard.metrics().clone();
    let (farewell, said) = channel();
    thread::spawn(move || {
        drop(guard);
        farewell.send(())
    });
    said.recv_timeout(Duration::from_secs(10)).unwrap();

    assert_eq!(first_bytes.recv().unwrap(), b"POST /v1/traces HTTP");
    let text = metrics.render();
    for line in ["some_total{outcome=\"ok\"} 3", "pve_imds_build_info{version=\"1.2.3\"} 1"] {
        assert!(text.lines().any(|other| other == line), "{line} in {text}");
    }
}
