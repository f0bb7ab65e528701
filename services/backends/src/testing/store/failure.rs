//! What goes wrong with a store.
//!
//! In comes the right answer to a question; out goes what is told instead, or how. Whatever takes time ends when the gate
//! is closed.

use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

use super::gate::Gate;
use super::http::{Answer, Wire};

/// What goes wrong. It does so whoever asks, and with whatever token.
#[derive(Clone, PartialEq, Eq)]
pub enum Failure {
    /// Nothing.
    None,
    /// This status, with a body as OpenBao's.
    Status(u16),
    /// This status, and elsewhere as `Location`.
    Redirect(u16, String),
    /// A good set whose answer has exactly so many bytes, and says so before. No fewer than a few hundred.
    HugeBody(u64),
    /// The same, in chunks: nobody says how many will come.
    HugeChunks(u64),
    /// A good set that goes on in chunks for ever.
    Endless,
    /// The right answer, a byte at a time, and so long between two of them.
    Drip(Duration),
    /// Connections are accepted, and not a word is said.
    SilentBeforeTls,
    /// No answer.
    SilentAfterRequest,
    /// The whole right answer, of which more was promised. Then the connection is closed.
    CutBody,
    /// 200, and a page of HTML.
    NotJson,
    /// 200, and this.
    Json(String),
    /// HTTP without TLS, with right answers for whoever speaks it.
    PlainHttp,
    /// The connection is closed instead of an answer.
    Reset,
    /// The right answer, so much later.
    Late(Duration),
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Question,
    Close,
}

/// The longest piece of a body.
const PIECE: usize = 16 << 10;

/// A good answer, up to the value that makes it as long as it shall be.
const BEGINS: &str = r#"{"request_id":"00000000-0000-4000-8000-000000000000","lease_id":"","renewable":false,"lease_duration":0,"data":{"metadata":{"created_time":"2026-01-02T03:04:05.678901234Z","custom_metadata":null,"deletion_time":"","destroyed":false,"version":1},"data":{"long":""#;
const ENDS: &str = r#""}},"wrap_info":null,"warnings":null,"auth":null}"#;

impl Failure {
    /// Whether it is in how a connection begins, and not in what is answered.
    pub(super) fn is_at_the_door(&self) -> bool {
        matches!(self, Self::SilentBeforeTls | Self::PlainHttp)
    }

    /// Answers, one way or another.
    pub(super) fn meet<S: Read + Write>(&self, wire: &mut Wire<S>, gate: &Gate, right: Answer) -> io::Result<Next> {
        let told = match self {
            Self::None | Self::SilentBeforeTls | Self::PlainHttp => right,
            Self::Late(time) => {
                if !gate.pause(*time) {
                    return Ok(Next::Close);
                }
                right
            }
            Self::Drip(time) => return drip(wire, gate, &right.bytes(0), *time),
            Self::CutBody => {
                wire.write(&right.bytes(64))?;
                return Ok(Next::Close);
            }
            Self::Status(status) => Answer::errors(*status, said(*status)),
            Self::Redirect(status, place) => {
                let mut answer = Answer::new(*status, "text/html; charset=utf-8", "");
                answer.headers.push(("Location", place.clone()));
                answer
            }
            Self::NotJson => Answer::new(200, "text/html; charset=utf-8", "<!DOCTYPE html><title>Sign in</title>"),
            Self::Json(body) => Answer::new(200, "application/json", body.as_bytes()),
            Self::HugeBody(bytes) => return huge(wire, Some(*bytes), true),
            Self::HugeChunks(bytes) => return huge(wire, Some(*bytes), false),
            Self::Endless => return huge(wire, None, false),
            Self::SilentAfterRequest => {
                wire.swallow()?;
                return Ok(Next::Close);
            }
            Self::Reset => return Ok(Next::Close),
        };
        wire.write(&told.bytes(0))?;
        Ok(Next::Question)
    }

    fn word(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Status(_) => "Status",
            Self::Redirect(..) => "Redirect",
            Self::HugeBody(_) => "HugeBody",
            Self::HugeChunks(_) => "HugeChunks",
            Self::Endless => "Endless",
            Self::Drip(_) => "Drip",
            Self::SilentBeforeTls => "SilentBeforeTls",
            Self::SilentAfterRequest => "SilentAfterRequest",
            Self::CutBody => "CutBody",
            Self::NotJson => "NotJson",
            Self::Json(_) => "Json",
            Self::PlainHttp => "PlainHttp",
            Self::Reset => "Reset",
            Self::Late(_) => "Late",
        }
    }
}

/// Its name alone: a body may hold what a set does.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What OpenBao says with a status.
fn said(status: u16) -> &'static [&'static str] {
    match status {
        403 => &["permission denied"],
        500 => &["internal error"],
        503 => &["Vault is sealed"],
        _ => &[],
    }
}

fn drip<S: Read + Write>(wire: &mut Wire<S>, gate: &Gate, bytes: &[u8], time: Duration) -> io::Result<Next> {
    for byte in bytes {
        wire.write(&[*byte])?;
        if !gate.pause(time) {
            return Ok(Next::Close);
        }
    }
    Ok(Next::Question)
}

/// A good set as long as it shall be, in pieces: none of it is longer in memory than a piece.
fn huge<S: Read + Write>(wire: &mut Wire<S>, bytes: Option<u64>, is_told: bool) -> io::Result<Next> {
    let answer = Answer::new(200, "application/json", "");
    let around = (BEGINS.len() + ENDS.len()) as u64;
    let length = bytes.map(|bytes| bytes.max(around));
    wire.write(answer.head(length.filter(|_| is_told)).as_bytes())?;
    let mut send = |piece: &[u8]| -> io::Result<()> {
        if is_told {
            return wire.write(piece);
        }
        wire.write(format!("{:x}\r\n", piece.len()).as_bytes())?;
        wire.write(piece)?;
        wire.write(b"\r\n")
    };
    send(BEGINS.as_bytes())?;
    let mut left = length.map_or(u64::MAX, |length| length - around);
    let piece = [b'x'; PIECE];
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        send(piece.get(..count).unwrap_or_default())?;
        left -= count as u64;
    }
    send(ENDS.as_bytes())?;
    if !is_told {
        wire.write(b"0\r\n\r\n")?;
    }
    Ok(Next::Question)
}
