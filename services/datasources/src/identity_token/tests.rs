use http::Request;
use http_body_util::{BodyExt, Full};
use pve_imds_backends::keys::{KeySet, SigningKey};
use pve_imds_backends::pve;
use pve_imds_backends::testing::{read_token, rsa_key_pem};
use pve_imds_model::conf;
use pve_imds_model::identity::Issuer;
use pve_imds_model::request::Caller;
use pve_imds_model::vm::VmId;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::{Router, Settings};

const CONFIG: &str = "name: web\ntags: prod\nsmbios1: uuid=2C8C7C76-A26C-4EB7-B04C-BF52BC095B81\n";

/// A node, its key, and what it was told.
struct Node {
    key: Vec<u8>,
    settings: Settings,
}

impl Node {
    fn new(rules: Rules) -> Self {
        let node = Self { key: rsa_key_pem(2048).unwrap(), settings: Settings::default() };
        let signing = Arc::new(SigningKey::read(&node.key).unwrap());
        node.settings.token_keys.put(Some(Arc::clone(&signing)), KeySet::of([signing.public()]), None);
        let clock = Clock::new(|| 1_775_087_593);
        Self { settings: Settings { node: "pve1".into(), clock, token_rules: rules.into(), ..node.settings }, ..node }
    }

    fn router(&self) -> Router {
        Router::new(self.settings.clone())
    }

    /// What a token says, once its signature is found to be this node's.
    fn read(&self, token: &str) -> (Value, Value) {
        read_token(&self.key, token).expect("a token of this node")
    }
}

fn caller(config: &str) -> Caller {
    Caller::Known(Arc::new(conf::parse(VmId::new(106).unwrap(), config.as_bytes()).vm))
}

