//! Logs: which lines, in what form, to the journal or to stderr.
//!
//! The journal and JSON carry the fields of the span around an event; text, and the message in the journal, does not, as
//! a line there is read by people and says itself what it is about. Each receiver has its own filter, so that the log
//! level never decides what is traced.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::Subscriber;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, fmt};

use crate::InstallError;
use crate::journal::Journal;

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// To the journal when stderr is connected to it (systemd.exec(5), `$JOURNAL_STREAM`), else text.
    #[default]
    Auto,
    /// To the journal in its own protocol, with fields: `journalctl IMDS_VMID=106`.
    Journald,
    /// One line of text on stderr.
    Text,
    /// One JSON object a line on stderr.
    Json,
}

/// The words that are levels.
pub const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];

/// A level that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// A word on its own must be a level; the filter language would take it for a target and silence all others.
    #[error("log level `{word}` is none of {levels}", word = .0, levels = LEVELS.join(", "))]
    Unknown(String),
    /// Not in the filter language.
    #[error("log level `{0}` cannot be read")]
    Directive(String, #[source] tracing_subscriber::filter::ParseError),
}

/// Reads a level: words, or directives of the filter language of `tracing_subscriber` (without regular expressions).
pub(crate) fn filter(level: &str) -> Result<EnvFilter, LevelError> {
    let words: Vec<_> = level.split(',').map(str::trim).collect();
    if let Some(unknown) = words.iter().find(|word| !word.contains(['=', '[', '}']) && !is_level(word)) {
        return Err(LevelError::Unknown((*unknown).to_owned()));
    }
    EnvFilter::builder()
        .with_regex(false)
        .parse(words.join(","))
        .map_err(|source| LevelError::Directive(level.to_owned(), source))
}

fn is_level(word: &str) -> bool {
    LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word))
}

/// Where lines go, decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Journal,
    /// The journal if it answers, else text: nobody asked for it by name.
    JournalOrText,
    Text {
        colour: bool,
    },
    Json,
}

/// What is known about stderr and the environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stderr {
    journal: bool,
    terminal: bool,
    no_color: bool,
}

pub(crate) fn destination(format: Format) -> Destination {
    let stderr = io::stderr();
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let identity = stderr.as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    choose(
        format,
        Stderr {
            journal: identity.is_ok_and(|file| is_journal(&stream, file.dev(), file.ino())),
            terminal: stderr.is_terminal(),
            // https://no-color.org: present and not empty.
            no_color: std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
        },
    )
}

/// `$JOURNAL_STREAM` is `device:inode` in decimal. It is inherited by those whose stderr goes elsewhere, so both
/// numbers must be those of the file at hand.
fn is_journal(stream: &str, device: u64, inode: u64) -> bool {
    stream.split_once(':').is_some_and(|(dev, ino)| dev.parse() == Ok(device) && ino.parse() == Ok(inode))
}

fn choose(format: Format, stderr: Stderr) -> Destination {
    match format {
        Format::Journald => Destination::Journal,
        Format::Json => Destination::Json,
        Format::Auto if stderr.journal => Destination::JournalOrText,
        Format::Auto | Format::Text => Destination::Text { colour: stderr.terminal && !stderr.no_color },
    }
}

/// The receiver for `destination`.
pub(crate) fn layer<S>(
    destination: Destination,
    filter: EnvFilter,
) -> Result<Box<dyn Layer<S> + Send + Sync>, InstallError>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    Ok(match destination {
        Destination::Journal => Journal::open().map_err(InstallError::Journal)?.with_filter(filter).boxed(),
        Destination::JournalOrText => match Journal::open() {
            Ok(journal) => journal.with_filter(filter).boxed(),
            Err(_) => text(false, filter, io::stderr),
        },
        Destination::Text { colour } => text(colour, filter, io::stderr),
        Destination::Json => json(filter, io::stderr),
    })
}

