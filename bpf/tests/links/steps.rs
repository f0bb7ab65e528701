//! The steps are said as they are taken.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use pve_imds_bpf::{Epoch, Pins, Step};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use crate::support::{index, ip, node};
use crate::{devices, load, slot};

/// Hears one target, from one thread: it listens for all of them, or what others say first would not be heard at all.
#[derive(Clone)]
struct Listener {
    thread: ThreadId,
    words: Arc<Mutex<Vec<String>>>,
}

impl Listener {
    fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.words.lock().unwrap())
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "pve_imds::step"
    }

    fn event(&self, event: &Event<'_>) {
        if std::thread::current().id() == self.thread {
            event.record(&mut Words(&mut self.words.lock().unwrap()));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Words<'a>(&'a mut Vec<String>);

impl Visit for Words<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        assert_eq!(field.name(), "step");
        self.0.push(value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        panic!("{field}: {value:?}");
    }
}

#[test]
fn every_step_is_said_once_it_is_taken() {
    node(|dir| {
        let listener = Listener { thread: std::thread::current().id(), words: Arc::default() };
        tracing::subscriber::set_global_default(listener.clone()).unwrap();
        let assert_said = |steps: &[Step]| {
            assert_eq!(listener.said(), steps.iter().map(|step| step.word()).collect::<Vec<_>>());
        };
        devices();
        let pins = Pins::open(dir).unwrap();
        let host = index("h0");
        let mut datapath = load(Epoch::default());
        assert_said(&[Step::Loaded, Step::Assigned]);
        datapath.guard(&pins, "h0", host).unwrap();
        assert_said(&[Step::Linked, Step::Pinned, Step::Linked, Step::Pinned]);
        datapath.attach_return(&pins, "imds-a").unwrap();
        datapath.attach_funnel(&pins, "imds-b").unwrap();
        assert_said(&[Step::Linked, Step::Pinned, Step::Linked, Step::Pinned]);
        datapath.guard(&pins, "h0", host).unwrap();
        assert_said(&[Step::Swapped, Step::Swapped]);
        ip("link del h0\n");
        datapath.release(host, slot()).unwrap();
        pins.forget(host).unwrap();
        assert_said(&[Step::Released, Step::Cleared, Step::Cleared]);
        std::fs::rename(dir.join("return"), dir.join("kept")).unwrap();
        datapath.attach_return(&pins, "imds-a").unwrap();
        assert_said(&[Step::Pinned, Step::Swapped]);
        std::fs::remove_file(dir.join("return")).unwrap();
        pins.remove_all().unwrap();
        assert_said(&[Step::Cleared, Step::Detached]);
        let mut said: Vec<_> = Step::ALL.iter().map(|step| step.word()).collect();
        said.sort_unstable();
        said.dedup();
        assert_eq!(said.len(), Step::ALL.len());
    });
}
