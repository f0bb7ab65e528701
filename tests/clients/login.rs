//! A VM logs in to OpenBao with its identity token.
//!
//! In comes where it stands. The token is what curl gets inside the guest; OpenBao's own JWT method runs beside the daemon,
//! fetches the keys from it over TLS and trusts nothing but the node's certificate. Out comes evidence for each thing that
//! a role or a method can hold a VM to: whom it let in and with what, and for what it refused the same token.

use std::fs::{self, File};
use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::cells::{Evidence, Reference, Stand};
use crate::places::own;
use crate::table::Fact;
use crate::world::{Node, script};

/// Where the node shows its keys.
const LISTEN: &str = "127.0.0.1:8444";

/// The only pool, of VMs that log in.
const POOL: &str = "shop";

/// Their tag.
pub const TAG: &str = "web";

/// Whom the token is for.
const AUDIENCE: &str = "https://bao.example.com";

/// What the node's configuration says for those who verify.
pub fn settings() -> String {
    format!("jwks: {{listen: '{LISTEN}'}}\njwtsvid: {{issuer: 'https://{LISTEN}'}}\n")
}

/// The node has a key and a certificate, and these VMs are in the pool.
pub fn enrol(node: &mut Node, vms: &[Reference]) {
    node.tree.put_identity("pve1").unwrap();
    let numbers: Vec<_> = vms.iter().map(|vm| vm.vmid.to_string()).collect();
    node.tree.put_file("user.cfg", &format!("pool:{POOL}::{}::\n", numbers.join(","))).unwrap();
}

/// One login with the VM's token.
struct Login {
    /// What it is evidence of.
    fact: Fact,
    /// The method's configuration, but for the certificate.
    method: Value,
    /// What the role has that others have not.
    role: Value,
    /// For what it is refused, in a word of OpenBao's reason; `None`: it is let in.
    refused: Option<&'static str>,
}

/// Keys from an address, or found by the issuer.
fn logins(vm: &Reference) -> Vec<Login> {
    let keys = || json!({"jwks_url": format!("https://{LISTEN}/.well-known/jwks.json")});
    let issuer = format!("https://{LISTEN}");
    let found = json!({"oidc_discovery_url": issuer, "bound_issuer": issuer});
    let other_issuer = merged(keys(), &json!({"bound_issuer": "https://127.0.0.1:8445"}));
    let claims = |claims: Value| json!({"bound_claims": claims});
    let (uuid, vmid) = (vm.uuid(), vm.vmid.to_string());
    let another = "00000000-0000-4000-8000-000000000001";
    let pool = || claims(json!({"/meta/pve:pool": POOL}));
    let rows = [
        (Fact::Pool, keys(), pool(), None),
        (Fact::Pool, keys(), claims(json!({"/meta/pve:pool": "bank"})), Some("/meta/pve:pool")),
        (Fact::Pool, keys(), claims(json!({"/meta/pve:pool": "shop/test"})), Some("/meta/pve:pool")),
        (Fact::Tag, keys(), claims(json!({format!("/meta/{TAG}"): ""})), None),
        (Fact::Tag, keys(), claims(json!({"/meta/db": ""})), Some("/meta/db")),
        (Fact::Uuid, keys(), claims(json!({"uuid": uuid, "/meta/pve:vmid": vmid})), None),
        (Fact::Uuid, keys(), claims(json!({"uuid": uuid, "/meta/pve:vmid": "1"})), Some("/meta/pve:vmid")),
        (Fact::Uuid, keys(), claims(json!({"uuid": another, "/meta/pve:vmid": vmid})), Some("\"uuid\"")),
        (Fact::Issuer, found.clone(), pool(), None),
        (Fact::Issuer, other_issuer, pool(), Some("(iss)")),
        (Fact::Audience, keys(), json!({"bound_audiences": ["https://other.example", AUDIENCE]}), None),
        (Fact::Audience, keys(), json!({"bound_audiences": ["https://other.example"]}), Some("(aud)")),
        (Fact::Audience, found, json!({"bound_audiences": ["https://other.example"]}), Some("(aud)")),
    ];
    rows.map(|(fact, method, role, refused)| Login { fact, method, role, refused }).into()
}

