//! As much of HTTP/1.1 as a client of the store needs.
//!
//! In come bytes; out come questions, and answers go the other way. Connections are kept. A head has at most
//! [`MAX_HEAD`] bytes, and a body of at most [`MAX_BODY`] is passed over. Refused: what is no HTTP/1.1, and bodies in
//! chunks.

use std::io::{self, Read, Write};

use serde_json::{Value, json};

use super::asked::Asked;

const MAX_HEAD: usize = 16 << 10;
const MAX_BODY: usize = 64 << 10;

/// One connection, encrypted or not.
pub(super) struct Wire<S> {
    stream: S,
    /// What has come and was not used yet.
    read: Vec<u8>,
    is_last: bool,
}

/// What somebody wants.
pub(super) enum Question {
    Good(Asked),
    /// Not to be understood, nor whatever follows it.
    Bad,
}

/// What is answered.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl<S: Read + Write> Wire<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, read: Vec::new(), is_last: false }
    }

    /// The next question. `None`: nobody asks any more.
    pub(super) fn question(&mut self) -> io::Result<Option<Question>> {
        let end = loop {
            if let Some(end) = self.read.windows(4).position(|end| end == b"\r\n\r\n") {
                break end;
            }
            // What begins otherwise may have no line at all: TLS, say.
            let is_none = self.read.first().is_some_and(|first| !first.is_ascii_uppercase());
            if is_none || self.read.len() > MAX_HEAD {
                return Ok(Some(Question::Bad));
            }
            if !self.more()? {
                return Ok((!self.read.is_empty()).then_some(Question::Bad));
            }
        };
        let head: Vec<u8> = self.read.drain(..end + 4).collect();
        let Some(Head { asked, length, is_last }) = head.get(..end).and_then(Head::parse) else {
            return Ok(Some(Question::Bad));
        };
        while self.read.len() < length {
            if !self.more()? {
                return Ok(None);
            }
        }
        self.read.drain(..length);
        self.is_last = is_last;
        Ok(Some(Question::Good(asked)))
    }

    /// Whether the client has said that it will not ask again.
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Says nothing, whatever comes, until the other side leaves.
    pub(super) fn swallow(&mut self) -> io::Result<()> {
        io::copy(&mut self.stream, &mut io::sink()).map(drop)
    }

    fn more(&mut self) -> io::Result<bool> {
        let mut piece = [0; 4096];
        let count = self.stream.read(&mut piece)?;
        self.read.extend_from_slice(piece.get(..count).unwrap_or_default());
        Ok(count > 0)
    }
}

struct Head {
    asked: Asked,
    length: usize,
    is_last: bool,
}

impl Head {
    fn parse(head: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        if (words.next(), words.next()) != (Some("HTTP/1.1"), None) || method.is_empty() || target.is_empty() {
            return None;
        }
        let mut head = Self { asked: Asked::now(method, target), length: 0, is_last: false };
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                // Of several the first counts, as in Go.
                "x-vault-token" => _ = head.asked.token.get_or_insert_with(|| value.to_owned()),
                "x-vault-namespace" => _ = head.asked.namespace.get_or_insert_with(|| value.to_owned()),
                "x-vault-request" => head.asked.is_request |= value == "true",
                "content-length" => head.length = value.parse().ok().filter(|length| *length <= MAX_BODY)?,
                "transfer-encoding" => return None,
                "connection" => head.is_last |= value.eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        Some(head)
    }
}

impl Answer {
    pub(super) fn new(status: u16, kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("Content-Type", kind.to_owned()), ("Cache-Control", "no-store".to_owned())];
        Self { status, headers, body: body.into() }
    }

    pub(super) fn json(status: u16, body: &Value) -> Self {
        Self::new(status, "application/json", format!("{body}\n"))
    }

    /// As OpenBao says what is wrong.
    pub(super) fn errors(status: u16, errors: &[&str]) -> Self {
        Self::json(status, &json!({ "errors": errors }))
    }

    /// Status line, headers and the empty line. Without `length` the body comes in chunks.
    pub(super) fn head(&self, length: Option<u64>) -> String {
        let mut head = format!("HTTP/1.1 {} \r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &match length {
            // Those have no body, and no length either.
            _ if matches!(self.status, 100..=199 | 204 | 304) => String::new(),
            Some(length) => format!("Content-Length: {length}\r\n"),
            None => "Transfer-Encoding: chunked\r\n".to_owned(),
        };
        head + "\r\n"
    }

    /// All of it; the body is said to have `more` bytes than it has.
    pub(super) fn bytes(&self, more: usize) -> Vec<u8> {
        let mut bytes = self.head(Some((self.body.len() + more) as u64)).into_bytes();
        if !matches!(self.status, 100..=199 | 204 | 304) {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}