/// One error, if lines at `destination` are read by a machine.
pub(crate) fn say_error(destination: Destination, why: &str) -> bool {
    let layer = match destination {
        Destination::Text { .. } => return false,
        Destination::Json => json(EnvFilter::new("error"), io::stderr),
        Destination::Journal | Destination::JournalOrText => match Journal::open() {
            Ok(journal) => journal.boxed(),
            Err(_) => return false,
        },
    };
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        tracing::error!(target: "pve_imds", "{why}");
    });
    true
}

fn text<S, W>(colour: bool, filter: EnvFilter, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let events = filter_fn(|metadata| metadata.is_event());
    fmt::layer().with_ansi(colour).with_writer(writer).with_filter(filter.and(events)).boxed()
}

fn json<S, W>(filter: EnvFilter, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    fmt::layer().json().flatten_event(true).with_span_list(false).with_writer(writer).with_filter(filter).boxed()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::Registry;

    use super::*;

    #[test]
    fn where_lines_go_is_a_table() {
        let (journal, terminal) =
            (Stderr { journal: true, ..Stderr::default() }, Stderr { terminal: true, ..Stderr::default() });
        let pipe = Stderr::default();
        let plain = Stderr { no_color: true, ..terminal };
        for (format, stderr, expected) in [
            (Format::Auto, journal, Destination::JournalOrText),
            (Format::Auto, terminal, Destination::Text { colour: true }),
            (Format::Auto, plain, Destination::Text { colour: false }),
            (Format::Auto, pipe, Destination::Text { colour: false }),
            (Format::Journald, pipe, Destination::Journal),
            (Format::Text, journal, Destination::Text { colour: false }),
            (Format::Text, terminal, Destination::Text { colour: true }),
            (Format::Json, journal, Destination::Json),
            (Format::Json, terminal, Destination::Json),
        ] {
            assert_eq!(choose(format, stderr), expected, "{format:?} {stderr:?}");
        }
    }

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        for (stream, expected) in [
            ("8:21", true),
            ("8:22", false),
            ("9:21", false),
            ("", false),
            ("8", false),
            ("8:21:", false),
            ("x:21", false),
        ] {
            assert_eq!(is_journal(stream, 8, 21), expected, "{stream:?}");
        }
    }

    #[test]
    fn a_level_with_a_typing_error_silences_nothing() {
        for level in [
            "info",
            "INFO",
            "off",
            "debug",
            "info,pve_imds::access=warn",
            "warn, pve_imds=trace",
            "info,[request]=debug",
        ] {
            assert!(filter(level).is_ok(), "{level}");
        }
        for level in ["inof", "", "info,", "verbose,pve_imds=debug", "3", "info,pve_imds=lots"] {
            assert!(filter(level).is_err(), "{level}");
        }
        assert_eq!(
            filter("inof").unwrap_err().to_string(),
            "log level `inof` is none of off, error, warn, info, debug, trace"
        );
    }

    /// A writer into a string.
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

    /// What a layer writes of one event inside a span, and of one that the filter drops.
    fn written(layer: impl FnOnce(EnvFilter, Text) -> Box<dyn Layer<Registry> + Send + Sync>) -> String {
        let text = Text::default();
        let subscriber = Registry::default().with(layer(filter("info").unwrap(), text.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("request", vmid = 106, outcome = tracing::field::Empty);
            span.record("outcome", "ok");
            let _in = span.enter();
            tracing::info!(target: "pve_imds::access", bytes = 5, "told\u{1b}[31m");
            tracing::debug!("not told");
        });
        String::from_utf8(text.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn text_is_one_line_for_people() {
        let text = written(|filter, writer| text(false, filter, move || writer.clone()));
        assert!(text.ends_with("  INFO pve_imds::access: told\\x1b[31m bytes=5\n"), "{text:?}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn json_is_one_object_with_the_span() {
        let text = written(|filter, writer| json(filter, move || writer.clone()));
        assert_eq!(text.lines().count(), 1, "{text}");
        for part in [
            r#""level":"INFO""#,
            r#""bytes":5"#,
            r#""target":"pve_imds::access""#,
            r#""message":"told\u001b[31m""#,
            r#""span":{"outcome":"ok","vmid":106,"name":"request"}"#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
