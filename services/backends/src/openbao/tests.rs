use std::fs;

use pve_imds_model::pools::PoolId;
use pve_imds_model::secrets::{PathTemplate, Scope, SetName};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::testing::store::{Authority, Failure as Fails, Store as Kv};

const PATH: &str = "kv/data/pve-imds/pools/lab/worker";
const TOKEN: &str = "s.canary-token";

/// A store with one set, and one of ours that asks it.
struct Both {
    kv: Kv,
    authority: Authority,
    dir: TempDir,
    bao: OpenBao,
}

impl Both {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let (kv, authority, dir) = Kv::furnished(TOKEN, &["kv/data/pve-imds/pools/*"]).unwrap();
        kv.put(PATH, json!({ "a": "canary", "n": 1 }));
        let mut settings = Settings {
            address: Address::parse(&kv.url()).unwrap(),
            namespace: None,
            authority: Some(dir.path().join("ca.pem")),
            token: dir.path().join("token"),
            cache: Duration::from_secs(60),
        };
        change(&mut settings);
        Self { kv, authority, dir, bao: OpenBao::new(settings) }
    }

    fn write(&self, file: &str, bytes: &[u8]) {
        // As an agent does it.
        fs::write(self.dir.path().join("new"), bytes).unwrap();
        fs::rename(self.dir.path().join("new"), self.dir.path().join(file)).unwrap();
    }

    /// What came of asking, in a line that holds nothing of a value or a token.
    async fn ask(&self, set: &str) -> String {
        told(&self.bao.ask(&path("lab", set)).await)
    }
}

fn told(landed: &Landed) -> String {
    let told = match landed {
        Ok(set) => format!("ok: {} fields", set.len()),
        Err(error) => format!("{}: {error}; {}", error.outcome(), error.mend()),
    };
    let shown = format!("{told} {landed:?}");
    assert!(!shown.contains("canary"), "{shown}");
    told
}

fn path(pool: &str, set: &str) -> SecretPath {
    let template = PathTemplate::parse("kv/data/pve-imds/pools/{pool}/{name}").unwrap();
    template.path(&Scope::Pool(PoolId::parse(pool).unwrap()), &SetName::parse(set).unwrap()).unwrap()
}

#[tokio::test]
async fn a_set_is_what_the_store_has() {
    let both = Both::new();
    let set = both.bao.set(&path("lab", "worker"), |_| true).await.unwrap();
    assert!(matches!(set.field("a"), Some(Value::Text("canary"))));
    assert!(matches!(set.field("n"), Some(Value::Other)));
    assert!(set.field("b").is_none());
    let asked = both.kv.asked();
    assert_eq!((asked.len(), &*asked[0].method, &*asked[0].target), (1, "GET", &*format!("/v1/{PATH}")));
    assert_eq!((asked[0].token.as_deref(), asked[0].namespace.as_deref()), (Some(TOKEN), None));
}

