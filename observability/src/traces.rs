//! Traces: our own spans, to an OTLP collector, from a thread of their own.
//!
//! A slow or dead collector costs spans and nothing else: the queue is bounded and drops what does not fit, the thread
//! waits alone. Only spans of our own targets are traced, so what the exporter itself does can never become a span.
//! Failures are counted each time and logged when they begin and when they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics::Counter;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider, SpanData, SpanExporter,
};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use crate::{InstallError, Settings};

/// How long a farewell may take when the process ends.
pub(crate) const FLUSH_TIME: Duration = Duration::from_secs(3);

/// How long the collector may take for one batch.
const EXPORT_TIME: Duration = Duration::from_secs(5);

/// Spans held for the collector, about 1 KiB each: 2 MiB at most.
const QUEUE: usize = 2048;

const FAILURES: &str = "pve_imds_otlp_export_failures_total";

/// A collector's address that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("`{given}` {why}")]
pub struct EndpointError {
    given: String,
    why: &'static str,
}

/// Says what the exporter's metric means.
pub(crate) fn describe() {
    metrics::describe_counter!(
        FAILURES,
        "Batches of spans that the OTLP collector (otlp.endpoint) did not take and that are lost."
    );
    // Also where nothing is exported: what an alert asks for is then there and nothing.
    metrics::counter!(FAILURES).absolute(0);
}

/// The URL for spans below a collector's base URL (OTLP specification, "OTLP/HTTP request").
pub(crate) fn endpoint(base: &str) -> Result<String, EndpointError> {
    let refuse = |given: &str, why| Err(EndpointError { given: given.to_owned(), why });
    let Some(rest) = base.strip_prefix("http://") else {
        return match base.starts_with("https://") {
            true => refuse(base, "must start with http://; for TLS let a collector on this node speak it"),
            false => refuse(base, "must start with http://"),
        };
    };
    let host = rest.split('/').next().unwrap_or_default();
    if host.contains('@') {
        // Not repeated: what stands before the @ is a password.
        return refuse("http://…@…", "must not hold a user or password");
    }
    if base.trim_end_matches('/').ends_with("/v1/traces") {
        return refuse(base, "must be the collector's base address, without /v1/traces");
    }
    if host.is_empty() || rest.contains(['?', '#']) || !rest.bytes().all(|b| b.is_ascii_graphic()) {
        return refuse(base, "must be a host, perhaps a port and a path");
    }
    Ok(format!("{}/v1/traces", base.trim_end_matches('/')))
}

/// The export at work. Dropping it sends what is held, for at most [`FLUSH_TIME`].
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    pub(crate) fn start(url: &str, settings: &Settings) -> Result<Self, InstallError> {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(url)
            .with_timeout(EXPORT_TIME)
            .build()
            .map_err(|error| InstallError::Exporter(error.into()))?;
        let config = BatchConfigBuilder::default().with_max_queue_size(QUEUE).build();
        let processor = BatchSpanProcessor::builder(Reported::new(exporter, url)).with_batch_config(config).build();
        let resource = Resource::builder_empty()
            .with_service_name("pve-imds")
            .with_attributes([
                KeyValue::new("service.version", settings.service_version.clone()),
                KeyValue::new("host.name", settings.node.clone()),
            ])
            .build();
        Ok(Self {
            provider: SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource).build(),
        })
    }

    /// The receiver of spans: ours, from INFO upwards, whatever the log level is.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let tracer: SdkTracer = self.provider.tracer("pve-imds");
        let layer = tracing_opentelemetry::layer().with_tracer(tracer).with_location(false).with_threads(false);
        // A prefix: the crates' own targets and `pve_imds::access`.
        layer.with_filter(Targets::new().with_target("pve_imds", LevelFilter::INFO))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_TIME) {
            tracing::warn!(reason = %error, "the last spans may not have reached the OTLP collector (otlp.endpoint)");
        }
    }
}

/// An exporter whose failures are known.
#[derive(Debug)]
struct Reported<E> {
    inner: E,
    url: String,
    failing: AtomicBool,
    failures: Counter,
}

impl<E> Reported<E> {
    fn new(inner: E, url: &str) -> Self {
        Self { inner, url: url.to_owned(), failing: AtomicBool::new(false), failures: metrics::counter!(FAILURES) }
    }
}

impl<E: SpanExporter> SpanExporter for Reported<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.inner.export(batch).await;
        let failed_before = self.failing.swap(result.is_err(), Ordering::AcqRel);
        match &result {
            Err(error) => {
                self.failures.increment(1);
                if !failed_before {
                    let url = &self.url;
                    tracing::warn!(
                        reason = %error,
                        "the OTLP collector takes no spans at {url} (otlp.endpoint); trying again, silently"
                    );
                }
            }
            Ok(()) if failed_before => tracing::info!(url = self.url, "the OTLP collector takes spans again"),
            Ok(()) => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests;
