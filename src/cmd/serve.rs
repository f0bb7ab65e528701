//! `serve`: the daemon.

use anyhow::Context;
use pve_imds_observability::{Settings, install, report_panics};

use tokio::signal::unix::{SignalKind, signal};

use super::rights::Deed;
use crate::app;
use crate::config::Loaded;

/// Installs the receivers of signals, then serves. Configuration has been read by now and nothing is bound yet.
pub(super) fn run(loaded: Loaded) -> anyhow::Result<()> {
    let checked = loaded.checked;
    let doubt = checked.tree()?;
    let guard = install(&Settings {
        level: checked.log_level.clone(),
        format: checked.log_format,
        otlp_endpoint: checked.otlp_endpoint.clone(),
        service_version: env!("CARGO_PKG_VERSION").to_owned(),
        node: checked.node_name.clone(),
    })?;
    report_panics();
    Deed::Serve.allowed()?;
    app::describe();
    let file = loaded.file.map_or_else(|| "none".to_owned(), |file| file.display().to_string());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), file, "starting");
    if let Some(doubt) = doubt {
        tracing::warn!("{doubt}");
    }
    // One thread: everything that is fast runs on the ring's, everything that is slow on threads of its own.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // A terminal that is closed. Nothing is read anew: the configuration is that of the start.
        let mut hangup = signal(SignalKind::hangup())?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
            }
        };
        let rules = app::rules(&checked);
        app::serve(checked, guard.metrics().clone(), rules, app::router, stop).await
    })
}
