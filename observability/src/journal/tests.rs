//! What journald would get: a socket in a directory of the test's stands where it listens.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_send_buffer_size;
use tempfile::TempDir;
use tracing_subscriber::layer::SubscriberExt;

use super::*;

/// Somebody in journald's place.
struct Journald {
    dir: TempDir,
    socket: UnixDatagram,
}

impl Journald {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("socket")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { dir, socket }
    }

    fn open(&self) -> io::Result<Journal> {
        Journal::at(self.dir.path().join("socket"))
    }

    /// What it got, but for the empty datagram that asks whether anybody is there.
    fn datagrams(&self) -> Vec<Vec<u8>> {
        let mut bytes = vec![0; 1 << 20];
        std::iter::from_fn(|| self.socket.recv(&mut bytes).ok().map(|length| bytes[..length].to_vec()))
            .filter(|datagram| !datagram.is_empty())
            .collect()
    }

    fn entries(&self) -> Vec<Entry> {
        self.datagrams().iter().map(|datagram| Entry::read(datagram)).collect()
    }

    /// The entries of what is said meanwhile.
    fn hear(&self, say: impl FnOnce()) -> Vec<Entry> {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(self.open().unwrap()), say);
        self.entries()
    }
}

/// The fields of an entry, in its order.
#[derive(Debug)]
struct Entry(Vec<(String, String)>);

