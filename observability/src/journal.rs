//! The journal: each event an entry, in journald's own protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).
//!
//! In come events and the spans around them; out goes one datagram each. `MESSAGE`, which is all that `journalctl` and
//! the node's panel show, says what a line of text says: the message and the facts of the event. Beside it each fact is
//! a field of its own, those of the spans included, so that one may ask for them. Refused: to wait for a journal that
//! takes nothing (it is told later how many entries it missed), and to grow with what is said.

use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::net::sockopt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Where journald takes entries.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Stands before the name of a fact, so that none is taken for a field of the journal's own.
const PREFIX: &str = "IMDS_";

/// Bytes of one value, the message among them; the rest of a longer one is cut off.
const VALUE: usize = 16 << 10;

/// Bytes of all facts of an entry or of a span, names and lengths included; what does not fit is not among them. With a
/// message this is less than half of what Linux takes for a datagram unless told otherwise (`net.core.wmem_default`).
const FACTS: usize = 64 << 10;

/// Bytes of entries that journald has not read yet, as the kernel counts them. A node that starts says a few lines about
/// each of a thousand guests, and the usual 208 KiB hold about a hundred lines.
const UNREAD: usize = 4 << 20;

/// Bytes of the message in an entry that was too large for a datagram.
const SHORT: usize = 1 << 10;

/// What a value ends in that was cut.
const CUT: &str = "...";

/// The receiver of events that hands them to journald.
#[derive(Debug)]
pub(crate) struct Journal {
    // Not connected: a journald that starts anew has a new socket in the same place.
    socket: UnixDatagram,
    path: PathBuf,
    /// Entries that were not taken, since it was last told.
    lost: AtomicU64,
}

impl Journal {
    /// The node's journal, if somebody is there.
    pub(crate) fn open() -> io::Result<Self> {
        Self::at(SOCKET.into())
    }

    fn at(path: PathBuf) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        // Beyond `net.core.wmem_max` only with CAP_NET_ADMIN, which commands need not have. With less it works too.
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, UNREAD / 2)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, UNREAD / 2));
        // journald does not mind an empty datagram.
        match socket.send_to(&[], &path) {
            Err(why) if why.kind() != io::ErrorKind::WouldBlock => Err(why),
            _ => Ok(Self { socket, path, lost: AtomicU64::new(0) }),
        }
    }

    /// Sends an entry, or counts it as lost: nobody may wait.
    fn send(&self, metadata: &Metadata<'_>, facts: &[u8], message: &str) {
        self.tell_lost();
        if self.try_send(metadata, facts, message).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An entry that is too large for a datagram goes with less of its message, and only then without its facts.
    fn try_send(&self, metadata: &Metadata<'_>, facts: &[u8], message: &str) -> io::Result<usize> {
        let mut sent = Ok(0);
        for (facts, length) in [(facts, VALUE), (facts, SHORT), (&[][..], SHORT)] {
            let mut entry = head(*metadata.level(), &cut(message, length));
            put_place(&mut entry, "", metadata);
            entry.extend_from_slice(facts);
            sent = self.socket.send_to(&entry, &self.path);
            if !sent.as_ref().is_err_and(|why| why.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error())) {
                break;
            }
        }
        sent
    }

    /// Says how many entries are missing, if any are. Not as an event: this is where events end.
    fn tell_lost(&self) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost == 0 {
            return;
        }
        let mut entry =
            head(Level::WARN, &format!("lines before this one are missing, the journal did not take them lost={lost}"));
        put(&mut entry, "TARGET", module_path!().as_bytes());
        put(&mut entry, "IMDS_LOST", lost.to_string().as_bytes());
        if self.socket.send_to(&entry, &self.path).is_err() {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }
}

/// How grave a level is, in the words of syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

impl<S> Layer<S> for Journal
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut facts = Facts::default();
        put(&mut facts.0, "SPAN_NAME", span.name().as_bytes());
        put_place(&mut facts.0, "SPAN_", span.metadata());
        attributes.record(&mut OfSpan(&mut facts));
        span.extensions_mut().insert(facts);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(facts) = span.extensions_mut().get_mut::<Facts>() {
            values.record(&mut OfSpan(facts));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut facts = Facts::default();
        // Nearest first: should there be too many, it is the outermost that are missing.
        event.record(&mut OfEvent(&mut facts));
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(of_span) = span.extensions().get::<Facts>() {
                facts.append(&of_span.0);
            }
        }
        let mut message = Message(Text::default());
        // It cannot fail but by a fact that refuses to be written, and what is written until then is said.
        let _ = DefaultFields::new().format_fields(Writer::new(&mut message), event);
        self.send(event.metadata(), &facts.0, &message.0.text);
    }
}

