//! Everything a guest can send towards the metadata addresses, over and over, until it is dropped.

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::wire::Wire;
use super::{Guest, frames};

/// What a guest's kernel and its programs send by themselves, for about six seconds.
pub fn programs(guest: &Guest) -> Child {
    let script = "for n in $(seq 60); do \
        timeout 0.2 curl -s -m 1 http://169.254.169.254/ ; \
        timeout 0.1 curl -s -m 1 http://169.254.169.254:443/ ; \
        echo x > /dev/udp/169.254.169.254/53 ; \
        busybox ping -c 1 -W 1 169.254.169.254 & \
        busybox arping -q -c 1 -w 1 -I eth0 169.254.169.254 & \
        sleep 0.05; done; wait";
    let mut command = guest.namespace.command("bash");
    command.args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Frames that are sent in turn.
#[derive(Debug)]
pub struct Chatter {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Between two frames: some thousand a second are more than any client sends and leave the processors to others.
const PAUSE: Duration = Duration::from_micros(500);

impl Chatter {
    /// One frame for each verdict of `steer`, from this guest's link.
    pub fn start(guest: &Guest) -> Self {
        Self::of(guest.wire(), frames::from_guest().into_iter().map(|(_, frame)| frame.0).collect())
    }

    /// These frames.
    pub fn of(wire: Wire, frames: Vec<Vec<u8>>) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counter) = (stop.clone(), sent.clone());
        let thread = std::thread::spawn(move || {
            for frame in frames.iter().cycle().take_while(|_| !stopped.load(Ordering::Relaxed)) {
                counter.fetch_add(wire.send(frame).into(), Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        });
        Self { stop, sent, thread: Some(thread) }
    }

    /// Frames that the link took so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Chatter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