async fn ask(router: &Router, config: &str, kind: Option<&str>, body: impl Into<Bytes>) -> Result<String, Fault> {
    let mut request = Request::post("/pve-imds/jwtsvid");
    if let Some(kind) = kind {
        request = request.header(CONTENT_TYPE, kind);
    }
    let mut request = request.body(Full::new(body.into())).unwrap();
    request.extensions_mut().insert(caller(config));
    let response = router.clone().oneshot(request).await?;
    assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
    assert!(!response.headers().contains_key(ETAG));
    Ok(String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

#[tokio::test]
async fn a_token_is_signed_and_says_who_asks() {
    let node = Node::new(Rules { issuer: Some(Issuer::parse("https://pve.example").unwrap()), ..Rules::default() });
    let router = node.router();
    let token = ask(&router, CONFIG, None, "audience=https://vault.example.com").await.unwrap();
    let (header, claims) = node.read(&token);
    let kid = node.settings.token_keys.signing().unwrap().public().kid().to_string();
    assert_eq!(header, json!({"alg": "RS256", "kid": kid, "typ": "JWT"}));
    let jti = claims["jti"].as_str().unwrap();
    assert_eq!(
        claims,
        json!({
            "aud": "https://vault.example.com", "exp": 1_775_087_893, "hostname": "web", "iat": 1_775_087_593,
            "iss": "https://pve.example", "jti": jti, "meta": {"prod": "", "pve:node": "pve1", "pve:vmid": "106"},
            "name": "web", "nbf": 1_775_087_593, "sub": "spiffe://pve1/106",
            "uuid": "2c8c7c76-a26c-4eb7-b04c-bf52bc095b81",
        })
    );
    let again = ask(&router, CONFIG, None, "audience=https://vault.example.com").await.unwrap();
    assert_ne!(node.read(&again).1["jti"], jti);
}

#[tokio::test]
async fn each_refusal_has_its_outcome() {
    let audiences = |names: &[&str]| Some(names.iter().map(|name| Audience::parse(name).unwrap()).collect());
    let policy = |said: &str| format!("#<!--#imds\n#{said}\n#-->\n{CONFIG}");
    let rules = Rules { audiences: audiences(&["a", "b"]), ..Rules::default() };
    let node = Node::new(rules.clone());
    let named = |name: &str| TrustDomain::parse(name).unwrap();
    let cluster = Node::new(Rules { trust_domain: named("cluster"), ..Rules::default() });
    let pooled = Node::new(Rules { template: Template::parse("{pool}").unwrap(), ..Rules::default() });
    let keyless = Node::new(Rules::default());
    keyless.settings.token_keys.put(None, KeySet::default(), None);
    let theirs = Owners::parse(["2c8c7c76-a26c-4eb7-b04c-bf52bc095b81=107"]).unwrap();
    let nothing = pve::Settings { dir: "/nonexistent".into(), ..pve::Settings::default() };
    let (inventory, _watcher) = Inventory::open(nothing).unwrap();
    let mut contested = Node::new(Rules { owners: theirs, ..Rules::default() });
    contested.settings.inventory = Some(inventory);
    for (node, config, kind, body, expected) in [
        (&node, CONFIG.to_owned(), None, "audience=a", None),
        (&node, CONFIG.to_owned(), Some("application/json"), r#"{"audience": ["a", "b"]}"#, None),
        (&node, CONFIG.to_owned(), None, "audience=a&audience=c", Some((403, Outcome::AudienceRefused))),
        (&node, policy("audiences: [b]"), None, "audience=a", Some((403, Outcome::AudienceRefused))),
        (&node, policy("audiences: []"), None, "audience=a", Some((403, Outcome::AudienceRefused))),
        (&node, policy("audiences: [b, c]"), None, "audience=b", None),
        (&node, policy("audiences: [b, c]"), None, "audience=c", Some((403, Outcome::AudienceRefused))),
        (&node, policy("ec2_tokens: required"), None, "audience=a", Some((401, Outcome::TokenRequired))),
        (&node, CONFIG.to_owned(), None, "", Some((400, Outcome::BadRequest))),
        (&node, CONFIG.to_owned(), Some("multipart/form-data; boundary=x"), "--x", Some((400, Outcome::BadRequest))),
        (&node, CONFIG.to_owned(), Some("\u{e4}"), "audience=a", Some((400, Outcome::BadRequest))),
        (&cluster, CONFIG.to_owned(), None, "audience=a", Some((503, Outcome::SubjectUnavailable))),
        (&pooled, CONFIG.to_owned(), None, "audience=a", Some((503, Outcome::SubjectUnavailable))),
        (&keyless, CONFIG.to_owned(), None, "audience=a", Some((503, Outcome::SigningKeyUnavailable))),
        (&contested, CONFIG.to_owned(), None, "audience=a", Some((403, Outcome::DuplicateUuid))),
        (&contested, "name: x\n".to_owned(), None, "audience=a", None),
    ] {
        let got = ask(&node.router(), &config, kind, body).await;
        let refused = got.as_ref().err().map(|fault| (fault.status(), fault.outcome()));
        assert_eq!(refused, expected, "{config} {body}: {:?}", got.err().map(|fault| format!("{fault:?}")));
    }
    let large = ask(&node.router(), CONFIG, None, vec![b'&'; MAX_BODY + 1]).await.unwrap_err();
    assert_eq!(large.status(), 413);
}

#[tokio::test]
async fn only_post_makes_tokens_and_anybody_may_have_the_keys() {
    let node = Node::new(Rules::default());
    for (method, path, expected) in [
        ("GET", "/pve-imds/jwtsvid", Err((405, Some("POST")))),
        ("PUT", "/pve-imds/jwtsvid", Err((405, Some("POST")))),
        ("POST", "/.well-known/jwks.json", Err((405, Some("GET, HEAD")))),
        ("GET", "/.well-known/jwks.json", Ok(200)),
        ("GET", "/.well-known/openid-configuration", Err((404, None))),
    ] {
        let mut request = Request::builder().method(method).uri(path).body(Full::<Bytes>::default()).unwrap();
        request.extensions_mut().insert(caller(CONFIG));
        let got = node.router().oneshot(request).await;
        let got = got.map(|response| response.status().as_u16()).map_err(|fault| (fault.status(), fault.allow()));
        assert_eq!(got, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn no_key_is_no_empty_set() {
    let node = Node::new(Rules::default());
    node.settings.token_keys.put(None, KeySet::default(), None);
    let mut request = Request::get("/.well-known/jwks.json").body(Full::<Bytes>::default()).unwrap();
    request.extensions_mut().insert(caller(CONFIG));
    let refused = node.router().oneshot(request).await.unwrap_err();
    assert_eq!((refused.status(), refused.outcome()), (503, Outcome::SigningKeyUnavailable));
}
