//! Whether all is well, said truly: asked of those who know, when somebody asks.
//!
//! Well is: our devices are there, up and as they must be; the programs are attached and their pins there; the guard's
//! thread lives; the VMs' configurations can be read, each of them, and are whole. Anything else is one line that says what is wrong and
//! who mends it.
//!
//! Asking about devices and programs needs the kernel's lock of all links, which a node that is taking down hundreds of
//! interfaces holds for long. So it is asked elsewhere than on the daemon's own thread, and not for ever.

use std::io;
use std::time::Duration;

use pve_imds_datasources::backends::pve::{Stance, Trouble, Unread};
use pve_imds_transport::{DeviceError, Devices, Pair};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

use super::admission::Admission;
use super::guard::Guard;
use super::session::Session;
use super::stack::Answers;

/// How long whoever asks for health waits for those who know.
const LOOK_TIME: Duration = Duration::from_secs(3);

/// How long whoever asks for metrics waits for the kernel's counters. Then they are what they were.
const COUNT_TIME: Duration = Duration::from_secs(1);

/// For how long a single file may be unreadable before that is a fault: between the list of VMs and the look at a file
/// it may have moved, and whoever writes it may not be done.
const IN_MOTION: Duration = Duration::from_secs(5);

/// As many files are named. Who mends those reads the next ones.
const NAMED: usize = 3;

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
        let tree = admission.trouble().as_ref().map(unread);
        let files = unread_files(&admission.unread(), Instant::now());
        let wrong: Vec<_> = datapath.into_iter().chain(tree).chain(files).collect();
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

/// So it does with single files, once somebody mends them.
fn unread_files(files: &Unread, now: Instant) -> Option<String> {
    let lasting: Vec<_> = files
        .iter()
        .map(|(file, stance, Trouble { since, why })| (file, stance, now.saturating_duration_since(*since), why))
        .filter(|(_, _, lasts, _)| *lasts >= IN_MOTION)
        .collect();
    let named = lasting.iter().take(NAMED).map(|(file, stance, lasts, why)| {
        let is = match stance {
            Stance::Kept => "cannot be read",
            Stance::Believed => "is not whole",
        };
        format!("{file} {is} for {} s ({why})", lasts.as_secs())
    });
    let named: Vec<_> = named.collect();
    let more = match lasting.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let counts = [
        (Stance::Kept, "what was read last stays in force, and a guest that came since waits"),
        (Stance::Believed, "what is not whole counts as it stands"),
    ];
    let counts = counts.into_iter().filter(|(of, _)| lasting.iter().any(|(_, stance, ..)| stance == of));
    let counts: String = counts.map(|(_, what)| format!("; {what}")).collect();
    (!named.is_empty()).then(|| format!("{}{more}{counts}; mend the file", named.join(", ")))
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

#[cfg(test)]
mod tests {
    use pve_imds_datasources::backends::pve::File;
    use pve_imds_model::vm::VmId;

    use super::*;

    #[test]
    fn files_are_named_once_they_are_not_as_they_should_be_for_good() {
        use Stance::{Believed, Kept};
        let now = Instant::now() + Duration::from_secs(100);
        let config = |vmid| File::Config(VmId::new(vmid).unwrap());
        let kept = "what was read last stays in force, and a guest that came since waits; mend the file";
        let believed = "what is not whole counts as it stands; mend the file";
        for (files, expected) in [
            (&[] as &[_], None),
            (&[(config(106), Kept, 4)], None),
            (&[(config(106), Kept, 5)], Some(("106.conf cannot be read for 5 s (it is odd)", kept))),
            (&[(config(106), Believed, 5)], Some(("106.conf is not whole for 5 s (it is odd)", believed))),
            (
                &[(config(106), Believed, 4), (File::Cluster("user.cfg"), Kept, 9)],
                Some(("user.cfg cannot be read for 9 s (it is odd)", kept)),
            ),
            (
                &[
                    (config(109), Kept, 6),
                    (config(106), Kept, 7),
                    (config(108), Kept, 8),
                    (config(107), Kept, 9),
                    (config(110), Kept, 9),
                ],
                Some((
                    "106.conf cannot be read for 7 s (it is odd), 107.conf cannot be read for 9 s (it is odd), 108.conf \
                     cannot be read for 8 s (it is odd), and 2 more",
                    kept,
                )),
            ),
            (
                &[(config(106), Believed, 7), (config(107), Kept, 9)],
                Some((
                    "106.conf is not whole for 7 s (it is odd), 107.conf cannot be read for 9 s (it is odd)",
                    "what was read last stays in force, and a guest that came since waits; what is not whole counts as \
                     it stands; mend the file",
                )),
            ),
        ] {
            let trouble = |ago| Trouble { since: now - Duration::from_secs(ago), why: "it is odd".into() };
            let files: Unread = files.iter().map(|(file, stance, ago)| (*file, *stance, trouble(*ago))).collect();
            let told = unread_files(&files, now);
            assert_eq!(told.as_deref().and_then(|told| told.split_once("; ")), expected);
        }
    }
}
