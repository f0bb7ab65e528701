//! The panic hook belongs to the whole process, so its test has one of its own.
#![allow(clippy::unwrap_used)]

use std::io;
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

/// What is logged when a thread of this name does this.
fn logged(name: &str, panics: fn()) -> String {
    let text = Text::default();
    let writer = text.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let dies = move || tracing::subscriber::with_default(subscriber, panics);
    assert!(std::thread::Builder::new().name(name.to_owned()).spawn(dies).unwrap().join().is_err());
    String::from_utf8(text.0.lock().unwrap().clone()).unwrap()
}

#[test]
fn a_panic_is_logged_with_thread_and_place_and_never_quotes() {
    pve_imds_observability::report_panics();
    let literal = logged("ring", || panic!("a frame of nobody's"));
    let formatted = logged("guard", || panic!("not {}", std::hint::black_box("canary-5151")));
    let sliced = logged("pve-files", || drop(std::hint::black_box("canary-ä".to_owned()).split_off(8)));
    let unwrapped = logged("pve-watch", || std::hint::black_box(Err::<(), _>("canary-5151")).unwrap());
    let _ = std::panic::take_hook();

    for (text, thread) in [(&literal, "ring"), (&formatted, "guard"), (&sliced, "pve-files"), (&unwrapped, "pve-watch")]
    {
        assert!(text.contains("ERROR") && text.contains(&format!("thread=\"{thread}\"")), "{text}");
        assert!(text.contains("panic at ") && text.contains(".rs:") && !text.contains("canary"), "{text}");
    }
    assert!(literal.contains("a frame of nobody's"), "{literal}");
}
