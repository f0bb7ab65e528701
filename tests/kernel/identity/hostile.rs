//! Bodies that ask for no token, as somebody sends them who wishes us ill: each is refused at once, nothing of it is kept,
//! in memory or in a file, and others are answered meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use super::{PATH, serving_two, token};
use crate::world::memory::Usage;
use crate::world::probe::Asker;
use crate::world::{Guest, Node};

const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";
/// Bytes of the largest body, as the manual says.
const LARGEST: usize = 8 << 10;

/// A request with this body and a length that is true.
fn request(method: &str, kinds: &[&str], body: &[u8]) -> Vec<u8> {
    let kinds: String = kinds.iter().map(|kind| format!("content-type: {kind}\r\n")).collect();
    let head =
        format!("{method} {PATH} HTTP/1.1\r\nhost: 169.254.169.254\r\n{kinds}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn connect(guest: &Guest) -> TcpStream {
    let stream = guest.namespace.inside(|| TcpStream::connect("169.254.169.254:80").unwrap());
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

/// The status of the first answer. `None`: the connection ended without one.
fn status(stream: &mut TcpStream) -> Option<u16> {
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    str::from_utf8(&head[9..]).ok()?.parse().ok()
}

/// What is sent all at once, and its status.
fn sent(guest: &Guest, bytes: &[u8]) -> Option<u16> {
    let mut stream = connect(guest);
    // It may be refused before it is all there.
    _ = stream.write_all(bytes);
    status(&mut stream)
}

/// The same without a length, in chunks that have no end; how many bytes were taken, and the status.
fn endless(guest: &Guest) -> (usize, Option<u16>) {
    let mut stream = connect(guest);
    // What is taken no more is refused by now.
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: 169.254.169.254\r\ntransfer-encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("400\r\n{}\r\n", "audience=a&".repeat(94).split_at(1024).0);
    let mut taken = 0;
    while taken < 64 << 20 && stream.write_all(chunk.as_bytes()).is_ok() {
        taken += 1024;
    }
    (taken, status(&mut stream))
}

/// Each field a file.
fn multipart(files: usize, size: usize) -> Vec<u8> {
    let part = |number| {
        let name = format!("form-data; name=\"audience\"; filename=\"/tmp/imds-{number}\"");
        format!("--x\r\ncontent-disposition: {name}\r\ncontent-type: text/plain\r\n\r\n{}\r\n", "a".repeat(size))
    };
    ((0..files).map(part).collect::<String>() + "--x--\r\n").into_bytes()
}

/// What is refused, how it is called here, and the status.
fn table() -> Vec<(&'static str, Vec<u8>, u16)> {
    let form = |body: &[u8]| request("POST", &[FORM], body);
    let json = |body: &[u8]| request("POST", &[JSON], body);
    let fields = |count: usize| (0..count).map(|n| format!("audience={n}&")).collect::<String>().into_bytes();
    let nested = |open: &str, close: &str, depth: usize| {
        format!("{{\"audience\":{}{}}}", open.repeat(depth), close.repeat(depth)).into_bytes()
    };
    let upload = "multipart/form-data; boundary=x";
    vec![
        ("a byte too many", form(&[&b"audience=a&"[..], &vec![b'&'; LARGEST - 10]].concat()), 413),
        (
            "a length that is none",
            b"POST /pve-imds/jwtsvid HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n".to_vec(),
            400,
        ),
        (
            "two lengths",
            b"POST /pve-imds/jwtsvid HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx".to_vec(),
            400,
        ),
        (
            "a chunk of no size",
            b"POST /pve-imds/jwtsvid HTTP/1.1\r\nhost: 169.254.169.254\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
                .to_vec(),
            400,
        ),
        ("files", request("POST", &[upload], &multipart(4, 1000)), 400),
        ("large files", request("POST", &[upload], &multipart(64, 16 << 10)), 413),
        ("a file that is called a form", form(&multipart(1, 10)), 400),
        ("bytes that are no text, in percents", form(b"audience=%FF%FE"), 400),
        ("half a letter, in percents", form(b"audience=%C3"), 400),
        ("a surrogate, in percents", form(b"audience=%ED%A0%80"), 400),
        ("a name that is no text", form(b"%FF=a&audience=b"), 400),
        ("a NUL", form(b"audience=a\0b"), 400),
        ("a NUL, in percents", form(b"audience=a%00b"), 400),
        ("a NUL in JSON", json(br#"{"audience":"a\u0000"}"#), 400),
        ("a line's end", form(b"audience=a%0d%0ab"), 400),
        ("bytes that are no text", form(b"audience=\xff\xfe"), 400),
        ("bytes that are no text in JSON", json(b"{\"audience\":\"\xff\"}"), 400),
        ("half a surrogate in JSON", json(br#"{"audience":"\ud800"}"#), 400),
        ("lists in lists", json(&nested("[", "]", 4000)), 400),
        ("lists without an end", json(&[b'['; 8000]), 400),
        ("objects in objects", json(&nested("{\"a\":", "", 1600)), 400),
        ("beside it, lists in lists", json(format!("{{\"audience\":\"a\",\"x\":{}", "[".repeat(8000)).as_bytes()), 400),
        ("a number too large", json(br#"{"audience":1e999999}"#), 400),
        ("two of them in JSON", json(br#"{"audience":"a","audience":"b"}"#), 400),
        ("nine audiences", form(&fields(9)), 400),
        ("as many as there is room for", form(&fields(600)), 400),
        ("a thousand audiences", form(&fields(1000)), 413),
        ("nothing", form(b""), 400),
        ("a form and JSON", request("POST", &[FORM, JSON], b"audience=a"), 400),
        ("JSON and a form", request("POST", &[JSON, FORM], br#"{"audience":"a"}"#), 400),
        ("a form twice", request("POST", &[FORM, FORM], b"audience=a"), 400),
        ("a content type that is no text", request("POST", &["\u{e4}"], b"audience=a"), 400),
        ("GET", request("GET", &[FORM], b"audience=a"), 405),
        ("PUT", request("PUT", &[FORM], b"audience=a"), 405),
        ("DELETE", request("DELETE", &[FORM], b"audience=a"), 405),
        ("PATCH", request("PATCH", &[FORM], b"audience=a"), 405),
    ]
}

/// So that what comes next is not refused for another reason: a VM's share are ten in a second.
fn pause() {
    std::thread::sleep(Duration::from_millis(105));
}

/// What files the daemon has open, those without a name too.
fn open_files(node: &Node) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().flatten();
    // A descriptor may be gone by now, and so is what it was of.
    let files = entries.filter(|entry| fs::metadata(entry.path()).is_ok_and(|file| file.is_file()));
    files.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

/// The files of its own directories.
fn own_files() -> BTreeSet<PathBuf> {
    let dirs = ["/run/pve-imds".into(), Node::dir()];
    dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn whatever_is_sent_is_refused_and_others_are_answered_meanwhile() {
    let (node, [hostile, other]) = serving_two("");
    token(&hostile, "audience=a");
    let (files, own) = (open_files(&node), own_files());
    let asking = Asker { rate: 20, fresh: true, patience: Duration::from_secs(2) }.start(&other);
    // What it needed to begin is not counted (proc_pid_clear_refs(5)).
    fs::write(format!("/proc/{}/clear_refs", node.pid()), "5").unwrap();
    let before = Usage::of(node.pid());
    for (what, bytes, expected) in table() {
        assert_eq!(sent(&hostile, &bytes), Some(expected), "{what}");
        pause();
    }
    for _ in 0..8 {
        let (taken, status) = endless(&hostile);
        assert!(taken < 4 << 20, "{taken} bytes were taken");
        assert_eq!(status, Some(413), "after {taken} bytes");
        pause();
    }
    // Uploads that are not finished, all at once: what is there of a body is in memory, and there is little of it.
    let half = request("POST", &["multipart/form-data; boundary=x"], &multipart(4, 1000));
    let mut held: Vec<TcpStream> = (0..16).map(|_| connect(&hostile)).collect();
    for stream in &mut held {
        stream.write_all(&half[..half.len() - 100]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(open_files(&node), files, "what comes in is written to no file");
    for stream in held {
        _ = stream.shutdown(Shutdown::Both);
    }
    let after = Usage::of(node.pid());
    println!("{before}\n{after}");
    assert!(after.peak < before.peak + (8 << 10), "{before}, then {after}");
    assert_eq!((open_files(&node), own_files()), (files, own));
    let heard = asking.stop();
    println!("{heard}");
    assert!(
        heard.failed == 0 && heard.wrong.is_empty() && heard.times.len() > 50,
        "{heard}: {:?}",
        heard.first_failure
    );
    token(&hostile, "audience=a");
    token(&other, "audience=a");
}
