//! A client of its own, and a row for each answer and each failure.
#![allow(clippy::disallowed_types)]

use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream, SslVerifyMode};
use openssl::x509::X509;
use serde_json::{Value, json};

use super::*;

const PATH: &str = "kv/data/pve-imds/pools/a/worker";

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// A connection that was not closed in time would be waited for this long.
const SOON: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

type Tls = SslStream<TcpStream>;

fn tcp(store: &Store) -> TcpStream {
    let stream = TcpStream::connect_timeout(&store.address(), LONG).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

fn shake(store: &Store, authority: &Authority, name: &str) -> Result<Tls, String> {
    // No connector: that reads all of the system's certificates.
    let mut context = SslContext::builder(SslMethod::tls_client()).unwrap();
    context.set_verify(SslVerifyMode::PEER);
    context.cert_store_mut().add_cert(X509::from_pem(&authority.pem()).unwrap()).unwrap();
    let mut ssl = Ssl::new(&context.build()).unwrap();
    match name.parse() {
        Ok(ip) => ssl.param_mut().set_ip(ip).unwrap(),
        Err(_) => ssl.param_mut().set_host(name).unwrap(),
    }
    ssl.connect(tcp(store)).map_err(|error| error.to_string())
}

fn connect(store: &Store, authority: &Authority) -> Tls {
    shake(store, authority, "127.0.0.1").unwrap()
}

fn send(stream: &mut impl Write, target: &str, headers: &str) {
    send_as(stream, "GET", target, headers);
}

fn send_as(stream: &mut impl Write, method: &str, target: &str, headers: &str) {
    let head = format!("{method} {target} HTTP/1.1\r\nHost: store\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
}

fn head(stream: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head).unwrap())
}

fn length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok())
}

/// An answer with a length.
fn reply(stream: &mut impl Read) -> io::Result<Reply> {
    let head = head(stream)?;
    let mut body = vec![0; length(&head).unwrap_or(0)];
    stream.read_exact(&mut body)?;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok(Reply { status, head, body })
}

/// One piece of an answer in chunks; the last is empty.
fn chunk(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    let count = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
    let mut piece = vec![0; count + 2];
    stream.read_exact(&mut piece)?;
    piece.truncate(count);
    Ok(piece)
}

fn get(stream: &mut (impl Read + Write), path: &str) -> Reply {
    send(stream, &format!("/v1/{path}"), "X-Vault-Token: good\r\n");
    reply(stream).unwrap()
}

/// A store with one set and a token for its pool.
fn store() -> (Store, Authority) {
    let authority = Authority::new().unwrap();
    let store = Store::start(&authority).unwrap();
    store.token("good", &["kv/data/pve-imds/pools/*", "kv/pve-imds/*", "kv/data"]);
    store.put(PATH, json!({ "password": "canary", "port": 5432 }));
    (store, authority)
}

/// Nobody says anything on it any more.
fn is_closed(stream: &mut impl Read) -> bool {
    let began = Instant::now();
    let mut byte = [0];
    !matches!(stream.read(&mut byte), Ok(1)) && began.elapsed() < SOON
}

#[test]
fn a_set_is_given_as_openbao_gives_it() {
    let (store, authority) = store();
    let mut tls = connect(&store, &authority);
    let got = get(&mut tls, PATH);
    assert_eq!(got.status, 200);
    assert!(got.head.contains("\r\nContent-Type: application/json\r\n"), "{}", got.head);
    assert_eq!(
        got.json(),
        json!({
            "request_id": "00000000-0000-4000-8000-000000000001",
            "lease_id": "",
            "renewable": false,
            "lease_duration": 0,
            "data": {
                "data": { "password": "canary", "port": 5432 },
                "metadata": {
                    "created_time": "2026-01-02T03:04:05.678901234Z",
                    "custom_metadata": null,
                    "deletion_time": "",
                    "destroyed": false,
                    "version": 1,
                },
            },
            "wrap_info": null,
            "warnings": null,
            "auth": null,
        })
    );
}

#[test]
fn the_latest_version_counts_whatever_became_of_it() {
    let (store, authority) = store();
    let mut tls = connect(&store, &authority);
    let mut now = || {
        let got = get(&mut tls, PATH);
        let data = got.json()["data"].clone();
        let metadata = &data["metadata"];
        let is_dated = metadata["deletion_time"].as_str().is_some_and(|time| !time.is_empty());
        let version = metadata["version"].as_u64().unwrap();
        (got.status, data["data"].clone(), is_dated, metadata["destroyed"].as_bool().unwrap(), version)
    };
    store.put(PATH, json!({ "a": "b" }));
    assert_eq!(now(), (200, json!({ "a": "b" }), false, false, 2));
    store.delete(PATH);
    assert_eq!(now(), (404, Value::Null, true, false, 2));
    store.put(PATH, json!({}));
    assert_eq!(now(), (200, json!({}), false, false, 3));
    store.destroy(PATH);
    assert_eq!(now(), (404, Value::Null, false, true, 3));
}

