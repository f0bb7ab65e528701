//! Where signals go: logs, Prometheus metrics, OTLP traces. Installation only.
//!
//! Every room emits through the facades (`tracing`, `metrics`) and knows nothing of this one. In come [`Settings`];
//! out comes a [`Guard`] that renders the metrics and, when dropped, sends what is still held. Whatever happens to a
//! receiver afterwards (a full disk, a dead collector) is never seen by those who emit. Refused: a second installation
//! in one process, and settings that would silence everything by a typing error.
//!
//! ```
//! use pve_imds_observability::{Settings, install};
//!
//! let guard = install(&Settings { level: "info,pve_imds::access=warn".to_owned(), ..Settings::default() })?;
//! let metrics = guard.metrics().render();
//! assert!(metrics.contains("pve_imds_build_info"));
//! # Ok::<(), pve_imds_observability::InstallError>(())
//! ```
#![forbid(unsafe_code)]

use std::io;
use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

mod journal;
mod logs;
mod panics;
mod prometheus;
#[cfg(debug_assertions)]
mod steps;
mod traces;

pub use logs::{Format, LEVELS, LevelError};
pub use panics::report_panics;
pub use prometheus::Metrics;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use steps::KILL_AT;
pub use traces::EndpointError;

/// Where signals shall go.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is logged: a level (`info`), or levels by target as in `info,pve_imds::access=warn`.
    pub level: String,
    /// How it is written.
    pub format: Format,
    /// Base URL of an OTLP collector (`http://collector:4318`); spans go to `/v1/traces` below it. `None`: no traces.
    pub otlp_endpoint: Option<String>,
    /// What runs, for traces and the `pve_imds_build_info` metric.
    pub service_version: String,
    /// The node it runs on, for traces.
    pub node: String,
}

/// `info`, the format chosen by where stderr goes, no traces.
impl Default for Settings {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: Format::default(),
            otlp_endpoint: None,
            service_version: String::new(),
            node: String::new(),
        }
    }
}

/// Whether [`Settings::level`] may be this, for those who check settings long before they install.
///
/// # Errors
/// What [`install`] would say.
pub fn check_level(level: &str) -> Result<(), LevelError> {
    logs::filter(level).map(drop)
}

/// Whether [`Settings::otlp_endpoint`] may be this.
///
/// # Errors
/// What [`install`] would say.
pub fn check_endpoint(base: &str) -> Result<(), EndpointError> {
    traces::endpoint(base).map(drop)
}

/// Why nothing was installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The level cannot be used.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// journald was asked for and is not there.
    #[error("log.format is journald, and the journal cannot be written to: {0}; choose another log.format")]
    Journal(#[source] io::Error),
    /// The collector's address cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The exporter of traces could not be made.
    #[error("the exporter to otlp.endpoint cannot be made")]
    Exporter(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No thread for the upkeep of the metrics.
    #[error("no thread for the upkeep of the metrics")]
    Upkeep(#[source] io::Error),
    /// Somebody was here before.
    #[error("logs, metrics and traces are already installed in this process")]
    Twice,
}

/// Receivers cannot be taken away once facades point at them: there is one installation in a process's life. This is how
/// it writes.
static INSTALLED: OnceLock<Format> = OnceLock::new();

/// Says what a command failed at, as an error among the log lines, where these are read by a machine: the journal, or JSON.
/// It is said whatever the log level is, and before anything is installed too. `false`: nobody was told; whoever reads
/// standard error wants a plain sentence.
#[must_use]
pub fn say_error(why: &str) -> bool {
    logs::say_error(logs::destination(INSTALLED.get().copied().unwrap_or_default()), why)
}

/// Installs the receivers for the whole process. Everything that can fail is tried before anything is installed.
///
/// # Errors
/// [`InstallError`]; nothing is installed then, except that after [`InstallError::Twice`] the first installation, or
/// that of somebody else, stays what it was.
pub fn install(settings: &Settings) -> Result<Guard, InstallError> {
    let endpoint = settings.otlp_endpoint.as_deref().map(traces::endpoint).transpose()?;
    let filter = logs::filter(&settings.level)?;
    let log = logs::layer(logs::destination(settings.format), filter)?;
    let (recorder, metrics) = prometheus::recorder();
    let traces = endpoint.map(|url| {
        // Not yet everybody's recorder, but already the one that counts the exporter's failures.
        metrics::with_local_recorder(&recorder, || traces::Traces::start(&url, settings))
    });
    let traces = traces.transpose()?;
    let upkeep = prometheus::Upkeep::start(metrics.clone()).map_err(InstallError::Upkeep)?;
    let layers = tracing_subscriber::registry().with(log).with(traces.as_ref().map(traces::Traces::layer));
    #[cfg(debug_assertions)]
    let layers = layers.with(steps::axe());

    INSTALLED.set(settings.format).map_err(|_| InstallError::Twice)?;
    metrics::set_global_recorder(recorder).map_err(|_| InstallError::Twice)?;
    layers.try_init().map_err(|_| InstallError::Twice)?;
    prometheus::describe(&settings.service_version);
    traces::describe();
    Ok(Guard { metrics, traces, upkeep })
}

/// Keeps the receivers at work. Dropping it sends the spans that are still held, for at most 3 s.
#[derive(Debug)]
#[must_use = "dropping it ends the export of traces"]
pub struct Guard {
    metrics: Metrics,
    #[expect(dead_code, reason = "dropped with the guard")]
    traces: Option<traces::Traces>,
    #[expect(dead_code, reason = "dropped with the guard")]
    upkeep: prometheus::Upkeep,
}

impl Guard {
    /// The metrics, to be rendered whenever somebody asks; clones outlive the guard.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}
