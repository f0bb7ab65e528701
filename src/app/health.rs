//! Whether all is well, said truly: asked of those who know, when somebody asks.
//!
//! Well is: our devices are there, up and as they must be; the programs are attached and their pins there; the guard's
//! thread lives; the VMs' configurations can be read. Anything else is one line that says what is wrong and who mends it.
//!
//! Asking about devices and programs needs the kernel's lock of all links, which a node that is taking down hundreds of
//! interfaces holds for long. So it is asked elsewhere than on the daemon's own thread, and not for ever.

use std::io;
use std::time::Duration;

use pve_imds_datasources::backends::pve::Trouble;
use pve_imds_transport::{DeviceError, Devices, Pair};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::admission::Admission;
use super::guard::Guard;
use super::session::Session;
use super::stack::Answers;

/// How long whoever asks for health waits for those who know.
const LOOK_TIME: Duration = Duration::from_secs(3);

/// How long whoever asks for metrics waits for the kernel's counters. Then they are what they were.
const COUNT_TIME: Duration = Duration::from_secs(1);

/// What there is to be asked.
#[derive(Clone, Debug)]
pub(super) enum Health {
    /// A session, which may have lost something that nobody has noticed yet.
    Serving { guard: Guard, devices: Devices, admission: Admission },
    /// No session.
    Rebuilding { reason: &'static str, error: Option<String> },
}

impl Health {
    pub(super) fn of<R: Answers>(session: &Session<R>, admission: &Admission) -> Self {
        let (guard, devices) = (session.guard.clone(), session.devices.clone());
        Self::Serving { guard, devices, admission: admission.clone() }
    }

    /// The session is lost and another one is begun.
    pub(super) fn rebuilding(reason: &'static str) -> Self {
        Self::Rebuilding { reason, error: None }
    }

    /// The same, and it does not succeed.
    pub(super) fn failing(reason: &'static str, error: String) -> Self {
        Self::Rebuilding { reason, error: Some(error) }
    }

    /// Has the kernel's counters brought up to date.
    pub(super) async fn count(health: &watch::Receiver<Self>) {
        let now = health.borrow().clone();
        if let Self::Serving { guard, .. } = now {
            let _ = timeout(COUNT_TIME, guard.count()).await;
        }
    }

    /// What is wrong, in one line. `None`: nothing.
    pub(super) async fn wrong(health: &watch::Receiver<Self>) -> Option<String> {
        let now = health.borrow().clone();
        let (guard, devices, admission) = match now {
            Self::Rebuilding { reason, error } => {
                let why = error.map_or_else(String::new, |error| format!(": {error}"));
                return Some(format!("the datapath is being rebuilt ({reason}), guests get silence{why}"));
            }
            Self::Serving { guard, devices, admission } => (guard, devices, admission),
        };
        let datapath = timeout(LOOK_TIME, ask(guard, devices));
        let datapath = datapath.await.unwrap_or_else(|_| Some("the kernel is busy; ask again".to_owned()));
        let wrong: Vec<_> = datapath.into_iter().chain(admission.trouble().as_ref().map(unread)).collect();
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

/// The inventory tries again by itself, for as long as it takes.
fn unread(Trouble { since, why }: &Trouble) -> String {
    let seconds = since.elapsed().as_secs();
    format!(
        "the VMs' configurations cannot be read for {seconds} s ({why}); guests that ran before are served the last good \
         ones, others wait"
    )
}

async fn ask(guard: Guard, devices: Devices) -> Option<String> {
    match aside(devices).await {
        Ok(Pair::Well) => {}
        Ok(Pair::Changed(changes)) => {
            let changes: Vec<_> =
                changes.iter().map(|(device, change)| format!("{}: {}", device.name, change.word())).collect();
            return Some(format!("our devices were changed ({}); they are put right", changes.join(", ")));
        }
        Ok(Pair::Lost(loss)) => return Some(format!("our devices are lost ({}); they are made anew", loss.word())),
        Err(error) => return Some(format!("our devices cannot be looked at: {error}")),
    }
    match guard.look().await {
        None => Some("the guard's thread is gone; it is started anew".to_owned()),
        Some(found) if found.is_empty() => None,
        Some(found) => Some(found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    }
}

/// Looks at the devices on a thread of its own, which may wait.
async fn aside(devices: Devices) -> Result<Pair, DeviceError> {
    let name = devices.a.name.clone();
    let failed = |source| DeviceError::Kernel { action: "look at", name: name.clone(), source };
    let (tell, told) = oneshot::channel();
    let look = move || -> io::Result<Result<Pair, DeviceError>> {
        Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(devices.look()))
    };
    // Nobody waits any more for what comes too late.
    let thread = std::thread::Builder::new().name("health".into()).spawn(move || drop(tell.send(look())));
    thread.map_err(failed)?;
    told.await.map_err(|_| failed(io::ErrorKind::Other.into()))?.map_err(failed)?
}
