//! How a block's text is packed, for texts that Notes cannot hold as they are or that would not fit.
//!
//! In comes the text of a block; out come the bytes it stands for. Refused: what does not decode to its last byte, and
//! what would grow beyond [`MAX_DECODED`].

use std::fmt;
use std::io::Read;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use flate2::read::MultiGzDecoder;

use super::Flaw;

/// Most bytes a block can stand for: 128 times the Notes, and less than any client's own limit.
pub const MAX_DECODED: usize = 1024 * 1024;

/// The value of `encoding=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
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

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Base64 => "base64",
            Self::GzipBase64 => "gzip+base64",
        })
    }
}

impl Encoding {
    /// Reads the attribute's value.
    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "base64" => Some(Self::Base64),
            "gzip+base64" => Some(Self::GzipBase64),
            _ => None,
        }
    }

    /// The bytes `text` stands for.
    pub(super) fn decode(self, text: &str) -> Result<Vec<u8>, Flaw> {
        let bytes = match self {
            Self::Plain => return Ok(text.as_bytes().to_vec()),
            Self::Base64 | Self::GzipBase64 => {
                let packed: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
                BASE64.decode(packed).map_err(|_| Flaw::NotDecodable(self))?
            }
        };
        if self == Self::Base64 {
            return Ok(bytes);
        }
        let mut plain = Vec::new();
        // One byte more than allowed tells "too long" from "just fits".
        let limit = MAX_DECODED as u64 + 1;
        MultiGzDecoder::new(&*bytes).take(limit).read_to_end(&mut plain).map_err(|_| Flaw::NotDecodable(self))?;
        if plain.len() > MAX_DECODED { Err(Flaw::TooLong) } else { Ok(plain) }
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
        use Encoding as E;
        let packed = BASE64.encode(gzip(b"#cloud-config"));
        let wrapped =
            packed.as_bytes().chunks(20).map(|line| str::from_utf8(line).unwrap()).collect::<Vec<_>>().join("\n ");
        let cut = BASE64.encode(&gzip(b"#cloud-config")[..25]);
        let tailed = BASE64.encode([&gzip(b"#cloud-config")[..], b"tail"].concat());
        let twice = BASE64.encode([gzip(b"a"), gzip(b"b")].concat());
        for (encoding, text, expected) in [
            (E::Plain, "a\r=\u{fc}", Ok(&b"a\r=\xc3\xbc"[..])),
            (E::Base64, "", Ok(b"")),
            (E::Base64, "QUJD", Ok(b"ABC")),
            (E::Base64, " Q U\n\tI = ", Ok(b"AB")),
            (E::Base64, "QUI", Ok(b"AB")),
            (E::Base64, "/w==", Ok(b"\xff")),
            (E::Base64, "QUJDR", Err(Flaw::NotDecodable(E::Base64))),
            (E::Base64, "_w==", Err(Flaw::NotDecodable(E::Base64))),
            (E::Base64, "#cloud-config", Err(Flaw::NotDecodable(E::Base64))),
            (E::GzipBase64, &packed, Ok(b"#cloud-config")),
            (E::GzipBase64, &wrapped, Ok(b"#cloud-config")),
            (E::GzipBase64, &twice, Ok(b"ab")),
            (E::GzipBase64, &cut, Err(Flaw::NotDecodable(E::GzipBase64))),
            (E::GzipBase64, &tailed, Err(Flaw::NotDecodable(E::GzipBase64))),
            (E::GzipBase64, "QUJD", Err(Flaw::NotDecodable(E::GzipBase64))),
            (E::GzipBase64, "", Err(Flaw::NotDecodable(E::GzipBase64))),
        ] {
            assert_eq!(encoding.decode(text).as_deref(), expected.as_ref().map(|bytes| *bytes), "{encoding} {text}");
        }
    }

    #[test]
    fn a_bomb_is_refused_and_what_just_fits_is_not() {
        let decode = |length: usize| Encoding::GzipBase64.decode(&BASE64.encode(gzip(&vec![0; length])));
        assert_eq!(decode(MAX_DECODED).map(|plain| plain.len()), Ok(MAX_DECODED));
        assert_eq!(decode(MAX_DECODED + 1), Err(Flaw::TooLong));
        assert_eq!(decode(64 * MAX_DECODED), Err(Flaw::TooLong));
    }
}