#[test]
fn what_cannot_be_read_is_answered_as_openbao_does() {
    let (store, authority) = store();
    store.put("kv/data/pve-imds/pools/x+y/ü", json!({}));
    store.put("kv/data/pve-imds/pools/%2e/a", json!({}));
    let mut tls = connect(&store, &authority);
    let (good, denied, nothing) = ("X-Vault-Token: good\r\n", "permission denied", &[][..]);
    for (method, path, headers, status, errors) in [
        ("GET", "/v1/kv/data/pve-imds/pools/a/worker", "x-VAULT-token:good\r\n", 200, None),
        ("GET", "/v1/kv/data/pve-imds/pools/x%2By/%C3%BC", good, 200, None),
        ("GET", "/v1/kv/data/pve-imds/pools/x+y/%c3%bc", good, 200, None),
        ("GET", "/v1/kv/data/pve-imds/pools/%252e/a", good, 200, None),
        ("GET", "/v1/kv/data/pve-imds/pools/a/worker", "", 403, Some(&[denied][..])),
        ("GET", "/v1/kv/data/pve-imds/pools/a/worker", "X-Vault-Token: goo\r\n", 403, Some(&[denied])),
        ("GET", "/v1/kv/data/pve-imds/tags/a/worker", good, 403, Some(&[denied])),
        ("GET", "/v1/kv/data/pve-imds/pools", good, 403, Some(&[denied])),
        ("GET", "/v1/kv/data/pve-imds/pools/a/other", good, 404, Some(nothing)),
        ("GET", "/v1/kv/data/pve-imds/pools/%2525/a", good, 404, Some(nothing)),
        ("GET", "/kv/data/pve-imds/pools/a/worker", good, 404, Some(nothing)),
        ("GET", "/v1/kv/data/pve-imds/pools/%2e%2e/a", good, 400, Some(&["relative paths not supported"])),
        ("GET", "/v1/kv/data/pve-imds/pools/a%2", good, 400, Some(nothing)),
        ("POST", "/v1/kv/data/pve-imds/pools/a/worker", good, 405, Some(nothing)),
        ("LIST", "/v1/kv/data/pve-imds/pools/a/worker", good, 405, Some(nothing)),
    ] {
        send_as(&mut tls, method, path, headers);
        let got = reply(&mut tls).unwrap();
        assert_eq!(got.status, status, "{method} {path}");
        if let Some(errors) = errors {
            assert_eq!(got.json(), json!({ "errors": errors }), "{method} {path}");
        }
    }
    for (path, warning) in [
        ("kv/pve-imds/pools/a/worker", "Invalid path for a versioned K/V secrets engine."),
        ("kv/data", "Non-listing operations on the root"),
    ] {
        let got = get(&mut tls, path);
        assert_eq!((got.status, &got.json()["data"]), (404, &Value::Null), "{path}");
        assert!(got.json()["warnings"][0].as_str().unwrap().starts_with(warning), "{path}");
    }
    // What no terminal prints has no body.
    let got = get(&mut tls, "kv/data/pve-imds/pools/%0A/a");
    assert_eq!((got.status, got.body.len()), (400, 0));
    assert_eq!(get(&mut tls, &format!("{PATH}?version=1")).status, 400);
    assert_eq!(store.connections(), 1, "all of it on one connection");
}

#[test]
fn a_token_is_good_until_it_is_revoked() {
    let (store, authority) = store();
    let mut tls = connect(&store, &authority);
    assert_eq!(get(&mut tls, PATH).status, 200);
    store.token("good", &["kv/data/other"]);
    assert_eq!(get(&mut tls, PATH).status, 403);
    store.token("good", &[PATH]);
    assert_eq!(get(&mut tls, PATH).status, 200);
    store.revoke("good");
    assert_eq!(get(&mut tls, PATH).status, 403);
}

