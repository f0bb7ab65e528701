//! What is said on the control socket: one question, one answer.
//!
//! A question is a line, `password 106` and a line feed. The answer is `ok`, a blank, a number and a line feed, then that
//! many bytes; or `no`, a blank, one word of [`Refusal`] and a line feed. The length stands in front so that half an
//! answer is seen for what it is. Refused: anything else, in either direction.

use std::fmt;

use bytes::Bytes;
use pve_imds_model::vm::VmId;
use pve_imds_model::words;

/// What may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// What the guest has said of its administrator's password.
    Password(VmId),
}

impl Question {
    /// Reads a line, with or without its end.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        match line.strip_suffix('\n').unwrap_or(line).split_once(' ')? {
            ("password", vmid) => VmId::parse(vmid).map(Self::Password),
            _ => None,
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password(vmid) => write!(f, "password {vmid}"),
        }
    }
}

words! {
    /// Why there is no answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Refusal {
        /// No question that this version knows.
        UnknownQuestion => "unknown_question",
        /// There is no configuration of this VM.
        VmUnknown => "vm_unknown",
        /// The guest has not said it to this daemon.
        NothingSaid => "nothing_said",
    }
}

/// What comes back.
pub type Answer = Result<Bytes, Refusal>;

/// The longest answer that is read: many times what any has.
pub(super) const LONGEST: u64 = 64 * 1024;

/// An answer as it is sent.
pub(super) fn write(answer: &Answer) -> Vec<u8> {
    match answer {
        Ok(bytes) => [format!("ok {}\n", bytes.len()).as_bytes(), bytes].concat(),
        Err(refusal) => format!("no {}\n", refusal.word()).into_bytes(),
    }
}

/// The answer that was received. `None`: not a whole one, or not one that this version knows.
pub(super) fn read(received: &[u8]) -> Option<Answer> {
    let end = received.iter().position(|byte| *byte == b'\n')?;
    let (head, body) = (str::from_utf8(&received[..end]).ok()?, &received[end + 1..]);
    match head.split_once(' ')? {
        ("ok", length) if length == body.len().to_string() => Some(Ok(Bytes::copy_from_slice(body))),
        ("no", word) if body.is_empty() => {
            Refusal::ALL.iter().find(|refusal| refusal.word() == word).map(|refusal| Err(*refusal))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_one_line() {
        let password = VmId::new(106).map(Question::Password);
        for (line, expected) in [
            ("password 106\n", password),
            ("password 106", password),
            ("password 0106\n", None),
            ("password 99\n", None),
            ("password 106 \n", None),
            ("password 106\n\n", None),
            ("password\n", None),
            ("Password 106\n", None),
            ("\n", None),
            ("", None),
        ] {
            assert_eq!(Question::parse(line), expected, "{line:?}");
        }
        assert_eq!(password.and_then(|question| Question::parse(&question.to_string())), password);
    }

    #[test]
    fn an_answer_is_whole_or_none() {
        for (received, expected) in [
            (&b"ok 3\na\nb"[..], Some(Ok(Bytes::from_static(b"a\nb")))),
            (b"ok 0\n", Some(Ok(Bytes::new()))),
            (b"no vm_unknown\n", Some(Err(Refusal::VmUnknown))),
            (b"ok 3\na\n", None),
            (b"ok 3\na\nbc", None),
            (b"ok 3", None),
            (b"ok +3\nabc", None),
            (b"ok\nabc", None),
            (b"no such_word\n", None),
            (b"no vm_unknown\nx", None),
            (b"\xff 3\nabc", None),
            (b"", None),
        ] {
            assert_eq!(read(received), expected, "{:?}", received.escape_ascii().to_string());
        }
        for answer in [Ok(Bytes::from_static(b"\0\n\xff")), Err(Refusal::NothingSaid)] {
            assert_eq!(read(&write(&answer)), Some(answer));
        }
    }
}
