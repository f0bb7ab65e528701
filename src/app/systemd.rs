//! What systemd is told: ready, how many guests, still alive, stopping (sd_notify(3)).
//!
//! Without systemd every call does nothing.

use std::future::pending;

use sd_notify::NotifyState;

/// Every interface that was there at start has its seat.
pub(super) fn ready(guests: usize) {
    tell(&[NotifyState::Ready, NotifyState::Status(&status(guests))]);
}

/// The number changed.
pub(super) fn guests(guests: usize) {
    tell(&[NotifyState::Status(&status(guests))]);
}

/// Nobody is served until the number is told again.
pub(super) fn rebuilding() {
    tell(&[NotifyState::Status("rebuilding the datapath")]);
}

/// No new connections from here on.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing answers")]);
}

/// Tells the watchdog that we live, twice as often as it asks for. Never ends.
pub(super) async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return pending().await };
    let mut beat = tokio::time::interval(limit / 2);
    loop {
        beat.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

fn status(guests: usize) -> String {
    format!("{guests} guest interfaces")
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd cannot be told");
    }
}
