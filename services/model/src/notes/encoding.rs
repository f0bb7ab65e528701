//! How a block's text is packed, for texts that Notes cannot hold as they are or that would not fit.
//!
//! In comes the text of a block; out come the bytes it stands for. Refused, with the layer that failed: what does not
//! decode to its last byte, and what would grow beyond [`MAX_DECODED`].

use std::io::{self, Read};

use base64::DecodeError;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use flate2::read::MultiGzDecoder;

/// Most bytes a block can stand for: 128 times the Notes, and less than any client's own limit.
pub const MAX_DECODED: usize = 1024 * 1024;

/// Why a text stands for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// A character that base64 does not have, or `=` before the end.
    #[error("the text is not base64: it has letters, digits, `+` and `/`, and `=` at its very end")]
    Base64,
    /// It ends within a byte.
    #[error("the text is not whole base64: its end is missing, or some character before it")]
    Base64Cut,
    /// Nothing that begins as gzip does.
    #[error("the base64 is right, but what it holds is not gzip; without gzip say `encoding=base64`")]
    Gzip,
    /// It ends before its end.
    #[error(
        "the base64 is right, but the gzip in it ends too early: its end is missing, or something else stands behind it"
    )]
    GzipCut,
    /// It does not unpack, or something stands behind it.
    #[error("the base64 is right, but the gzip in it is damaged, or something else stands behind it")]
    GzipDamaged,
    /// Longer than [`MAX_DECODED`] once decoded.
    #[error("the decoded text is longer than {MAX_DECODED} bytes")]
    TooLong,
}

/// The value of `encoding=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Encoding {
    /// The text itself.
    #[default]
    Plain,
    /// `base64` (RFC 4648 section 4), white space anywhere, padding optional.
    Base64,
    /// `gzip+base64`: gzip (RFC 1952) within base64.
    GzipBase64,
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Encoding {
    /// Reads the attribute's value.
    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "base64" => Some(Self::Base64),
            "gzip+base64" => Some(Self::GzipBase64),
            _ => None,
        }
    }

    /// The bytes `text` stands for, or why it stands for none, and at which byte of it, if that can be told.
    pub(super) fn decode(self, text: &str) -> Result<Vec<u8>, (Undecodable, Option<usize>)> {
        let bytes = match self {
            Self::Plain => return Ok(text.as_bytes().to_vec()),
            Self::Base64 | Self::GzipBase64 => unpack(text)?,
        };
        match self {
            Self::GzipBase64 => inflate(&bytes).map_err(|why| (why, None)),
            Self::Plain | Self::Base64 => Ok(bytes),
        }
    }
}

fn unpack(text: &str) -> Result<Vec<u8>, (Undecodable, Option<usize>)> {
    let is_part = |byte: &u8| !byte.is_ascii_whitespace();
    let packed: Vec<u8> = text.bytes().filter(is_part).collect();
    BASE64.decode(&packed).map_err(|error| {
        let (why, at) = match error {
            DecodeError::InvalidByte(at, _) => (Undecodable::Base64, at),
            DecodeError::InvalidLastSymbol(at, _) => (Undecodable::Base64Cut, at),
            DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => {
                (Undecodable::Base64Cut, packed.len().saturating_sub(1))
            }
        };
        let mut parts = text.bytes().enumerate().filter(|(_, byte)| is_part(byte));
        (why, parts.nth(at).map(|(at, _)| at))
    })
}

/// With what gzip begins (RFC 1952 section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