#[test]
fn a_namespace_is_the_only_one() {
    let (store, authority) = store();
    let mut tls = connect(&store, &authority);
    for (set, sent, status) in [
        (None, "", 200),
        (None, "X-Vault-Namespace: /\r\n", 200),
        (None, "X-Vault-Namespace: team\r\n", 404),
        (Some("team/a"), "X-Vault-Namespace: team/a\r\n", 200),
        (Some("team/a"), "X-Vault-Namespace: team/a/\r\n", 200),
        (Some("team/a/"), "X-Vault-Namespace: team/a\r\n", 200),
        (Some("team/a"), "X-Vault-Namespace: team\r\n", 404),
        (Some("team/a"), "", 404),
    ] {
        if let Some(name) = set {
            store.namespace(name);
        }
        send(&mut tls, &format!("/v1/{PATH}"), &format!("X-Vault-Token: good\r\n{sent}"));
        let got = reply(&mut tls).unwrap();
        assert_eq!(got.status, status, "{set:?} {sent:?}");
        if status == 404 {
            assert_eq!(got.json(), json!({ "errors": ["namespace not found"] }));
        }
    }
    // Nobody is told whether a token would be good elsewhere.
    send(&mut tls, &format!("/v1/{PATH}"), "");
    assert_eq!(reply(&mut tls).unwrap().status, 404);
}

#[test]
fn what_was_asked_is_remembered_as_it_came() {
    let (store, authority) = store();
    let began = Instant::now();
    let mut tls = connect(&store, &authority);
    send(&mut tls, "/v1/kv/data/%41?x=%42", "X-Vault-Token: a\r\nX-Vault-Namespace: b/\r\nX-Vault-Request: true\r\n");
    reply(&mut tls).unwrap();
    send_as(&mut tls, "PUT", "/", "Content-Length: 4\r\n");
    tls.write_all(b"body").unwrap();
    reply(&mut tls).unwrap();
    // The body was none of a question.
    send(&mut tls, "/last", "");
    reply(&mut tls).unwrap();
    let asked = store.asked();
    let seen: Vec<_> = asked
        .iter()
        .map(|one| {
            let (token, namespace) = (one.token.as_deref(), one.namespace.as_deref());
            (one.method.as_str(), one.target.as_str(), token, namespace, one.is_request)
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("GET", "/v1/kv/data/%41?x=%42", Some("a"), Some("b/"), true),
            ("PUT", "/", None, None, false),
            ("GET", "/last", None, None, false)
        ]
    );
    assert!(began < asked[0].when && asked[0].when < asked[1].when && asked[1].when < Instant::now());
}

#[test]
fn only_the_last_questions_are_remembered() {
    let (store, _) = store();
    for number in 0..MAX_ASKED + 2 {
        store.inside.remember(&Asked::now("GET", &number.to_string()));
    }
    let asked = store.asked();
    assert_eq!((asked.len(), asked[0].target.as_str()), (MAX_ASKED, "2"));
    assert_eq!(asked[MAX_ASKED - 1].target, (MAX_ASKED + 1).to_string());
}

#[test]
fn what_is_no_http_is_refused() {
    let (store, authority) = store();
    let long = format!("GET / HTTP/1.1\r\na: {}", "b".repeat(17 << 10));
    for said in [
        "\x16\x03\x01 and more",
        "GET /\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1 more\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        &long,
    ] {
        let mut tls = connect(&store, &authority);
        tls.write_all(said.as_bytes()).unwrap();
        assert_eq!(reply(&mut tls).unwrap().status, 400, "{}", &said[..9]);
        assert!(is_closed(&mut tls));
    }
    assert!(store.asked().is_empty());
    let mut tls = connect(&store, &authority);
    send(&mut tls, "/", "Connection: Close\r\n");
    assert_eq!(reply(&mut tls).unwrap().status, 404);
    assert!(is_closed(&mut tls));
}

#[test]
fn a_certificate_is_its_authoritys_and_for_this_host() {
    let (store, authority) = store();
    for name in ["localhost", "127.0.0.1", "::1"] {
        shake(&store, &authority, name).unwrap();
    }
    for name in ["127.0.0.2", "example.com"] {
        assert!(shake(&store, &authority, name).unwrap_err().contains("certificate verify failed"), "{name}");
    }
    let stranger = Authority::new().unwrap();
    assert!(shake(&store, &stranger, "localhost").unwrap_err().contains("certificate verify failed"));
}

#[test]
fn restarted_it_shows_another_certificate() {
    let (mut store, first) = store();
    let second = Authority::new().unwrap();
    let mut tls = connect(&store, &first);
    assert_eq!(get(&mut tls, PATH).status, 200);
    store.restart_with(&second).unwrap();
    assert!(is_closed(&mut tls));
    assert!(shake(&store, &first, "localhost").is_err());
    assert_eq!(get(&mut connect(&store, &second), PATH).status, 200);
}

