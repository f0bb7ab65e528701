//! Clocks for what takes milliseconds: births, restarts, changes of a configuration.
//!
//! In come namespaces that `run.sh` has made; out goes one line of milliseconds a round. A guest's neighbour table
//! holds the metadata address already, as after a migration, and a guest asks anew every few milliseconds, so that its
//! own patience is not what is measured.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pve_imds_transport::bpf::METADATA_MAC;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Whatever takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// Between two looks.
const LOOK: Duration = Duration::from_micros(100);

/// A guest's patience with one attempt.
const ATTEMPT: Duration = Duration::from_millis(4);

/// The VM that is born and rewritten.
const VMID: u32 = 101;

/// Prints, for each of `count` births of `tap101i0` in `node`: interface seen → `steer` pinned, both pinned, the
/// guest's own side configured (before that it cannot ask), first good answer.
pub(crate) fn births(node: &str, guest: &str, pins: &Path, count: usize) {
    let tap = format!("tap{VMID}i0");
    for _ in 0..count {
        batch(guest, "link del eth0\n");
        until("the old pins are gone", || (!pinned(pins, "")).then_some(()));
        let (seen, birth) = mpsc::channel();
        let watcher = {
            let (node, tap) = (node.to_owned(), format!("{tap}:"));
            thread::spawn(move || {
                enter(&node);
                let exists = || fs::read_to_string("/proc/thread-self/net/dev").unwrap().contains(&tap).then_some(());
                until("the interface is born", exists);
                seen.send(Instant::now()).unwrap();
            })
        };
        let asker = {
            let guest = guest.to_owned();
            thread::spawn(move || {
                enter(&guest);
                until("the guest is answered", || fresh("/nocloud/meta-data").map(|_| Instant::now()))
            })
        };
        let plug = {
            let (node, guest, tap) = (node.to_owned(), guest.to_owned(), tap.clone());
            thread::spawn(move || {
                plug(&node, &guest, &tap);
                Instant::now()
            })
        };
        let steer = until("steer is pinned", || pinned(pins, "-steer").then(Instant::now));
        let both = until("shield is pinned", || pinned(pins, "-shield").then(Instant::now));
        let answer = asker.join().unwrap();
        let birth = birth.recv().unwrap();
        let ready = plug.join().unwrap();
        watcher.join().unwrap();
        let times = [steer, both, ready, answer].map(|time| format!("{:.2}", since(birth, time)));
        println!("{}", times.join(" "));
    }
}

/// Kills the daemon and starts it again; prints how long after the kill the first and the last of `guests` has its answer.
pub(crate) fn restart(node: &str, rounds: usize, guests: &[&str], command: &[&str]) {
    enter(node);
    let spawn = || Command::new(command[0]).args(&command[1..]).stdin(Stdio::null()).spawn().unwrap();
    let mut daemon = Daemon(spawn());
    all_answered(guests);
    for _ in 0..rounds {
        let killed = Instant::now();
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        daemon.0 = spawn();
        let mut answers = all_answered(guests);
        answers.sort_unstable();
        println!("{:.1} {:.1}", since(killed, answers[0]), since(killed, *answers.last().unwrap()));
    }
}

fn all_answered(guests: &[&str]) -> Vec<Instant> {
    let askers: Vec<_> = guests
        .iter()
        .map(|guest| {
            let guest = (*guest).to_owned();
            thread::spawn(move || {
                enter(&guest);
                until("the guest is answered", || fresh("/nocloud/meta-data").map(|_| Instant::now()))
            })
        })
        .collect();
    askers.into_iter().map(|asker| asker.join().unwrap()).collect()
}

/// Writes the VM's configuration `count` times with another name; prints how long until the guest reads it. `moved`: as
/// Proxmox does, a new file in the place of the old. Otherwise the file is written in place and never closed, which
/// inotify does not report: so a change made on another node looks here. All names must be as long as the first.
pub(crate) fn writes(guest: &str, tree: &Path, moved: bool, count: usize) {
    enter(guest);
    let path = tree.join("qemu-server").join(format!("{VMID}.conf"));
    let before = fs::read_to_string(&path).unwrap();
    let open = File::options().write(true).open(&path).unwrap();
    let mut stream = TcpStream::connect(metadata()).unwrap();
    for round in 0..count {
        // Not in step with the daemon's poll.
        thread::sleep(Duration::from_millis(700 + 37 * (u64::try_from(round).unwrap() % 14)));
        let name = format!("name{}{round:03}", u8::from(moved));
        let lines = before
            .lines()
            .map(|line| if line.starts_with("name: ") { format!("name: {name}\n") } else { format!("{line}\n") });
        let text: String = lines.collect();
        let written = Instant::now();
        if moved {
            let temporary = path.with_extension("tmp");
            fs::write(&temporary, &text).unwrap();
            fs::rename(temporary, &path).unwrap();
        } else {
            open.write_all_at(text.as_bytes(), 0).unwrap();
        }
        count_up(tree);
        let served = until("the change is served", || {
            thread::sleep(Duration::from_millis(1));
            ask(&mut stream, "/nocloud/meta-data", true)?.contains(&name).then(Instant::now)
        });
        println!("{:.1}", since(written, served));
    }
}