fn inflate(bytes: &[u8]) -> Result<Vec<u8>, Undecodable> {
    if !bytes.starts_with(&GZIP) {
        return Err(Undecodable::Gzip);
    }
    let mut plain = Vec::new();
    // One byte more than allowed tells "too long" from "just fits".
    let limit = MAX_DECODED as u64 + 1;
    match MultiGzDecoder::new(bytes).take(limit).read_to_end(&mut plain) {
        Ok(_) if plain.len() > MAX_DECODED => Err(Undecodable::TooLong),
        Ok(_) => Ok(plain),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Undecodable::GzipCut),
        Err(_) => Err(Undecodable::GzipDamaged),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn texts_decode_to_their_last_byte() {
        use {Encoding as E, Undecodable as U};
        let packed = BASE64.encode(gzip(b"#cloud-config"));
        let wrapped =
            packed.as_bytes().chunks(20).map(|line| str::from_utf8(line).unwrap()).collect::<Vec<_>>().join("\n ");
        let cut = BASE64.encode(&gzip(b"#cloud-config")[..25]);
        let tailed = BASE64.encode([&gzip(b"#cloud-config")[..], b"tail"].concat());
        let long_tailed = BASE64.encode([&gzip(b"#cloud-config")[..], b"a tail of some length"].concat());
        let mut damaged = gzip(b"#cloud-config");
        damaged[16] ^= 0xff;
        let damaged = BASE64.encode(damaged);
        let twice = BASE64.encode([gzip(b"a"), gzip(b"b")].concat());
        for (encoding, text, expected) in [
            (E::Plain, "a\r=\u{fc}", Ok(&b"a\r=\xc3\xbc"[..])),
            (E::Base64, "", Ok(b"")),
            (E::Base64, "QUJD", Ok(b"ABC")),
            (E::Base64, " Q U\n\tI = ", Ok(b"AB")),
            (E::Base64, "QUI", Ok(b"AB")),
            (E::Base64, "/w==", Ok(b"\xff")),
            (E::Base64, "QUJDR", Err((U::Base64Cut, Some(4)))),
            (E::Base64, "QUJD\n QUJDR\n", Err((U::Base64Cut, Some(10)))),
            (E::Base64, "QUJ", Err((U::Base64Cut, Some(2)))),
            (E::Base64, "_w==", Err((U::Base64, Some(0)))),
            (E::Base64, "QUJD\nQU-D", Err((U::Base64, Some(7)))),
            (E::Base64, "QUI=\nQUJD", Err((U::Base64, Some(3)))),
            (E::Base64, "QU \u{fc}", Err((U::Base64, Some(3)))),
            (E::Base64, "#cloud-config", Err((U::Base64, Some(0)))),
            (E::GzipBase64, "QU-D", Err((U::Base64, Some(2)))),
            (E::GzipBase64, &packed, Ok(b"#cloud-config")),
            (E::GzipBase64, &wrapped, Ok(b"#cloud-config")),
            (E::GzipBase64, &twice, Ok(b"ab")),
            (E::GzipBase64, &cut, Err((U::GzipCut, None))),
            (E::GzipBase64, "H4sI", Err((U::GzipCut, None))),
            (E::GzipBase64, &tailed, Err((U::GzipCut, None))),
            (E::GzipBase64, &long_tailed, Err((U::GzipDamaged, None))),
            (E::GzipBase64, &damaged, Err((U::GzipDamaged, None))),
            (E::GzipBase64, "QUJD", Err((U::Gzip, None))),
            (E::GzipBase64, "", Err((U::Gzip, None))),
        ] {
            assert_eq!(encoding.decode(text).as_deref(), expected.as_ref().map(|bytes| *bytes), "{encoding:?} {text}");
        }
    }

    #[test]
    fn a_bomb_is_refused_and_what_just_fits_is_not() {
        let decode = |length: usize| Encoding::GzipBase64.decode(&BASE64.encode(gzip(&vec![0; length])));
        assert_eq!(decode(MAX_DECODED).map(|plain| plain.len()), Ok(MAX_DECODED));
        assert_eq!(decode(MAX_DECODED + 1), Err((Undecodable::TooLong, None)));
        assert_eq!(decode(64 * MAX_DECODED), Err((Undecodable::TooLong, None)));
    }
}
