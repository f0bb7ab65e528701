//! Several documents as one, in the way that every cloud-init takes apart: MIME (RFC 2045, RFC 2046 §5.1.3).
//!
//! In come named parts; out goes a `multipart/mixed` document in which each part's kind is left for cloud-init to see from
//! its first line, as it does with a part that comes alone. Nothing is refused.
//!
//! Why not `#cloud-config-archive`, which is easier on the eye: cloud-init takes that apart only once, so that `#include`
//! and archives within it would come to nothing. Why base64: Python's parser takes text that is not ASCII for Latin-1.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Characters of a line (RFC 2045 §6.8).
const LINE: usize = 76;

/// Where cloud-init looks for what makes a document MIME.
const LOOKED_AT: usize = 4096;

/// How gzip begins (RFC 1952 §2.3.1).
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The document of these parts: name and text of each.
#[must_use]
pub fn multipart(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let boundary = boundary(parts);
    let head = format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\nMIME-Version: 1.0\n");
    let mut document = head.into_bytes();
    for (name, text) in parts {
        document.extend_from_slice(format!("\n--{boundary}\n").as_bytes());
        if is_mime(text) {
            // Head and all, it is a part as it stands.
            document.extend_from_slice(text);
        } else {
            write_part(&mut document, name, text);
        }
    }
    document.extend_from_slice(format!("\n--{boundary}--\n").as_bytes());
    document
}

fn write_part(document: &mut Vec<u8>, name: &str, text: &[u8]) {
    let kind = if text.starts_with(GZIP) { "application/gzip" } else { "text/plain; charset=\"utf-8\"" };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).collect();
    let head = format!(
        "Content-Type: {kind}\nMIME-Version: 1.0\nContent-Transfer-Encoding: base64\n\
         Content-Disposition: attachment; filename=\"{name}\"\n"
    );
    document.extend_from_slice(head.as_bytes());
    for line in STANDARD.encode(text).as_bytes().chunks(LINE) {
        document.push(b'\n');
        document.extend_from_slice(line);
    }
}

/// As cloud-init decides it.
fn is_mime(text: &[u8]) -> bool {
    let looked_at = text.get(..LOOKED_AT).unwrap_or(text).to_ascii_lowercase();
    contains(&looked_at, b"mime-version:")
}

/// A line that no part has: base64 has no `-`, other documents may have any.
fn boundary(parts: &[(&str, &[u8])]) -> String {
    let mut number = 0_u32;
    loop {
        let boundary = format!("=-node-{number}-=");
        if !parts.iter().any(|(_, text)| contains(text, boundary.as_bytes())) {
            return boundary;
        }
        number += 1;
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}
