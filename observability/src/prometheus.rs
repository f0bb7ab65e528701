//! Metrics, in Prometheus' text format, rendered when somebody asks.
//!
//! Histograms collect raw samples until they are sorted into buckets; a thread does that every few seconds, so that a
//! node nobody scrapes does not grow.

use std::fmt;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// From the fastest answer from memory to the request deadline, 1-2.5-5 in between: 17 series a histogram.
const SECONDS: [f64; 17] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// How often samples are sorted. At 10,000 requests/s that is 50,000 samples of 8 bytes held at most.
const UPKEEP: Duration = Duration::from_secs(5);

const BUILD_INFO: &str = "pve_imds_build_info";

/// The metrics of this process.
#[derive(Clone)]
pub struct Metrics {
    handle: PrometheusHandle,
}

impl Metrics {
    /// All metrics as text (`text/plain; version=0.0.4`).
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.render()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// A recorder, and the metrics it will hold.
pub(crate) fn recorder() -> (PrometheusRecorder, Metrics) {
    let builder = PrometheusBuilder::new();
    let builder = builder.set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS);
    let recorder = builder.expect("there are buckets").build_recorder();
    let handle = recorder.handle();
    (recorder, Metrics { handle })
}

/// Says what runs.
pub(crate) fn describe(version: &str) {
    metrics::describe_gauge!(BUILD_INFO, "Always 1; the label says what runs.");
    metrics::gauge!(BUILD_INFO, "version" => version.to_owned()).set(1.0);
}

/// The thread that sorts samples. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    pub(crate) fn start(metrics: Metrics) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new().name("metrics".to_owned()).stack_size(128 * 1024).spawn(move || {
            while stopped.recv_timeout(UPKEEP) == Err(RecvTimeoutError::Timeout) {
                metrics.handle.run_upkeep();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It holds nothing that could be lost; a panic there has been reported as such.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_buckets_and_upkeep_ends() {
        let (recorder, metrics) = recorder();
        metrics::with_local_recorder(&recorder, || {
            metrics::histogram!("some_duration_seconds").record(0.003);
            describe("1.2.3");
        });
        let text = metrics.render();
        for line in [
            "some_duration_seconds_bucket{le=\"0.0025\"} 0",
            "some_duration_seconds_bucket{le=\"0.005\"} 1",
            "some_duration_seconds_bucket{le=\"30\"} 1",
            "some_duration_seconds_count 1",
            "pve_imds_build_info{version=\"1.2.3\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
        let upkeep = Upkeep::start(metrics);
        assert!(upkeep.is_ok());
        drop(upkeep);
    }
}
