//! The key set for those who verify, over TLS, as curl fetches it: with the certificate of now, beside those who say
//! nothing, and nothing but that.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::{Node, until};

const LISTEN: &str = "127.0.0.1:8444";
const KEYS: &str = "/.well-known/jwks.json";
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// A node that publishes, not started.
fn publishing(issuer: &str) -> Node {
    let node = Node::new();
    configure(&node, issuer);
    node
}

fn configure(node: &Node, issuer: &str) {
    let more = format!("jwks: {{listen: '{LISTEN}'}}\njwtsvid: {{issuer: '{issuer}'}}\n");
    fs::write(node.config(), node.settings() + &more).unwrap();
}

fn certificate(node: &Node) -> PathBuf {
    node.tree.path().join("nodes/pve1/pve-ssl.pem")
}

/// Keeps what the node's certificate is now, for somebody who trusts it.
fn trusted(node: &Node, name: &str) -> PathBuf {
    let kept = Node::dir().join(name);
    fs::copy(certificate(node), &kept).unwrap();
    kept
}

/// Status and body, asked by somebody who trusts `root` only. `None`: no answer came.
fn fetch(node: &Node, root: &PathBuf, path: &str) -> Option<(u16, String)> {
    let mut command = node.namespace.command("curl");
    command.args(["-s", "-m", "5", "-w", "\n%{http_code}", "--cacert"]).arg(root);
    let output = command.arg(format!("https://{LISTEN}{path}")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n')?;
    output.status.success().then(|| (status.parse().unwrap(), body.to_owned()))
}

fn says(node: &Node, words: &str) -> usize {
    fs::read_to_string(node.log()).unwrap().lines().filter(|line| line.contains(words)).count()
}

#[test]
fn the_set_is_what_the_command_prints_and_discovery_comes_with_an_issuer() {
    let mut node = publishing("");
    node.tree.put_identity("pve1").unwrap();
    node.tree.put_identity("pve2").unwrap();
    fs::create_dir_all(node.tree.path().join("nodes/pve3")).unwrap();
    let root = trusted(&node, "root.pem");
    node.start();
    let (status, served) = fetch(&node, &root, KEYS).unwrap();
    let served: Value = serde_json::from_str(&served).unwrap();
    assert_eq!((status, served["keys"].as_array().unwrap().len()), (200, 2));
    let printed = node.product(&["jwks"]);
    let warned = String::from_utf8(printed.stderr).unwrap();
    assert!(printed.status.success(), "{warned}");
    assert!(warned.lines().count() == 1 && warned.contains("nodes/pve3/pve-ssl.pem"), "{warned}");
    assert_eq!(serde_json::from_slice::<Value>(&printed.stdout).unwrap(), served);

    assert_eq!(fetch(&node, &root, "/healthz"), Some((200, "ok\n".to_owned())));
    for nothing in [DISCOVERY, "/", "/metrics", "/nocloud/user-data"] {
        assert_eq!(fetch(&node, &root, nothing).unwrap().0, 404, "{nothing}");
    }
    // Without TLS there is no answer at all.
    let plain = node.namespace.command("curl").args(["-s", "-m", "5"]).arg(format!("http://{LISTEN}{KEYS}")).output();
    let plain = plain.unwrap();
    assert!(!plain.status.success() && plain.stdout.is_empty(), "{plain:?}");

    node.stop("TERM");
    configure(&node, "https://127.0.0.1:8444");
    node.start();
    let (status, discovery) = fetch(&node, &root, DISCOVERY).unwrap();
    let discovery: Value = serde_json::from_str(&discovery).unwrap();
    assert_eq!((status, &discovery["issuer"]), (200, &json!("https://127.0.0.1:8444")));
    let uri = discovery["jwks_uri"].as_str().unwrap();
    let path = uri.strip_prefix("https://127.0.0.1:8444").unwrap();
    assert_eq!(fetch(&node, &root, path).unwrap().0, 200);
}

#[test]
fn without_any_key_the_command_says_so() {
    let node = publishing("");
    node.tree.spoil_identity("pve1").unwrap();
    let output = node.product(&["jwks"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
    assert!(said.contains("pvecm updatecerts") && said.contains("there is no key"), "{said}");
}

#[test]
fn the_certificate_is_the_one_of_now() {
    let mut node = publishing("");
    node.tree.spoil_identity("pve1").unwrap();
    node.start();
    let none = Node::dir().join("none.pem");
    fs::write(&none, "").unwrap();
    assert_eq!(fetch(&node, &none, "/healthz"), None);
    assert_eq!(says(&node, "nobody can fetch the key set over TLS"), 1);

    node.tree.put_identity("pve1").unwrap();
    let first = trusted(&node, "first.pem");
    until("the first is served", || fetch(&node, &first, "/healthz"));

    // A half of one is none, for as long as it is there.
    let whole = fs::read(certificate(&node)).unwrap();
    fs::write(certificate(&node), &whole[..whole.len() / 2]).unwrap();
    until("the half is seen", || (says(&node, "served with those from before") > 0).then_some(()));
    assert!(fetch(&node, &first, "/healthz").is_some());

    node.tree.put_identity("pve1").unwrap();
    let second = trusted(&node, "second.pem");
    until("the second is served", || fetch(&node, &second, "/healthz"));
    assert_eq!(fetch(&node, &first, "/healthz"), None, "whoever trusts only the first does not trust it");
    assert_eq!(says(&node, "nobody can fetch the key set over TLS"), 1);
    // Tokens that were signed with the key of before can still be checked.
    let (_, set) = fetch(&node, &second, KEYS).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&set).unwrap()["keys"].as_array().unwrap().len(), 2);
}

#[test]
fn whoever_says_nothing_or_half_a_word_keeps_nobody_out() {
    let mut node = publishing("");
    node.tree.put_identity("pve1").unwrap();
    let root = trusted(&node, "root.pem");
    node.start();
    let flood = |words: &[u8]| -> Vec<TcpStream> {
        node.namespace.inside(|| {
            let connect = || {
                let mut stream = TcpStream::connect(LISTEN).unwrap();
                stream.write_all(words).unwrap();
                stream
            };
            (0..200).map(|_| connect()).collect()
        })
    };
    // Nothing, the beginning of a handshake, and of what is none.
    for words in [&b""[..], b"\x16\x03\x01\x02", b"GET / HT"] {
        let flood = flood(words);
        for _ in 0..5 {
            let begun = Instant::now();
            assert_eq!(fetch(&node, &root, KEYS).map(|(status, _)| status), Some(200), "beside {words:?}");
            assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        }
        drop(flood);
    }
    assert_eq!(node.management("/healthz").as_deref(), Some("ok\n"));
}

/// The daemon's processor time, in clock ticks (proc_pid_stat(5)).
fn ticks(node: &Node) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", node.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn whoever_shakes_hands_all_the_time_takes_little_of_the_processor() {
    let mut node = publishing("");
    node.tree.put_identity("pve1").unwrap();
    let root = trusted(&node, "root.pem");
    node.start();
    let (before, begun) = (ticks(&node), Instant::now());
    let url = format!("https://{LISTEN}/healthz");
    let line =
        format!("seq 100000 | timeout 4 xargs -P 16 -I@ curl -sk -m 5 -o /dev/null -w '%{{http_code}}\\n' {url}");
    let mut command = node.namespace.command("sh");
    let flood = std::thread::spawn(move || command.args(["-c", &line]).output().unwrap());
    for _ in 0..5 {
        assert!(fetch(&node, &root, KEYS).is_some());
    }
    let served = String::from_utf8(flood.join().unwrap().stdout).unwrap().lines().filter(|line| *line == "200").count();
    let (took, spent) = (begun.elapsed(), ticks(&node) - before);
    println!("{served} handshakes in {took:?}, {spent} ticks");
    assert!(served > 20, "only {served} were answered");
    assert!((served as f64) < took.as_secs_f64() * 50.0 + 5.0, "{served} in {took:?}");
}