/// Fields as they go over the wire.
#[derive(Default)]
struct Facts(Vec<u8>);

impl Facts {
    fn put(&mut self, field: &Field, value: &[u8]) {
        let mut fact = Vec::with_capacity(value.len() + 64);
        put(&mut fact, &name(field), value);
        self.append(&fact);
    }

    fn put_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = Text::default();
        // As with a message: what is written until a fact refuses is its value.
        let _ = write!(text, "{value:?}");
        self.put(field, text.text.as_bytes());
    }

    fn append(&mut self, facts: &[u8]) {
        if self.0.len() + facts.len() <= FACTS {
            self.0.extend_from_slice(facts);
        }
    }
}

/// All that a span is given are facts.
struct OfSpan<'a>(&'a mut Facts);

impl Visit for OfSpan<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.put(field, cut(value, VALUE).as_bytes());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.put_debug(field, value);
    }
}

/// An event has a message besides, which is said elsewhere.
struct OfEvent<'a>(&'a mut Facts);

impl Visit for OfEvent<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != "message" {
            self.0.put(field, cut(value, VALUE).as_bytes());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != "message" {
            self.0.put_debug(field, value);
        }
    }
}

/// What a fact is called in the journal, which knows capitals, digits and underscores.
fn name(field: &Field) -> String {
    let name = field.name().chars().map(|char| if char == '.' { '_' } else { char.to_ascii_uppercase() });
    let name = name.skip_while(|char| *char == '_').filter(|char| *char == '_' || char.is_ascii_alphanumeric());
    PREFIX.chars().chain(name).collect()
}

/// What every entry begins with.
fn head(level: Level, message: &str) -> Vec<u8> {
    let mut entry = Vec::with_capacity(message.len() + 1024);
    put(&mut entry, "MESSAGE", message.as_bytes());
    put(&mut entry, "PRIORITY", priority(level).as_bytes());
    put(&mut entry, "SYSLOG_IDENTIFIER", b"pve-imds");
    entry
}

/// Where in the source something stands.
fn put_place(entry: &mut Vec<u8>, prefix: &str, metadata: &Metadata<'_>) {
    put(entry, &format!("{prefix}TARGET"), metadata.target().as_bytes());
    if let Some(file) = metadata.file() {
        put(entry, &format!("{prefix}CODE_FILE"), file.as_bytes());
    }
    if let Some(line) = metadata.line() {
        put(entry, &format!("{prefix}CODE_LINE"), line.to_string().as_bytes());
    }
}

/// Appends a field: the name, a newline, the length of the value (64 bits, little endian), the value, a newline. There is
/// a shorter form, `NAME=value`, for values without newlines; in this one no value can ever be read as another field.
fn put(entry: &mut Vec<u8>, name: &str, value: &[u8]) {
    entry.extend_from_slice(name.as_bytes());
    entry.push(b'\n');
    entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    entry.extend_from_slice(value);
    entry.push(b'\n');
}

/// As much of a text as `length` bytes hold.
fn cut(text: &str, length: usize) -> std::borrow::Cow<'_, str> {
    if text.len() <= length {
        return text.into();
    }
    (text[..text.floor_char_boundary(length - CUT.len())].to_owned() + CUT).into()
}

/// A text that does not grow beyond [`VALUE`].
#[derive(Default)]
struct Text {
    text: String,
    full: bool,
}

impl fmt::Write for Text {
    // It says that all is well when it is full: what writes itself here need not be prepared for less.
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = VALUE - self.text.len();
        if self.full {
            // What is said after the cut would read as if it followed.
        } else if more.len() <= room {
            self.text.push_str(more);
        } else {
            self.full = true;
            self.text.push_str(&more[..more.floor_char_boundary(room)]);
            let end = self.text.floor_char_boundary(VALUE - CUT.len());
            self.text.truncate(end);
            self.text.push_str(CUT);
        }
        Ok(())
    }
}

/// A message: as [`Text`], and `journalctl` shows it. It calls a message with control characters a blob and hides it, but
/// for tabs and newlines.
struct Message(Text);

impl fmt::Write for Message {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for part in more.split_inclusive(hidden) {
            let mut chars = part.chars();
            match chars.next_back() {
                Some(last) if hidden(last) => {
                    self.0.write_str(chars.as_str())?;
                    write!(self.0, "\\x{:02x}", u32::from(last))?;
                }
                _ => self.0.write_str(part)?,
            }
        }
        Ok(())
    }
}

fn hidden(char: char) -> bool {
    char.is_control() && char != '\n' && char != '\t'
}

#[cfg(test)]
mod tests;
