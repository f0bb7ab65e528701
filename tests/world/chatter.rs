//! Everything a guest can send towards the metadata addresses, over and over, until it is dropped.

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::wire::Wire;
use super::{Guest, frames, until};

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
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Between two frames: two thousand a second are more than any client sends and leave the processors to others.
const PAUSE: Duration = Duration::from_micros(500);

impl Chatter {
    /// One frame for each verdict of `steer`, from this guest's link.
    pub fn start(guest: &Guest) -> Self {
        Self::of(guest.link(), frames::from_guest().into_iter().map(|(_, frame)| frame.0).collect())
    }

    /// These frames.
    pub fn of(wire: Wire, frames: Vec<Vec<u8>>) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counter) = (stop.clone(), rounds.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for frame in &frames {
                    // A link that is down or gone loses it; it may come back.
                    let _ = wire.send(frame);
                    std::thread::sleep(PAUSE);
                }
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { stop, rounds, thread: Some(thread) }
    }

    /// Waits until each frame was tried once more.
    pub fn once_around(&self) {
        let round = self.rounds.load(Ordering::Relaxed);
        until("all is said once more", || (self.rounds.load(Ordering::Relaxed) > round + 1).then_some(()));
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
