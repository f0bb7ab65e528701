//! Who gets no token: whoever asks too often, whose UUID another VM has, and all of a node that has no key.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{PATH, ask, audited, await_signing, parts, serving_two, start, token};
use crate::world::{Guest, Node, until};

/// Status, head and body of a token that is asked for on this connection.
fn once(stream: &mut TcpStream) -> (u16, String, String) {
    let request = format!("POST {PATH} HTTP/1.1\r\nhost: 169.254.169.254\r\ncontent-length: 10\r\n\r\naudience=a");
    stream.write_all(request.as_bytes()).unwrap();
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut part).unwrap();
        assert_ne!(length, 0, "an end in the midst of an answer");
        bytes.extend(&part[..length]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            return (head[9..12].parse().unwrap(), head, body.to_owned());
        }
    }
}

#[test]
fn twenty_at_once_and_the_other_vm_still_gets_one() {
    let (node, [guest, other]) = serving_two("");
    let (mut tokens, refusals, took) = guest.namespace.inside(|| {
        let connect = || {
            let stream = TcpStream::connect("169.254.169.254:80").unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream
        };
        let mut stream = connect();
        let begun = Instant::now();
        let (mut tokens, mut refusals) = (Vec::new(), Vec::new());
        // Ends however slow this machine is: it is slower for as long as there are tokens only.
        while tokens.len() + refusals.len() < 25 || refusals.is_empty() {
            let (status, head, body) = once(&mut stream);
            if status == 200 {
                tokens.push(body);
            } else {
                // It is given before the body is read, so nothing can follow it.
                assert!(head.contains("\r\nconnection: close"), "{head}");
                refusals.push((status, head, body));
                stream = connect();
            }
            assert!(tokens.len() < 200, "there is no end of them");
        }
        (tokens, refusals, begun.elapsed())
    });
    println!("{} tokens in {took:?}", tokens.len());
    assert!(tokens.len() >= 20, "only {}", tokens.len());
    // Ten more for each second since, and one for what was begun of the next.
    assert!((tokens.len() as f64) <= 21.0 + took.as_secs_f64() * 10.0, "{} in {took:?}", tokens.len());
    for (status, head, body) in &refusals {
        assert_eq!((*status, body.as_str()), (429, "token_rate_limited\n"));
        assert!(head.contains("\r\nretry-after: 1"), "{head}");
    }
    tokens.push(token(&other, "audience=a"));
    assert_eq!(guest.get("/nocloud/meta-data").lines().count(), 2, "what is no token is not refused");
    std::thread::sleep(Duration::from_secs(1));
    tokens.push(token(&guest, "audience=a"));
    audited(&node, &tokens);
}

#[test]
fn a_uuid_that_two_vms_have_is_nobodys_until_somebody_says_whose() {
    const UUID: &str = "2c8c7c76-a26c-4eb7-b04c-bf52bc095b81";
    // The last line of a kind is the one that counts.
    let same = |_| format!("smbios1: uuid={UUID}\n");
    for (more, owner) in [("", None), (&*format!("identity: {{uuid_owner: ['{UUID}=102']}}\n"), Some(102))] {
        let node = Node::new();
        node.tree.put_identity("pve1").unwrap();
        let (node, guests) = start(node, more, same);
        let mut tokens = Vec::new();
        for guest in &guests {
            match ask(guest, "audience=a").unwrap() {
                (200, token) if owner == Some(guest.vmid) => tokens.push(token),
                other => assert_eq!(other, (403, "duplicate_uuid\n".to_owned()), "{} of {owner:?}", guest.vmid),
            }
        }
        assert_eq!(tokens.len(), usize::from(owner.is_some()));
        let log = fs::read_to_string(node.log()).unwrap();
        let told = |words: &str| log.lines().filter(|line| line.contains(words)).count();
        match owner {
            None => {
                assert!(told("VM 101 has the UUID of VM 102 too") > 0, "{log}");
                assert!(told("VM 102 has the UUID of VM 101 too") > 0, "{log}");
                assert_eq!(told("pve_imds::audit"), 0);
            }
            Some(_) => {
                assert!(told("VM 101 has the UUID that identity.uuid_owner gives to VM 102") > 0, "{log}");
                assert_eq!(super::decoded(parts(&tokens[0])[1])["uuid"], UUID);
                audited(&node, &tokens);
            }
        }
    }
}

/// All that is no token is served.
#[track_caller]
fn serves_the_rest(guest: &Guest) {
    assert_eq!(guest.get("/nocloud/meta-data").lines().count(), 2);
    assert!(guest.get("/latest/meta-data/instance-id").len() > 4);
}

#[test]
fn a_node_without_a_key_of_the_right_kind_signs_nothing_and_serves_the_rest() {
    let node = Node::new();
    node.tree.spoil_identity("pve1").unwrap();
    let (node, guests) = start(node, "", |_| String::new());
    let unavailable = || Some((503, "signing_key_unavailable\n".to_owned()));
    // An elliptic curve's, and then none.
    for kind in ["EC", "none"] {
        await_signing(&node, false);
        for guest in &guests {
            assert_eq!(ask(guest, "audience=a"), unavailable(), "{kind}");
            assert_eq!(guest.curl(&[], "/.well-known/jwks.json"), unavailable(), "{kind}");
            serves_the_rest(guest);
        }
        if kind == "EC" {
            node.tree.remove_key("pve1").unwrap();
            // Two looks find that it is missing.
            std::thread::sleep(Duration::from_secs(5));
        }
    }
    node.tree.put_identity("pve1").unwrap();
    await_signing(&node, true);
    let first = token(&guests[0], "audience=a");
    audited(&node, &[first]);
    // A key of the wrong kind is not a half-written file: the one of before does not go on.
    node.tree.put_key("pve1").unwrap();
    await_signing(&node, false);
    until("no token is signed", || (ask(&guests[0], "audience=a") == unavailable()).then_some(()));
    assert!(guests[0].get("/.well-known/jwks.json").contains("RS256"), "what was signed can still be checked");
    serves_the_rest(&guests[1]);
}