/// As README has it.
fn role() -> Value {
    json!({
        "role_type": "jwt",
        "user_claim": "sub",
        "bound_audiences": [AUDIENCE],
        "claim_mappings": {"/meta/pve:vmid": "vmid", "/meta/pve:node": "node"},
        "clock_skew_leeway": "10s",
        "token_policies": [POOL],
        "token_ttl": "15m",
        "token_max_ttl": "1h",
    })
}

/// What OpenBao makes of such a role and this VM.
fn let_in(vm: &Reference) -> Value {
    json!({
        "alias": format!("spiffe://pve1/{}", vm.vmid),
        "metadata": {"role": "vm", "vmid": vm.vmid.to_string(), "node": "pve1"},
        "policies": [POOL],
        "ttl": 900,
        "max_ttl": 3600,
    })
}

/// `base` with all that `more` has.
fn merged(mut base: Value, more: &Value) -> Value {
    let words = more.as_object().unwrap().iter().map(|(word, value)| (word.clone(), value.clone()));
    base.as_object_mut().unwrap().extend(words);
    base
}

/// Has the VM log in by each role.
pub fn ask(stand: &Stand<'_>) -> Vec<Evidence> {
    own("openbao", "login-by-openbao");
    let guest = stand.guest.as_ref().unwrap();
    guest.await_answer();
    let (status, token) = guest.curl(&["-d", &format!("audience={AUDIENCE}")], "/pve-imds/jwtsvid").unwrap();
    assert_eq!(status, 200, "the VM gets no token: {token}");
    let file = stand.disk.join("token");
    File::create(&file).unwrap().write_all(token.as_bytes()).unwrap();

    let mut evidence: Vec<Evidence> = Vec::new();
    for login in logins(&stand.vm) {
        let got = outcome(stand, &login, File::open(&file).unwrap());
        let wanted = login.refused.map_or_else(|| let_in(&stand.vm).to_string(), |word| format!("refused: {word}"));
        // A fact is come by if all logins that are evidence of it end as they should.
        match evidence.iter_mut().find(|evidence| evidence.fact == login.fact) {
            Some(evidence) => {
                evidence.got += &format!("\n{got}");
                evidence.wanted += &format!("\n{wanted}");
            }
            None => evidence.push(Evidence { fact: login.fact, got, wanted }),
        }
    }
    evidence
}

/// What a login came to, in the words it is compared by.
fn outcome(stand: &Stand<'_>, login: &Login, token: File) -> String {
    let word = if login.method.get("jwks_url").is_some() { "jwks_ca_pem" } else { "oidc_discovery_ca_pem" };
    let certificate = fs::read_to_string(stand.node.tree.path().join("nodes/pve1/pve-ssl.pem")).unwrap();
    let method = merged(login.method.clone(), &json!({word: certificate, "jwt_supported_algs": ["RS256"]}));
    let program = script("../target/clients/own/login-by-openbao");
    let mut command = stand.node.namespace.command(program.to_str().unwrap());
    command.args([method.to_string(), merged(role(), &login.role).to_string()]).stdin(Stdio::from(token));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let reason = String::from_utf8_lossy(&output.stderr).into_owned();
    match (output.status.code(), login.refused) {
        // In whatever order its words are.
        (Some(0), _) => {
            let wanted = let_in(&stand.vm);
            if serde_json::from_str::<Value>(&said).is_ok_and(|got| got == wanted) { wanted.to_string() } else { said }
        }
        (Some(1), Some(word)) if reason.contains(word) => format!("refused: {word}"),
        (status, _) => format!("status {status:?}: {}", reason.trim_end()),
    }
}
