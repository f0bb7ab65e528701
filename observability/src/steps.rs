//! The axe: kills this process, as `kill -9` would, right after a step of its life that a test has named.
//!
//! Only in builds with debug assertions: what is shipped holds nothing of this file. Rooms say what they have passed
//! with events of the target [`TARGET`] and a field `step`, whatever the log level is; nothing else is read here.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Signal, getpid, kill_process};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The variable that names the step: `word`, or `word#3` for the third time it is passed.
pub const KILL_AT: &str = "PVE_IMDS_TEST_KILL_AT";

/// The target of the events that are steps.
const TARGET: &str = "pve_imds::step";

/// The layer, if the environment names a step.
pub(crate) fn axe<S>() -> Option<impl Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let axe = Axe::at(&std::env::var(KILL_AT).ok()?);
    Some(axe.with_filter(filter_fn(|metadata| metadata.target() == TARGET)))
}

#[derive(Debug)]
struct Axe {
    word: String,
    /// How often it is still to be passed before it falls.
    left: AtomicUsize,
}

impl Axe {
    fn at(text: &str) -> Self {
        let (word, time) = text.split_once('#').unwrap_or((text, "1"));
        Self { word: word.to_owned(), left: AtomicUsize::new(time.parse().unwrap_or(1).max(1)) }
    }

    /// Whether this step is the one.
    fn falls(&self, step: &str) -> bool {
        step == self.word && self.left.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

impl<S: Subscriber> Layer<S> for Axe {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct Step<'a>(&'a Axe);
        impl Visit for Step<'_> {
            fn record_str(&mut self, field: &Field, value: &str) {
                if field.name() == "step" && self.0.falls(value) {
                    // The signal is here before the call returns.
                    let _ = kill_process(getpid(), Signal::KILL);
                }
            }

            fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
        }
        event.record(&mut Step(self));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_falls_once_at_the_named_time_of_the_named_step() {
        for (text, expected) in [("ready", Some(0)), ("ready#1", Some(0)), ("ready#3", Some(2)), ("stopping", None)] {
            let axe = Axe::at(text);
            let fallen: Vec<bool> = (0..5).map(|_| !axe.falls("other") && axe.falls("ready")).collect();
            assert_eq!(fallen.iter().position(|fell| *fell), expected, "{text}");
            assert!(fallen.iter().filter(|fell| **fell).count() <= 1, "{text}");
        }
    }
}