/// What pmxcfs does after a write: the list's version and the VM's go up.
fn count_up(tree: &Path) {
    let mut list: serde_json::Value = serde_json::from_slice(&fs::read(tree.join(".vmlist")).unwrap()).unwrap();
    let version = list["version"].as_u64().unwrap() + 1;
    list["version"] = version.into();
    list["ids"][VMID.to_string()]["version"] = version.into();
    let mut counts: serde_json::Value = serde_json::from_slice(&fs::read(tree.join(".version")).unwrap()).unwrap();
    counts["vmlist"] = version.into();
    for (file, value) in [(".vmlist", list), (".version", counts)] {
        let temporary = tree.join(format!("{file}.tmp"));
        fs::write(&temporary, value.to_string()).unwrap();
        fs::rename(temporary, tree.join(file)).unwrap();
    }
}

/// A veth guest, as its tap appears on the node and joins the bridge. One process a side: starting one takes longer than
/// what it does.
fn plug(node: &str, guest: &str, tap: &str) {
    let mac = METADATA_MAC.map(|byte| format!("{byte:02x}")).join(":");
    batch(node, &format!("link add {tap} type veth peer name eth0 netns {guest}\nlink set {tap} up master vmbr0\n"));
    batch(
        guest,
        &format!(
            "link set eth0 up\naddr add 169.254.1.2/16 dev eth0\nneigh replace 169.254.169.254 lladdr {mac} dev eth0\n"
        ),
    );
}

/// Runs `ip` commands in a namespace.
fn batch(namespace: &str, lines: &str) {
    let mut child = Command::new("ip").args(["-n", namespace, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "ip: {lines}");
}

fn pinned(pins: &Path, suffix: &str) -> bool {
    let wanted = |name: &str| name.ends_with(suffix) && name.starts_with(|first: char| first.is_ascii_digit());
    fs::read_dir(pins).unwrap().flatten().any(|entry| entry.file_name().to_str().is_some_and(wanted))
}

fn metadata() -> SocketAddr {
    SocketAddr::from(([169, 254, 169, 254], 80))
}

/// The answer over a connection of its own; `None` if it is not good or not there in time.
fn fresh(path: &str) -> Option<String> {
    let begun = Instant::now();
    let stream = TcpStream::connect_timeout(&metadata(), ATTEMPT);
    let Ok(mut stream) = stream else {
        // Unreachable is said at once: keep the pace.
        thread::sleep(LOOK.max(ATTEMPT / 4).saturating_sub(begun.elapsed()));
        return None;
    };
    stream.set_read_timeout(Some(10 * ATTEMPT)).unwrap();
    ask(&mut stream, path, false)
}

/// The body of a 200.
fn ask(stream: &mut TcpStream, path: &str, keep: bool) -> Option<String> {
    let connection = if keep { "keep-alive" } else { "close" };
    // In one piece, as HTTP clients do: pieces would wait for each other (Nagle's algorithm and a delayed ACK).
    let request = format!("GET {path} HTTP/1.1\r\nhost: 169.254.169.254\r\nconnection: {connection}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok()?;
    let good = line.starts_with("HTTP/1.1 200");
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    String::from_utf8(body).ok().filter(|_| good)
}

fn since(begun: Instant, end: Instant) -> f64 {
    end.saturating_duration_since(begun).as_secs_f64() * 1000.0
}

/// Waits until `probe` yields something.
fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        thread::sleep(LOOK);
    }
}

/// Moves the calling thread, and the threads it starts from now on, into a network namespace.
fn enter(namespace: &str) {
    let path = format!("/run/netns/{namespace}");
    let file = File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// A child that does not outlive us.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