#[test]
fn stopped_its_port_is_closed_and_then_the_same_again() {
    let (mut store, authority) = store();
    let address = store.address();
    for _ in 0..3 {
        let mut tls = connect(&store, &authority);
        assert_eq!(get(&mut tls, PATH).status, 200);
        store.stop();
        store.stop();
        assert!(is_closed(&mut tls));
        assert_eq!(TcpStream::connect_timeout(&address, LONG).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        store.go_on().unwrap();
        store.go_on().unwrap();
        assert_eq!(store.address(), address);
        assert_eq!(get(&mut connect(&store, &authority), PATH).status, 200);
    }
}

#[test]
fn somebody_elses_port_is_not_taken() {
    let (mut store, authority) = store();
    store.stop();
    let other = Store::start_at(store.address(), &authority).unwrap();
    assert!(store.go_on().is_err());
    drop(other);
    store.go_on().unwrap();
    assert_eq!(get(&mut connect(&store, &authority), PATH).status, 200);
}

#[test]
fn dropped_it_leaves_nothing() {
    let authority = Authority::new().unwrap();
    let address = Store::start(&authority).unwrap().address();
    for failure in [
        Failure::None,
        Failure::SilentBeforeTls,
        Failure::SilentAfterRequest,
        Failure::Endless,
        Failure::Drip(LONG),
        Failure::Late(LONG),
    ] {
        let store = Store::start_at(address, &authority).unwrap();
        store.fail(failure.clone());
        let mut plain = tcp(&store);
        if failure == Failure::SilentBeforeTls {
            while store.connections() == 0 {
                thread::yield_now();
            }
        } else {
            let mut tls = connect(&store, &authority);
            send(&mut tls, "/", "");
            while store.asked().is_empty() {
                thread::yield_now();
            }
        }
        let gate = Arc::downgrade(&lock(&store.inside.door).gate);
        let began = Instant::now();
        drop(store);
        assert!(began.elapsed() < SOON, "{failure:?}");
        assert!(gate.upgrade().is_none(), "{failure:?}: a thread has it");
        assert!(is_closed(&mut plain), "{failure:?}");
        assert_eq!(TcpStream::connect_timeout(&address, LONG).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn nothing_secret_is_shown() {
    let (store, authority) = store();
    store.fail(Failure::Json("canary".into()));
    send(&mut connect(&store, &authority), "/", "X-Vault-Token: canary\r\n");
    let failure = lock(&store.inside.failure).clone();
    let shown = format!("{store:?} {authority:?} {:?} {failure:?}", store.asked());
    assert!(!shown.contains("canary"), "{shown}");
    for fields in [json!("canary"), json!(["canary"])] {
        let fell = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.put(PATH, fields))).unwrap_err();
        assert_eq!(*fell.downcast::<String>().unwrap(), format!("the fields of {PATH} are no object"));
    }
    let fields = json!({ "a": "canary" });
    let fell = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.put("kv/a", fields))).unwrap_err();
    assert_eq!(*fell.downcast::<String>().unwrap(), "no KV version 2 engine has a set at kv/a");
}

