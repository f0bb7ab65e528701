//! What ends a start: rights that are missing, and how that reaches whoever reads the log.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};
use std::time::Duration;

use crate::world::{Guest, Node, Plug};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The product, in the node's namespace, without these rights.
fn without(node: &Node, rights: &str, arguments: &[&str]) -> Output {
    let mut command = node.namespace.command("setpriv");
    let gone: Vec<String> = rights.split(',').map(|right| format!("-{right}")).collect();
    let gone = gone.join(",");
    command.args(["--bounding-set", &gone, "--inh-caps", &gone, env!("CARGO_BIN_EXE_pve-imds")]);
    if !arguments.starts_with(&["guard", "attach"]) {
        command.arg("--config").arg(node.config());
    }
    command.args(arguments).output().unwrap()
}

#[test]
fn each_right_that_is_missing_is_named_with_the_mend() {
    let mut node = Node::new();
    node.vm(101);
    let _guest = Guest::plug(&node, 101, Plug::Veth, "169.254.1.2/16");
    let attach = ["guard", "attach", "tap101i0", "--pin-dir", "/run/imdstk/bpf"];
    for (rights, arguments, missing) in [
        ("bpf,sys_admin", &["serve"][..], "CAP_BPF is missing"),
        ("perfmon,sys_admin", &["serve"], "CAP_PERFMON is missing"),
        ("net_admin", &["serve"], "CAP_NET_ADMIN is missing"),
        ("net_raw", &["serve"], "CAP_NET_RAW is missing"),
        ("all", &["serve"], "CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW are missing"),
        ("bpf,sys_admin", &attach, "CAP_BPF is missing"),
        ("perfmon,sys_admin", &attach, "CAP_PERFMON is missing"),
        ("net_admin", &attach, "CAP_NET_ADMIN is missing"),
        ("sys_admin", &["guard", "status"], "CAP_SYS_ADMIN is missing"),
        ("sys_admin", &["guard", "remove"], "CAP_SYS_ADMIN is missing"),
    ] {
        let output = without(&node, rights, arguments);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{rights} {arguments:?}: {err}");
        let last = err.lines().last().unwrap();
        assert!(
            last.contains(missing) && last.contains("; run it as root, or grant that"),
            "{rights} {arguments:?}: {err}"
        );
    }
    // What the table does not ask for is not needed.
    for (rights, arguments) in [
        ("sys_admin,net_raw", &attach[..]),
        ("net_admin,net_raw", &["guard", "status"]),
        ("bpf,perfmon,net_admin,net_raw", &["guard", "remove"]),
    ] {
        let output = without(&node, rights, arguments);
        assert_eq!(output.status.code(), Some(0), "{rights} {arguments:?}: {}", text(&output.stderr));
    }
    assert!(!node.is_guarded("tap101i0"), "and it was removed");
    let taps = without(&node, "all", &["taps"]);
    let (out, err) = (text(&taps.stdout), text(&taps.stderr));
    assert!(taps.status.success() && out.contains("tap101i0"), "{out}{err}");
    assert!(
        err.starts_with("guards that are pinned elsewhere are not seen") && err.contains("CAP_SYS_ADMIN is"),
        "{err}"
    );
}

/// What the daemon and the commands of our units say last, to a journal that is a socket of the test's.
#[test]
fn the_last_words_reach_the_journal_as_an_error() {
    let node = Node::new();
    let journal = Node::dir().join("journal");
    std::fs::create_dir(&journal).unwrap();
    let socket = UnixDatagram::bind(journal.join("socket")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // Where journald's socket is, for the product alone: whatever is there on this machine is covered.
    let script = format!(
        "set -e; exec 3<{journal}; mount -t tmpfs none /run; mkdir -p /run/systemd/journal; \
         mount --bind /proc/self/fd/3 /run/systemd/journal; exec 3<&-; exec \"$@\"",
        journal = journal.display()
    );
    let config = tempfile(&node.settings().replace("/run/imdstk/bpf", "/run/imdstk/nothing"));
    let broken = tempfile("emulate: openstak\n");
    for (arguments, status, said) in [
        (vec!["--config", &broken, "serve"], 64, "emulate must be auto, openstack or ec2"),
        (vec!["--config", &config, "serve"], 1, "/run/imdstk/nothing is not there: `mkdir -p"),
        (vec!["guard", "attach", "tap999i0"], 1, "there is no interface tap999i0"),
        (vec!["serv"], 64, "unrecognized subcommand 'serv'"),
    ] {
        let path = Node::dir().join("stderr");
        let stderr = File::create(&path).unwrap();
        let about = stderr.metadata().unwrap();
        let output = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_pve-imds")])
            .args(&arguments)
            .env("JOURNAL_STREAM", format!("{}:{}", about.dev(), about.ino()))
            .stderr(stderr)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", std::fs::read_to_string(&path).unwrap());
        let entry = loop {
            let mut bytes = [0; 4096];
            let length = socket.recv(&mut bytes).unwrap_or_else(|why| panic!("{arguments:?}: no error came: {why}"));
            let entry = fields(&bytes[..length]);
            // An empty one asks whether anybody is there.
            if entry.get("PRIORITY").is_some_and(|priority| priority == "3") {
                break entry;
            }
        };
        assert_eq!((&*entry["SYSLOG_IDENTIFIER"], &*entry["TARGET"]), ("pve-imds", "pve_imds"), "{arguments:?}");
        assert!(entry["MESSAGE"].contains(said), "{arguments:?}: {entry:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "", "and is not said twice");
    }
    let _ = (std::fs::remove_file(config), std::fs::remove_file(broken));
}

/// An entry as journald takes it (systemd.io/JOURNAL_NATIVE_PROTOCOL): `NAME=value`, or the name, a length and the value.
fn fields(mut entry: &[u8]) -> HashMap<String, String> {
    let mut fields = HashMap::new();
    while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
        let (line, rest) = (&entry[..end], &entry[end + 1..]);
        let (name, value, rest) = match text(line).split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned(), rest),
            None => {
                let (length, rest) = rest.split_first_chunk::<8>().unwrap();
                let (value, rest) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
                (text(line), text(value), &rest[1..])
            }
        };
        fields.insert(name, value);
        entry = rest;
    }
    fields
}

/// A file outside of `/run`.
fn tempfile(content: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("imdstk-{}-{}.yaml", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}
