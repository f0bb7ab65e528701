//! What a place on the network sees of the metadata address.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use pve_imds_transport::bpf::METADATA_MAC;

use super::rogue::Rogue;
use super::{Guest, Namespace};

/// Whatever speaks to or of a metadata address: ARP, IPv4, IPv6, and neighbour discovery about it.
const SPOKEN: &str = "arp host 169.254.169.254 or host 169.254.169.254 or host fd00:ec2::254 or host fe80::a9fe:a9fe or \
                      (icmp6 and (ip6[40]=135 or ip6[40]=136) and (\
                      (ip6[48:4]=0xfd000ec2 and ip6[60:4]=0x254) or (ip6[48:4]=0xfe800000 and ip6[60:4]=0xa9fea9fe)))";

/// Whatever speaks in its name.
const CLAIMED: &str = "(arp and arp[14:4]=0xa9fea9fe) or src host 169.254.169.254 or src host fd00:ec2::254 or \
                       src host fe80::a9fe:a9fe or (icmp6 and ip6[40]=136 and (\
                       (ip6[48:4]=0xfd000ec2 and ip6[60:4]=0x254) or (ip6[48:4]=0xfe800000 and ip6[60:4]=0xa9fea9fe)))";

/// The same with none, one or two VLAN tags in front. Each `vlan` moves all that stands to its right.
fn tagged(filter: &str) -> String {
    format!("({filter}) or (vlan and (({filter}) or (vlan and ({filter}))))")
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

/// tcpdump on one interface.
pub struct Capture {
    tcpdump: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    /// All that speaks to or of a metadata address, except what the rogue itself sends. Returns when it listens.
    pub fn start(namespace: &Namespace, interface: &str) -> Self {
        let rogue = mac(Rogue::MAC);
        Self::of(namespace, interface, "inout", &format!("not ether src {rogue} and ({})", tagged(SPOKEN)))
    }

    /// What a guest hears in a metadata address's name, from anybody but us.
    pub fn of_forgeries(guest: &Guest) -> Self {
        let ours = mac(METADATA_MAC);
        Self::of(&guest.namespace, "eth0", "in", &format!("not ether src {ours} and ({})", tagged(CLAIMED)))
    }

    fn of(namespace: &Namespace, interface: &str, direction: &str, filter: &str) -> Self {
        let mut command = namespace.command("tcpdump");
        // A large buffer: a frame that was not written down is not a frame that was not there.
        command.args(["-i", interface, "-Q", direction, "-B", "16384", "-n", "-e", "-l", "--immediate-mode"]);
        command.arg(filter);
        let mut tcpdump = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(tcpdump.stderr.take().unwrap());
        let mut line = String::new();
        while errors.read_line(&mut line).unwrap() > 0 && !line.contains("listening on") {
            line.clear();
        }
        assert!(line.contains("listening on"), "tcpdump did not start");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (out, kept) = (BufReader::new(tcpdump.stdout.take().unwrap()), lines.clone());
        let reader = std::thread::spawn(move || {
            let _errors = errors;
            out.lines()
                .map_while(Result::ok)
                .filter(|line| !line.is_empty())
                .for_each(|line| kept.lock().unwrap().push(line));
        });
        Self { tcpdump, lines, reader: Some(reader) }
    }

    /// What it saw so far.
    pub fn seen(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Ends the capture; what it saw.
    pub fn stop(mut self) -> Vec<String> {
        self.end();
        std::mem::take(&mut self.lines.lock().unwrap())
    }

    /// Ends the capture, which must have seen nothing.
    #[track_caller]
    pub fn saw_nothing(self) {
        let seen = self.stop();
        assert!(seen.is_empty(), "{} frames were seen, first: {}", seen.len(), seen[0]);
    }

    fn end(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.tcpdump);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.tcpdump.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
    }
}