#[test]
fn other_answers_are_given_until_there_is_no_failure() {
    let (store, authority) = store();
    let mut tls = connect(&store, &authority);
    for (failure, status, body) in [
        (Failure::Status(403), 403, r#"{"errors":["permission denied"]}"#),
        (Failure::Status(429), 429, r#"{"errors":[]}"#),
        (Failure::Status(500), 500, r#"{"errors":["internal error"]}"#),
        (Failure::Status(503), 503, r#"{"errors":["Vault is sealed"]}"#),
        (Failure::Status(204), 204, ""),
        (Failure::Redirect(307, "https://127.0.0.1:1/".into()), 307, ""),
        (Failure::NotJson, 200, "<!DOCTYPE html><title>Sign in</title>"),
        (Failure::Json("{}".into()), 200, "{}"),
    ] {
        store.fail(failure.clone());
        for _ in 0..2 {
            let got = get(&mut tls, PATH);
            assert_eq!((got.status, String::from_utf8(got.body).unwrap().trim()), (status, body), "{failure:?}");
            assert_eq!(got.head.contains("\r\nLocation: https://127.0.0.1:1/\r\n"), status == 307);
        }
    }
    store.fail(Failure::None);
    assert_eq!(get(&mut tls, PATH).status, 200);
    assert_eq!(store.connections(), 1);
    assert_eq!(store.asked().len(), 17);
}

#[test]
fn a_huge_body_is_a_good_one() {
    let (store, authority) = store();
    let mut tls = connect(&store, &authority);
    for bytes in [1_000, 256 << 10, 1 << 20] {
        store.fail(Failure::HugeBody(bytes));
        let got = get(&mut tls, PATH);
        assert_eq!(got.body.len() as u64, bytes);
        assert!(got.json()["data"]["data"]["long"].is_string());

        store.fail(Failure::HugeChunks(bytes));
        send(&mut tls, "/", "");
        let head = head(&mut tls).unwrap();
        assert!(head.contains("\r\nTransfer-Encoding: chunked\r\n") && length(&head).is_none(), "{head}");
        let mut body = Vec::new();
        loop {
            let piece = chunk(&mut tls).unwrap();
            body.extend_from_slice(&piece);
            if piece.is_empty() {
                break;
            }
        }
        assert_eq!(body.len() as u64, bytes);
        assert!(serde_json::from_slice::<Value>(&body).unwrap()["data"]["data"]["long"].is_string());
    }
}

#[test]
fn an_endless_body_goes_on() {
    let (store, authority) = store();
    store.fail(Failure::Endless);
    let mut tls = connect(&store, &authority);
    send(&mut tls, "/", "");
    assert!(head(&mut tls).unwrap().contains("\r\nTransfer-Encoding: chunked\r\n"));
    let mut count = 0;
    while count < 4 << 20 {
        let piece = chunk(&mut tls).unwrap().len();
        assert!(piece > 0);
        count += piece;
    }
}

#[test]
fn some_answers_take_time() {
    let (store, authority) = store();
    let mut tls = connect(&store, &authority);
    store.fail(Failure::Late(Duration::from_millis(300)));
    let began = Instant::now();
    assert_eq!(get(&mut tls, PATH).status, 200);
    assert!(began.elapsed() >= Duration::from_millis(300));

    store.fail(Failure::Drip(Duration::from_millis(1)));
    let began = Instant::now();
    send(&mut tls, "/", "");
    let mut byte = [0; 100];
    assert_eq!(tls.read(&mut byte).unwrap(), 1, "one at a time");
    let head = head(&mut tls).unwrap();
    let mut body = vec![0; length(&head).unwrap()];
    tls.read_exact(&mut body).unwrap();
    let count = 1 + head.len() + body.len();
    assert!(began.elapsed() >= Duration::from_millis(count as u64 - 1));
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({ "errors": [] }));
}

#[test]
fn an_answer_that_is_cut_is_shorter_than_promised() {
    let (store, authority) = store();
    store.fail(Failure::CutBody);
    let mut tls = connect(&store, &authority);
    send(&mut tls, &format!("/v1/{PATH}"), "X-Vault-Token: good\r\n");
    let promised = length(&head(&mut tls).unwrap()).unwrap();
    let mut body = Vec::new();
    _ = tls.read_to_end(&mut body);
    assert_eq!(body.len() + 64, promised);
    // Whoever does not count would take it.
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["data"]["data"]["password"], "canary");
}

#[test]
fn some_connections_end_without_a_word() {
    let (store, authority) = store();
    store.fail(Failure::Reset);
    let mut tls = connect(&store, &authority);
    send(&mut tls, "/", "");
    assert!(is_closed(&mut tls));
    assert_eq!(store.asked().len(), 1);
}

#[test]
fn silence_lasts() {
    let (store, authority) = store();
    let short = Duration::from_millis(200);
    let is_silent = |stream: &mut dyn Read| {
        let error = stream.read(&mut [0]).unwrap_err();
        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
    };
    let mut tls = connect(&store, &authority);
    store.fail(Failure::SilentAfterRequest);
    tls.get_ref().set_read_timeout(Some(short)).unwrap();
    send(&mut tls, "/", "");
    assert!(is_silent(&mut tls));
    assert_eq!(store.asked().len(), 1);

    let mut tls = connect(&store, &authority);
    store.fail(Failure::SilentBeforeTls);
    assert!(is_closed(&mut tls), "it is about connections");
    let mut plain = tcp(&store);
    plain.set_read_timeout(Some(short)).unwrap();
    plain.write_all(b"\x16\x03\x01\x00\x05hello").unwrap();
    assert!(is_silent(&mut plain));

    store.fail(Failure::None);
    assert!(is_closed(&mut plain), "it is about connections");
    assert_eq!(get(&mut connect(&store, &authority), PATH).status, 200);
}

#[test]
fn plain_http_is_no_tls() {
    let (store, authority) = store();
    store.fail(Failure::PlainHttp);
    let began = Instant::now();
    assert!(shake(&store, &authority, "localhost").is_err());
    assert!(began.elapsed() < SOON);
    let mut plain = tcp(&store);
    assert_eq!(get(&mut plain, PATH).status, 200, "whoever speaks it is answered");
    store.fail(Failure::None);
    assert!(is_closed(&mut plain));
}