impl Entry {
    /// As journald reads it, both forms of a field.
    fn read(mut bytes: &[u8]) -> Self {
        let mut fields = Vec::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(&bytes[..end]).unwrap();
            bytes = &bytes[end + 1..];
            fields.push(match line.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => {
                    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
                    let (value, rest) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
                    bytes = rest.strip_prefix(b"\n").unwrap();
                    (line.to_owned(), String::from_utf8(value.to_vec()).unwrap())
                }
            });
        }
        assert!(bytes.is_empty(), "{bytes:?}");
        Self(fields)
    }

    /// All values of a field: journald knows fields with several.
    fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_str()).collect()
    }

    fn get(&self, name: &str) -> &str {
        let [value] = self.all(name)[..] else { panic!("{name} is not there once: {self:?}") };
        value
    }

    fn names(&self) -> BTreeSet<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// What is said at the same time as text.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_message_is_what_text_says_after_level_and_target() {
    let rows: [(fn(), &str); 6] = [
        (
            || tracing::warn!(vmid = %106, block = "user-data", line = 3, reason = %"it ends nowhere", "not used"),
            r#"not used vmid=106 block="user-data" line=3 reason=it ends nowhere"#,
        ),
        (|| tracing::info!("stopping"), "stopping"),
        (|| tracing::info!(guests = 2, took = ?Duration::from_secs(1)), "guests=2 took=1s"),
        (|| tracing::info!(peer.ip = "169.254.1.2", "it is {}", 5), r#"it is 5 peer.ip="169.254.1.2""#),
        (|| tracing::info!(vmid = None::<u32>, r#type = true, "absent"), "absent type=true"),
        (|| tracing::info!("coloured \u{1b}[31m"), r"coloured \x1b[31m"),
    ];
    for (say, expected) in rows {
        let (journald, lines) = (Journald::new(), Lines::default());
        let writer = lines.clone();
        let text = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        let both = tracing_subscriber::registry().with(text).with(journald.open().unwrap());
        tracing::subscriber::with_default(both, say);
        let entries = journald.entries();
        assert_eq!(entries.len(), 1, "{entries:?}");
        assert_eq!(entries[0].get("MESSAGE"), expected);
        let line = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(line.ends_with(&format!(" {}: {expected}\n", module_path!())), "{line:?}");
    }
}

#[test]
fn each_fact_is_a_field_and_those_of_the_spans_are() {
    let journald = Journald::new();
    let entries = journald.hear(|| {
        let outer = tracing::info_span!(target: "outside", "interface", tap = "tap106i0");
        let _outer = outer.enter();
        let span = tracing::info_span!("request", vmid = 106, peer.ip = %"::1", message = "a fact", outcome = tracing::field::Empty);
        span.record("outcome", "ok");
        let _in = span.enter();
        tracing::warn!(target: "pve_imds", line = 3, reason = ?"why", _private = 1.5, on = true, "not used");
    });
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    for (name, value) in [
        ("MESSAGE", r#"not used line=3 reason="why" _private=1.5 on=true"#),
        ("PRIORITY", "4"),
        ("SYSLOG_IDENTIFIER", "pve-imds"),
        ("TARGET", "pve_imds"),
        ("CODE_FILE", file!()),
        ("IMDS_LINE", "3"),
        ("IMDS_REASON", r#""why""#),
        ("IMDS_PRIVATE", "1.5"),
        ("IMDS_ON", "true"),
        ("IMDS_VMID", "106"),
        ("IMDS_PEER_IP", "::1"),
        ("IMDS_MESSAGE", "a fact"),
        ("IMDS_OUTCOME", "ok"),
        ("IMDS_TAP", "tap106i0"),
    ] {
        assert_eq!(entry.get(name), value, "{name}");
    }
    assert_eq!(entry.all("SPAN_NAME"), ["request", "interface"]);
    assert_eq!(entry.all("SPAN_TARGET"), [module_path!(), "outside"]);
    assert_eq!(entry.all("SPAN_CODE_FILE"), [file!(), file!()]);
    let lines: Vec<u32> = ["SPAN_CODE_LINE", "CODE_LINE"]
        .iter()
        .flat_map(|name| entry.all(name))
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(lines[1] < lines[0] && lines[0] < lines[2], "{lines:?}");
    assert_eq!(entry.names().len(), 14 + 4 + 1, "and there is no other: {entry:?}");
}

#[test]
fn a_level_is_a_priority() {
    let journald = Journald::new();
    let entries = journald.hear(|| {
        tracing::error!("error");
        tracing::warn!("warn");
        tracing::info!("info");
        tracing::debug!("debug");
        tracing::trace!("trace");
    });
    let said: Vec<_> = entries.iter().map(|entry| (entry.get("MESSAGE"), entry.get("PRIORITY"))).collect();
    assert_eq!(said, [("error", "3"), ("warn", "4"), ("info", "6"), ("debug", "7"), ("trace", "7")]);
}

#[test]
fn the_access_line_repeats_nothing() {
    let journald = Journald::new();
    let line = "tap106i0 169.254.1.2:50834 GET /nocloud/meta-data 200 ok 76 B 140 us";
    let entries = journald.hear(|| {
        let span = tracing::info_span!(target: "pve_imds::access", "request", vmid = 106, status = 200, outcome = "ok");
        span.in_scope(|| tracing::info!(target: "pve_imds::access", "{line}"));
    });
    assert_eq!(entries[0].get("MESSAGE"), line);
    assert_eq!((entries[0].get("IMDS_VMID"), entries[0].get("IMDS_STATUS")), ("106", "200"));
}

#[test]
fn no_value_forges_a_field() {
    let forged = "x\nPRIORITY=0\nIMDS_VMID=1\nMESSAGE\n\u{4}\0\0\0\0\0\0\0fake\n\n\0\u{1b}]\r";
    let journald = Journald::new();
    let entries = journald.hear(|| {
        let span = tracing::info_span!("request", of_span = forged, shown = %forged);
        span.in_scope(|| tracing::info!(target: "pve_imds", fact = forged, written = %forged, "{forged}"));
    });
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    for name in ["IMDS_OF_SPAN", "IMDS_SHOWN", "IMDS_FACT", "IMDS_WRITTEN"] {
        assert_eq!(entry.get(name), forged, "{name}");
    }
    assert_eq!(entry.get("PRIORITY"), "6");
    // A message with control characters would be shown as a blob.
    let message = entry.get("MESSAGE");
    assert!(message.starts_with("x\nPRIORITY=0\n") && message.contains("\\x00\\x1b]\\x0d fact="), "{message:?}");
    assert!(!message.contains(hidden), "{message:?}");
    let names = [
        "MESSAGE",
        "PRIORITY",
        "SYSLOG_IDENTIFIER",
        "TARGET",
        "CODE_FILE",
        "CODE_LINE",
        "IMDS_FACT",
        "IMDS_WRITTEN",
        "SPAN_NAME",
        "SPAN_TARGET",
        "SPAN_CODE_FILE",
        "SPAN_CODE_LINE",
        "IMDS_OF_SPAN",
        "IMDS_SHOWN",
    ];
    assert_eq!(entry.names(), BTreeSet::from(names));
    assert_eq!(entry.0.len(), names.len(), "and each once");
}

#[test]
fn what_is_too_large_for_a_datagram_loses_of_its_message_and_then_its_facts() {
    let long = "ü".repeat(VALUE / 2);
    let fact = "f".repeat(5000);
    // The kernel doubles what is asked for and gives at least 4.5 KiB.
    for (buffer, fact, length, has_fact) in
        [(1 << 17, "short", VALUE, true), (2048, "short", SHORT, true), (2048, &*fact, SHORT, false)]
    {
        let journald = Journald::new();
        let journal = journald.open().unwrap();
        set_socket_send_buffer_size(&journal.socket, buffer).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
            tracing::error!(fact, "told {long}")
        });
        let entries = journald.entries();
        let [entry] = &entries[..] else { panic!("{buffer} {}: {} entries", fact.len(), entries.len()) };
        let message = entry.get("MESSAGE");
        assert!(message.starts_with("told üü") && message.ends_with("ü..."), "{message}");
        assert!((length - 1..=length).contains(&message.len()), "{} is not {length}", message.len());
        assert_eq!(entry.all("IMDS_FACT"), if has_fact { vec![fact] } else { vec![] });
        assert_eq!(entry.get("PRIORITY"), "3");
    }
}

#[test]
fn an_entry_and_a_span_have_bounds() {
    let journald = Journald::new();
    let huge = "h".repeat(4 << 20);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(journald.open().unwrap()), || {
        let span =
            tracing::info_span!("request", a = %huge, b = huge, c = ?huge, d = huge, outcome = tracing::field::Empty);
        for _ in 0..10_000 {
            span.record("outcome", "ok");
        }
        let _in = span.enter();
        tracing::info!(a = huge, b = %huge, c = ?huge, vmid = 106, "{huge}");
    });
    let datagrams = journald.datagrams();
    let [datagram] = &datagrams[..] else { panic!("{} entries", datagrams.len()) };
    assert!(datagram.len() <= FACTS + VALUE + 1024, "{}", datagram.len());
    let entry = Entry::read(datagram);
    assert_eq!(entry.get("IMDS_VMID"), "106", "what fits is there, though it comes after what is cut");
    for name in ["MESSAGE", "IMDS_A", "IMDS_B", "IMDS_C"] {
        let value = entry.get(name);
        assert!(value.len() == VALUE && value.ends_with("hhh..."), "{name} of {} bytes", value.len());
    }
}

#[test]
fn a_text_that_was_cut_stays_cut() {
    let mut text = Text::default();
    text.write_str(&"ü".repeat(VALUE / 2 - 1)).unwrap();
    text.write_str("€").unwrap();
    text.write_str("!").unwrap();
    assert!(text.text.ends_with("ü...") && text.text.len() <= VALUE, "{}", &text.text[VALUE - 20..]);
    assert_eq!(cut("üüü", 5), "ü...");
    assert_eq!(cut("üüü", 6), "üüü");
}

#[test]
fn nobody_waits_for_a_journal_that_takes_nothing() {
    let journald = Journald::new();
    let journal = journald.open().unwrap();
    set_socket_send_buffer_size(&journal.socket, 1 << 16).unwrap();
    let dispatch = tracing::Dispatch::new(tracing_subscriber::registry().with(journal));
    let speaks = dispatch.clone();
    let (done, said) = channel();
    // A thousand lines are more than its queue holds.
    let speaker = thread::spawn(move || {
        tracing::dispatcher::with_default(&speaks, || {
            for number in 0..1000 {
                tracing::info!(number, "{}", "m".repeat(1000));
            }
        });
        done.send(())
    });
    said.recv_timeout(Duration::from_secs(20)).expect("it waits");
    let _ = speaker.join();
    let taken = journald.entries();
    assert!(!taken.is_empty() && taken.len() < 1000, "{} entries: the queue was not full", taken.len());
    assert_eq!(taken[0].get("IMDS_NUMBER"), "0");
    // It learns how many it missed, once, when it listens again.
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::info!("heard");
        tracing::info!("heard too");
    });
    let later = journald.entries();
    let lost = (1000 - taken.len()).to_string();
    let missing = format!("lines before this one are missing, the journal did not take them lost={lost}");
    assert_eq!(later.iter().map(|entry| entry.get("MESSAGE")).collect::<Vec<_>>(), [&*missing, "heard", "heard too"]);
    assert_eq!((later[0].get("IMDS_LOST"), later[0].get("PRIORITY")), (&*lost, "4"));
    assert_eq!(later[0].get("SYSLOG_IDENTIFIER"), "pve-imds");
    // A full queue is no reason to take it for dead.
    while journald.open().unwrap().socket.send_to(b"A=1\n", journald.dir.path().join("socket")).is_ok() {}
    assert!(journald.open().is_ok());
}

