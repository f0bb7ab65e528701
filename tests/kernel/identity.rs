//! Identity tokens as others see them: two libraries that are not ours check what guests are given.
//!
//! PyJWT fetches the key set by itself, from inside of a guest or over TLS; José's `jose` is given it. [`verify`] has what
//! they accept and refuse, [`rotation`] what becomes of that while keys change, [`hostile`] what guests send that is no
//! request for a token, [`share`] who gets none, and what the log says.

mod hostile;
mod rotation;
mod share;
mod verify;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use pve_imds_datasources::backends::testing::{PveTree, sample_config};
use pve_imds_model::vm::VmId;
use serde_json::Value;

use crate::world::{Guest, Namespace, Node, Plug, script, until, user_data};

const PATH: &str = "/pve-imds/jwtsvid";
/// Where guests find the key set.
const KEYS: &str = "http://169.254.169.254/.well-known/jwks.json";

/// A node with a key that signs and two guests, 101 with a veth and 102 with a tap, started with this in its configuration.
fn serving_two(more: &str) -> (Node, [Guest; 2]) {
    let node = Node::new();
    node.tree.put_identity("pve1").unwrap();
    start(node, more, |_| String::new())
}

/// Starts `node` for two guests; `lines` are added to what Proxmox has of each.
fn start(mut node: Node, more: &str, lines: impl Fn(u32) -> String) -> (Node, [Guest; 2]) {
    fs::write(node.config(), node.settings() + more).unwrap();
    for vmid in [101, 102] {
        let notes = format!("<!--#user-data\n{}\n-->", user_data(vmid));
        node.tree.put(vmid, &(sample_config(VmId::new(vmid).unwrap(), &notes) + &lines(vmid))).unwrap();
    }
    let guests = [(101, Plug::Veth), (102, Plug::Tap(1))]
        .map(|(vmid, plug)| Guest::plug(&node, vmid, plug, &format!("169.254.1.{}/16", vmid - 99)));
    node.start();
    for guest in &guests {
        node.await_guard(&guest.tap());
        guest.await_answer();
    }
    (node, guests)
}

/// What a guest hears that asks with this body.
fn ask(guest: &Guest, body: &str) -> Option<(u16, String)> {
    let kind = if body.starts_with('{') { "application/json" } else { "application/x-www-form-urlencoded" };
    guest.curl(&["-H", &format!("content-type: {kind}"), "-d", body], PATH)
}

/// A token.
#[track_caller]
fn token(guest: &Guest, body: &str) -> String {
    match ask(guest, body) {
        Some((200, token)) => token,
        other => panic!("guest {} asked for a token with {body}: {other:?}", guest.vmid),
    }
}

fn decoded(part: &str) -> Value {
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

fn parts(token: &str) -> [&str; 3] {
    token.split('.').collect::<Vec<_>>().try_into().unwrap()
}

/// What a token says of the key that it was signed with.
fn kid(token: &str) -> String {
    decoded(parts(token)[0])["kid"].as_str().unwrap().to_owned()
}

/// A file of that node.
fn of(tree: &PveTree, node: &str, file: &str) -> PathBuf {
    tree.path().join("nodes").join(node).join(file)
}

/// Files of a node `pve1` that is none of ours.
fn stranger() -> PveTree {
    let tree = PveTree::cluster("pve1").unwrap();
    tree.put_identity("pve1").unwrap();
    tree
}

/// Debian's Python, which has the libraries.
fn python(namespace: &Namespace, name: &str) -> Command {
    let mut command = namespace.command("timeout");
    command.args(["90", "/usr/bin/python3", "-I", "-B", "-W", "ignore"]);
    command.arg(script("kernel/identity").join(name));
    command
}

/// Somebody who verifies with PyJWT, for as long as this lives, and keeps the key set for an hour.
struct Verifier {
    child: Child,
    tokens: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
}

impl Verifier {
    /// In this namespace, for this audience; `certificate`: the only one that is trusted.
    fn new(namespace: &Namespace, keys: &str, audience: &str, certificate: Option<&Path>) -> Self {
        let mut command = python(namespace, "verify.py");
        command.args([keys, audience]).args(certificate).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (tokens, words) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, tokens, words }
    }

    /// Inside of a guest.
    fn inside(guest: &Guest, audience: &str) -> Self {
        Self::new(&guest.namespace, KEYS, audience, None)
    }

    /// The claims, or why there are none.
    fn verify(&mut self, token: &str) -> Result<Value, String> {
        writeln!(self.tokens.as_mut().unwrap(), "{}", Value::from(token)).unwrap();
        let mut line = String::new();
        self.words.read_line(&mut line).unwrap();
        match serde_json::from_str(&line).unwrap() {
            Value::String(refusal) => Err(refusal),
            claims => Ok(claims),
        }
    }
}