/// Each way to fail, and what it is called.
#[tokio::test]
async fn each_failure_has_its_word() {
    let huge = MAX_BODY as u64 + 1;
    for (fails, expected) in [
        (Fails::Status(500), "secret_fetch_failed: the secret store answers HTTP 500"),
        (Fails::Status(503), "secret_fetch_failed: the secret store answers HTTP 503; unseal"),
        (Fails::Status(429), "secret_fetch_failed: the secret store answers HTTP 429"),
        (Fails::Status(473), "secret_fetch_failed: the secret store answers HTTP 473; this is a standby"),
        (Fails::Status(400), "secret_fetch_failed: the secret store answers HTTP 400"),
        (Fails::Status(403), "secret_denied: the secret store denies this node the set (HTTP 403)"),
        (Fails::Status(401), "secret_denied: the secret store denies this node the set (HTTP 401)"),
        (Fails::Status(404), "set_missing: the secret store has no such set: nothing is there"),
        (
            Fails::Redirect(307, "https://elsewhere.example/v1/x".into()),
            "secret_fetch_failed: the secret store redirects elsewhere (HTTP 307)",
        ),
        (
            Fails::Redirect(301, "/v1/kv/data/pve-imds/pools/lab/other".into()),
            "secret_fetch_failed: the secret store redirects",
        ),
        (Fails::HugeBody(huge), "secret_fetch_failed: the secret store's answer is larger than 256 KiB"),
        (Fails::Endless, "secret_fetch_failed: the secret store's answer is larger than 256 KiB"),
        (
            Fails::Drip(Duration::from_millis(50)),
            "secret_fetch_failed: no whole answer of the secret store within 900ms",
        ),
        (Fails::SilentBeforeTls, "secret_fetch_failed: the secret store cannot be reached within 300ms"),
        (Fails::SilentAfterRequest, "secret_fetch_failed: no whole answer of the secret store within 900ms"),
        (Fails::CutBody, "secret_fetch_failed: the secret store's answer broke off"),
        (Fails::Reset, "secret_fetch_failed: the secret store's answer broke off"),
        (Fails::NotJson, "secret_fetch_failed: the secret store's answer is not that of a KV version 2 engine"),
        (
            Fails::Json(r#"{"data":{"a":"canary"}}"#.into()),
            "secret_fetch_failed: the secret store's answer is not that",
        ),
        (
            Fails::Json(r#"{"data":{"data":null,"metadata":{}}}"#.into()),
            "set_missing: the secret store has no such set: its latest version was deleted",
        ),
        (Fails::PlainHttp, "secret_fetch_failed: the secret store cannot be reached: "),
        (Fails::Late(Duration::from_secs(2)), "secret_fetch_failed: no whole answer of the secret store within 900ms"),
        (Fails::Late(Duration::from_millis(300)), "ok: 2 fields"),
    ] {
        let both = Both::new();
        let name = format!("{fails:?}");
        both.kv.fail(fails);
        let begun = Instant::now();
        let told = both.ask("worker").await;
        assert!(told.starts_with(expected), "{name}: {told}");
        assert!(begun.elapsed() < TOTAL + Duration::from_millis(500), "{name}: {:?}", begun.elapsed());
        both.kv.fail(Fails::None);
        assert_eq!(both.ask("worker").await, "ok: 2 fields", "after {name}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_missing_and_what_is_not_ours_denied() {
    let both = Both::new();
    assert!(both.ask("other").await.starts_with("set_missing: the secret store has no such set: nothing is there"));
    both.kv.delete(PATH);
    assert!(both.ask("worker").await.contains("its latest version was deleted"));
    both.kv.put(PATH, json!({ "a": "canary" }));
    assert_eq!(both.ask("worker").await, "ok: 1 fields");
    both.kv.destroy(PATH);
    assert!(both.ask("worker").await.contains("its latest version was deleted"));
    both.kv.put(PATH, json!({}));
    assert_eq!(both.ask("worker").await, "ok: 0 fields");

    both.kv.token(TOKEN, &["kv/data/pve-imds/pools/other/*"]);
    assert!(both.ask("worker").await.starts_with("secret_denied"));
    both.kv.revoke(TOKEN);
    assert!(both.ask("worker").await.starts_with("secret_denied"));
}

#[tokio::test]
async fn a_namespace_is_named() {
    let both = Both::with(|settings| settings.namespace = Namespace::parse("prod/a").ok());
    both.kv.namespace("prod/a");
    assert_eq!(both.ask("worker").await, "ok: 2 fields");
    assert_eq!(both.kv.asked()[0].namespace.as_deref(), Some("prod/a"));
    both.kv.namespace("other");
    assert!(!both.ask("worker").await.starts_with("ok"));
}

#[tokio::test]
async fn only_who_is_vouched_for_is_told_anything() {
    let mut both = Both::new();
    both.kv.restart_with(&Authority::new().unwrap()).unwrap();
    let told = both.ask("worker").await;
    assert!(told.starts_with("secret_fetch_failed: the secret store cannot be reached: "), "{told}");
    assert!(told.contains("certificate verify failed"), "{told}");
    assert_eq!(both.kv.asked().len(), 0, "no token has been sent");

    // Nor is a name that is not in the certificate.
    let both = Both::new();
    let address = both.kv.url().replace("127.0.0.1", "127.0.0.2");
    let kv = Kv::start_at("127.0.0.2:0".parse().unwrap(), &both.authority).unwrap();
    let address = address.replace(&both.kv.address().port().to_string(), &kv.address().port().to_string());
    let settings = Settings {
        address: Address::parse(&address).unwrap(),
        namespace: None,
        authority: Some(both.dir.path().join("ca.pem")),
        token: both.dir.path().join("token"),
        cache: Duration::from_secs(1),
    };
    let error = OpenBao::new(settings).ask(&path("lab", "worker")).await.unwrap_err().to_string();
    assert!(error.contains("certificate verify failed") && error.contains("mismatch"), "{error}");
    assert_eq!(kv.asked().len(), 0);
}

#[tokio::test]
async fn without_a_file_the_systems_certificates_count() {
    let both = Both::with(|settings| settings.authority = None);
    assert!(both.ask("worker").await.contains("certificate verify failed"));
}

#[tokio::test]
async fn files_that_cannot_be_used_have_their_words() {
    let both = Both::new();
    for (token, expected) in [
        (&b""[..], "token_unreadable: secrets.token_file: "),
        (b"canary canary", "token_unreadable"),
        (&[b'x'; 5000], "token_unreadable"),
        (b"other-token", "secret_denied"),
        (TOKEN.as_bytes(), "ok"),
    ] {
        both.write("token", token);
        let told = both.ask("worker").await;
        assert!(told.starts_with(expected), "{told}");
    }
    for (pem, expected) in [
        (b"canary".to_vec(), "secret_fetch_failed: secrets.ca_file: "),
        (both.authority.pem(), "ok"),
        (Authority::new().unwrap().pem(), "secret_fetch_failed: the secret store cannot be reached: "),
        ([both.authority.pem(), Authority::new().unwrap().pem()].concat(), "ok"),
    ] {
        both.write("ca.pem", &pem);
        let told = both.ask("worker").await;
        assert!(told.starts_with(expected), "{told}");
    }
    fs::remove_file(both.dir.path().join("token")).unwrap();
    assert!(both.ask("worker").await.contains("does the agent run"));
}

#[tokio::test]
async fn who_asks_together_is_answered_by_one_question() {
    let both = Both::new();
    both.kv.fail(Fails::Late(Duration::from_millis(200)));
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let bao = both.bao.clone();
        all.spawn(async move { bao.set(&path("lab", "worker"), |_| true).await.is_ok() });
    }
    // Whoever leaves takes the answer from nobody.
    let worker = path("lab", "worker");
    let leaves = both.bao.set(&worker, |_| true);
    assert!(tokio::time::timeout(Duration::from_millis(20), leaves).await.is_err());
    assert!(all.join_all().await.into_iter().all(|ok| ok));
    assert_eq!(both.kv.asked().len(), 1);
    // And for a minute nobody asks again.
    both.bao.set(&path("lab", "worker"), |_| true).await.unwrap();
    assert_eq!(both.kv.asked().len(), 1);
}

#[tokio::test]
async fn a_token_is_read_for_each_question_and_connections_are_kept() {
    let both = Both::new();
    for count in 0..5 {
        let token = format!("s.canary-{count}");
        both.kv.token(&token, &["kv/data/*"]);
        both.write("token", token.as_bytes());
        assert_eq!(both.ask("worker").await, "ok: 2 fields");
        both.kv.revoke(&token);
    }
    let tokens: Vec<_> = both.kv.asked().into_iter().filter_map(|asked| asked.token).collect();
    assert_eq!(tokens.len(), 5);
    assert_eq!(tokens.last().map(String::as_str), Some("s.canary-4"));
    assert_eq!(both.kv.connections(), 1);
}

/// Asks as guests do that do not wait, for as long as this.
async fn hammer(both: &Both, lasts: Duration) {
    let end = Instant::now() + lasts;
    while Instant::now() < end {
        _ = both.bao.set(&path("lab", "worker"), |_| true).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_store_that_fails_is_asked_once_a_second_and_found_soon_after_it_is_back() {
    for fails in [Fails::Status(503), Fails::Status(404)] {
        let both = Both::new();
        both.kv.fail(fails);
        hammer(&both, Duration::from_millis(3000)).await;
        let asked = both.kv.asked().len();
        assert!((3..=4).contains(&asked), "{asked}");
        both.kv.fail(Fails::None);
        let back = Instant::now();
        while both.bao.set(&path("lab", "worker"), |_| true).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(back.elapsed() < Duration::from_millis(1100), "{:?}", back.elapsed());
    }
}

#[tokio::test]
async fn a_store_that_goes_and_comes_back_is_found_within_a_second() {
    let mut both = Both::new();
    assert_eq!(both.ask("worker").await, "ok: 2 fields");
    both.kv.stop();
    assert!(both.ask("worker").await.contains("refused"));
    hammer(&both, Duration::from_millis(500)).await;
    both.kv.go_on().unwrap();
    let back = Instant::now();
    while both.bao.set(&path("lab", "worker"), |_| true).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(back.elapsed() < Duration::from_millis(1100), "{:?}", back.elapsed());
}

#[tokio::test]
async fn what_is_kept_ends_in_time() {
    let both = Both::with(|settings| settings.cache = Duration::from_secs(1));
    both.bao.set(&path("lab", "worker"), |_| true).await.unwrap();
    both.kv.put(PATH, json!({ "b": "canary" }));
    let begun = Instant::now();
    let kept = both.bao.set(&path("lab", "worker"), |_| true).await.unwrap();
    assert!(kept.field("a").is_some());
    let mut replaced = kept;
    while replaced.field("b").is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        replaced = both.bao.set(&path("lab", "worker"), |_| true).await.unwrap();
    }
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    // It is wiped, though nobody asks.
    drop(replaced);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let weight = format!("{:?}", both.bao.0.shelf.lock().unwrap());
    assert!(!weight.contains("Kept {"), "{weight}");
}

#[tokio::test]
async fn nobodys_name_is_looked_up_for_longer_than_a_connection_takes() {
    let both = Both::with(|settings| settings.address = Address::parse("https://no-such-host.invalid").unwrap());
    let begun = Instant::now();
    let told = both.ask("worker").await;
    assert!(told.starts_with("secret_fetch_failed: the secret store cannot be reached"), "{told}");
    assert!(begun.elapsed() < TOTAL);
}
