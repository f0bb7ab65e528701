//! What a place on the network sees of the metadata address.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::Namespace;

/// Everything that speaks of the metadata address, with or without a VLAN tag.
const FILTER: &str = "(arp host 169.254.169.254 or host 169.254.169.254) \
                      or (vlan and (arp host 169.254.169.254 or host 169.254.169.254))";

/// tcpdump on one interface.
pub struct Capture {
    tcpdump: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    /// Returns when it listens.
    pub fn start(namespace: &Namespace, interface: &str) -> Self {
        let mut command = namespace.command("tcpdump");
        command.args(["-i", interface, "-n", "-e", "-l", "-p", "--immediate-mode", FILTER]);
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

    /// Ends the capture; what it saw.
    pub fn stop(mut self) -> Vec<String> {
        self.end();
        std::mem::take(&mut self.lines.lock().unwrap())
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
