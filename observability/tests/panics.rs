//! The panic hook belongs to the whole process, so its test has one of its own.
#![allow(clippy::unwrap_used)]

use std::io;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_panic_is_logged_by_its_place_and_not_by_its_message() {
    let text = Text::default();
    let writer = text.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    pve_imds_observability::report_panics();
    let caught = tracing::subscriber::with_default(subscriber, || catch_unwind(|| panic!("canary-5151")));
    let _ = std::panic::take_hook();

    assert!(caught.is_err());
    let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("ERROR") && text.contains("panic at ") && text.contains("panics.rs"), "{text}");
    assert!(!text.contains("canary"), "{text}");
}