impl Drop for Verifier {
    /// It ends where its input does.
    fn drop(&mut self) {
        self.tokens = None;
        _ = self.child.wait();
    }
}

/// What `jose` makes of these tokens with the key set that this guest is given: the payload, if the signature is good. It
/// reads no claims: whether the times are is for whoever uses it.
fn jose(guest: &Guest, tokens: &[&str]) -> Vec<Option<Value>> {
    let dir = Node::dir().join(format!("jose-{}", guest.vmid));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("keys"), guest.get("/.well-known/jwks.json")).unwrap();
    for (number, token) in tokens.iter().enumerate() {
        fs::write(dir.join(number.to_string()), token).unwrap();
    }
    // It writes what it reads before it knows whether that is signed: what it says in the end is what counts.
    let line =
        r#"cd "$1"; for ((n = 0; n < $2; n++)); do jose jws ver -i $n -k keys -O read-$n && echo $n; done; echo end"#;
    let mut command = Command::new("timeout");
    command.args(["60", "bash", "-c", line, "jose"]).arg(&dir).arg(tokens.len().to_string());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let good = String::from_utf8(output.stdout).unwrap();
    let good = good.strip_suffix("end\n").unwrap_or_else(|| panic!("it did not come to an end: {:?}", output.status));
    let good: BTreeSet<usize> = good.lines().map(|number| number.parse().unwrap()).collect();
    let read = |number| fs::read(dir.join(format!("read-{number}"))).unwrap();
    (0..tokens.len())
        .map(|number| good.contains(&number).then(|| serde_json::from_slice(&read(number)).unwrap()))
        .collect()
}

/// The log has one line for each token and says whose it is and for whom, and never the token.
#[track_caller]
fn audited(node: &Node, tokens: &[String]) {
    let log = fs::read_to_string(node.log()).unwrap();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("pve_imds::audit")).collect();
    assert!(!tokens.is_empty());
    for token in tokens {
        let [_, payload, signature] = parts(token);
        assert!(!log.contains(signature) && !log.contains(payload), "a token is in the log");
        let claims = decoded(payload);
        let text = |claim: &str| claims[claim].as_str().unwrap().to_owned();
        let own: Vec<_> = lines.iter().filter(|line| line.contains(&text("jti"))).collect();
        let [line] = own[..] else { panic!("{} lines for {claims}", own.len()) };
        let audiences = match &claims["aud"] {
            Value::Array(many) => many.clone(),
            one => vec![one.clone()],
        };
        let audiences = format!("audiences={}", Value::from(audiences).to_string().replace(',', ", "));
        let vmid = format!("vmid={}", claims["meta"]["pve:vmid"].as_str().unwrap());
        for word in [vmid, format!("sub={}", text("sub")), audiences, format!("kid={}", kid(token))] {
            assert!(line.contains(&word), "{word} in {line}");
        }
    }
}

/// Waits until the node signs, or does not.
fn await_signing(node: &Node, signs: bool) {
    let expected = if signs { 1.0 } else { 0.0 };
    until("the node's key is seen", || (node.metric("pve_imds_identity_signing") == expected).then_some(()));
}
