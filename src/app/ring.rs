//! The ring's thread: the AF_XDP socket, the driver and every guest's connections, on one runtime of one thread.
//!
//! Handing a request over to another thread costs more than answering it, so nothing here may wait for anything but
//! frames; what is slow runs elsewhere. In comes the index of the device to bind; out come a handle to say which guests
//! there are and the socket to be put into the map that `funnel` redirects to.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use pve_imds_transport::bpf::{Credit, Epoch};
use pve_imds_transport::{Driver, Guests, Socket, Xsk, entropy};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

/// How long an older socket may hold the queue. Right after a kill the kernel still has it for some milliseconds.
const BUSY: Duration = Duration::from_secs(2);

/// What to do about an error of binding, beside what the kernel calls it.
fn mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ResourceBusy => "another process has an AF_XDP socket there; end it",
        io::ErrorKind::PermissionDenied => "run as root, or with CAP_NET_RAW",
        _ if error.raw_os_error() == Some(NO_BUFFER_SPACE) => {
            "the rings pin 5 MiB of memory: raise the limit (LimitMEMLOCK=infinity, ulimit -l) or grant CAP_IPC_LOCK"
        }
        _ => "the device or the kernel does not take it",
    }
}

/// ENOBUFS: the kernel's word for RLIMIT_MEMLOCK here.
const NO_BUFFER_SPACE: i32 = 105;

/// A running ring. Dropping it ends it at once, without waiting for that.
#[derive(Debug)]
pub(super) struct Ring {
    /// Says which guests there are. The ring ends when the last of its kind is dropped and what is under way has
    /// arrived.
    pub guests: Guests,
    /// Another descriptor of the socket.
    pub socket: OwnedFd,
    /// How the ring ended.
    pub ended: oneshot::Receiver<io::Result<()>>,
    /// Never used: the ring ends at once when it is gone.
    life: oneshot::Sender<Infallible>,
    thread: JoinHandle<()>,
}

impl Ring {
    /// Binds the socket to the device and starts to read. `credit` is what the programs that feed the socket lend.
    ///
    /// # Errors
    /// The socket cannot be bound, or no thread can be started.
    pub(super) fn start(device: u32, epoch: Epoch, credit: Credit) -> io::Result<Self> {
        let (bound, binding) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel();
        let (life, death) = oneshot::channel();
        let thread = std::thread::Builder::new().name("ring".into()).spawn(move || {
            let result = run(device, epoch, credit, &bound, death);
            match result {
                // Nobody waits for how it ended when the daemon stops.
                Ok(ended) => drop(end.send(ended)),
                Err(error) => drop(bound.send(Err(io::Error::new(error.kind(), format!("{error}: {}", mend(&error)))))),
            }
        })?;
        let (guests, socket) = binding.recv().map_err(|_| io::Error::other("the ring's thread died"))??;
        Ok(Self { guests, socket, ended, life, thread })
    }

    /// Lets the ring end: answers under way arrive, or have their time. After this nobody reads frames any more.
    pub(super) fn stop(self) {
        drop(self.guests);
        join(self.thread);
    }

    /// Ends the ring now, with every connection in it. After this the socket is gone.
    pub(super) fn abort(self) {
        drop(self.life);
        join(self.thread);
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("the ring's thread panicked");
    }
}

type Bound = io::Result<(Guests, OwnedFd)>;

fn run(
    device: u32,
    epoch: Epoch,
    credit: Credit,
    bound: &std::sync::mpsc::Sender<Bound>,
    death: oneshot::Receiver<Infallible>,
) -> io::Result<io::Result<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let socket = bind(device).await?;
        let duplicate = socket.as_fd().try_clone_to_owned()?;
        let (driver, guests) = Driver::new(Xsk::new(socket, credit), epoch, entropy);
        // The starter is gone only if it gave up waiting; then the missing handle ends the driver.
        let _ = bound.send(Ok((guests, duplicate)));
        tokio::select! {
            ended = driver.run() => Ok(ended),
            _ = death => Ok(Ok(())),
        }
    });
    // Not waited for: what is read beside this thread hangs for as long as its mount does, and the next ring waits for us.
    runtime.shutdown_background();
    ended
}

async fn bind(device: u32) -> io::Result<Socket> {
    let patience = Instant::now() + BUSY;
    loop {
        match Socket::bind(device) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < patience => {
                sleep(Duration::from_millis(10)).await;
            }
            other => return other,
        }
    }
}