#[test]
fn a_journal_that_goes_is_found_again() {
    let mut journald = Journald::new();
    let path = journald.dir.path().join("socket");
    assert!(Journal::at(journald.dir.path().join("nothing")).is_err());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(journald.open().unwrap()), || {
        std::fs::remove_file(&path).unwrap();
        tracing::info!("lost");
        journald.socket = UnixDatagram::bind(&path).unwrap();
        journald.socket.set_nonblocking(true).unwrap();
        tracing::info!("heard");
    });
    let entries = journald.entries();
    assert_eq!(entries.len(), 2, "{entries:?}");
    assert_eq!((entries[0].get("IMDS_LOST"), entries[1].get("MESSAGE")), ("1", "heard"));
}

#[test]
fn a_fact_that_cannot_be_written_takes_nothing_with_it() {
    struct Refuses;
    impl fmt::Display for Refuses {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("half")?;
            Err(fmt::Error)
        }
    }
    let journald = Journald::new();
    let entries = journald.hear(|| tracing::info!(first = 1, bad = %Refuses, last = 2, "told"));
    assert!(entries[0].get("MESSAGE").starts_with("told first=1 bad=half"), "{entries:?}");
    let facts = ["IMDS_FIRST", "IMDS_BAD", "IMDS_LAST"].map(|name| entries[0].get(name));
    assert_eq!(facts, ["1", "half", "2"]);
}
