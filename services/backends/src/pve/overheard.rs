//! What a test hears of a piece of code on its own thread: log lines and metrics, as text.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, SharedString, Unit};
use tracing::field::{Field, Visit};
use tracing::span;

/// The log lines of all levels, and metrics as `name{label=value} number`.
pub(super) fn overhear(run: impl FnOnce()) -> (Vec<String>, Vec<String>) {
    let (log, meters) = (Log::default(), Meters::default());
    metrics::with_local_recorder(&meters, || tracing::subscriber::with_default(log.clone(), run));
    let lines = log.0.lock().unwrap().clone();
    let meters = meters.0.lock().unwrap().iter().map(|(name, value)| format!("{name} {value}")).collect();
    (lines, meters)
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

#[derive(Clone, Default)]
struct Meters(Arc<Mutex<BTreeMap<String, f64>>>);

/// One metric among them.
struct Meter(Meters, String);

impl Meters {
    fn meter(&self, key: &Key) -> Arc<Meter> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Meter(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }
}

impl Meter {
    fn update(&self, change: impl FnOnce(&mut f64)) {
        let mut meters = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(meters.entry(self.1.clone()).or_default());
    }
}

impl CounterFn for Meter {
    fn increment(&self, by: u64) {
        self.update(|value| *value += by as f64);
    }

    fn absolute(&self, to: u64) {
        self.update(|value| *value = to as f64);
    }
}

impl GaugeFn for Meter {
    fn increment(&self, by: f64) {
        self.update(|value| *value += by);
    }

    fn decrement(&self, by: f64) {
        self.update(|value| *value -= by);
    }

    fn set(&self, to: f64) {
        self.update(|value| *value = to);
    }
}

impl metrics::Recorder for Meters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.meter(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.meter(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
