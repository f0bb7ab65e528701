//! The checks Proxmox makes on single values when it loads a configuration.
//!
//! In comes the text of a value; out goes its meaning, or nothing when Proxmox's non-strict loader would drop it.
//! Nothing here knows which option a value belongs to.

use std::net::{Ipv4Addr, Ipv6Addr};

/// White space as Proxmox's loader sees it: it reads bytes, so only ASCII counts.
pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

pub(crate) fn is_blank_char(c: char) -> bool {
    u8::try_from(c).is_ok_and(is_blank)
}

/// `text` holds nothing but white space.
pub(crate) fn is_all_blank(text: &str) -> bool {
    text.bytes().all(is_blank)
}

/// `1`, `on`, `yes`, `true` and their opposites, in any letter case.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(["1", "on", "yes", "true"]) {
        Some(true)
    } else if is(["0", "off", "no", "false"]) {
        Some(false)
    } else {
        None
    }
}

/// An integer inside a property string: there, unlike at the top level, a sign may stand before the digits.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if is_digits(digits) { text.parse().ok() } else { None }
}

/// One or more ASCII digits.
pub(crate) fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// A number at the top level: digits, perhaps a point and more digits.
pub(crate) fn is_plain_number(text: &str) -> bool {
    text.split_once('.').map_or_else(|| is_digits(text), |(whole, part)| is_digits(whole) && is_digits(part))
}

/// A number inside a property string, zero or more.
pub(crate) fn is_rate(text: &str) -> bool {
    let plain = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
    plain && text.parse::<f64>().is_ok_and(|rate| rate >= 0.0)
}

/// Six hexadecimal pairs with colons, the multicast bit clear.
pub(crate) fn is_mac(text: &str) -> bool {
    let mut pairs = 0;
    let hex = text.split(':').all(|pair| {
        pairs += 1;
        pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit())
    });
    hex && pairs == 6 && u8::from_str_radix(&text[..2], 16).is_ok_and(|first| first & 1 == 0)
}

/// 8-4-4-4-12 hexadecimal digits.
pub(crate) fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// Labels of letters, digits and inner hyphens, joined by dots.
pub(crate) fn is_dns_name(text: &str) -> bool {
    text.split('.').all(|label| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

/// One tag.
pub(crate) fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.bytes().enumerate().all(|(at, b)| word(b) || (at > 0 && matches!(b, b'-' | b'+' | b'.'))) && !text.is_empty()
}

/// An address or a name.
pub(crate) fn is_address(text: &str) -> bool {
    text.parse::<Ipv4Addr>().is_ok() || text.parse::<Ipv6Addr>().is_ok() || is_dns_name(text)
}

/// `10.0.0.5/24`; prefixes below 8 are refused.
pub(crate) fn is_cidr4(text: &str) -> bool {
    is_cidr(text, 32, |address| address.parse::<Ipv4Addr>().is_ok())
}

/// `2001:db8::5/64`; prefixes below 8 are refused.
pub(crate) fn is_cidr6(text: &str) -> bool {
    is_cidr(text, 128, |address| address.parse::<Ipv6Addr>().is_ok())
}

fn is_cidr(text: &str, longest: u32, is_address: fn(&str) -> bool) -> bool {
    text.split_once('/').is_some_and(|(address, prefix)| {
        let length = if is_digits(prefix) { prefix.parse::<u32>().ok() } else { None };
        length.is_some_and(|length| (8..=longest).contains(&length)) && is_address(address)
    })
}

/// The characters that percent-encoded text is made of.
pub(crate) fn is_url_encoded(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-%_.!~*'()".contains(&b))
}

/// A list: at NUL bytes if there are any, else at commas, semicolons and white space.
pub(crate) fn split_list(text: &str) -> Vec<&str> {
    if text.contains('\0') {
        let mut parts: Vec<_> = text.split('\0').collect();
        while parts.pop_if(|part| part.is_empty()).is_some() {}
        return parts;
    }
    text.split(|c| matches!(c, ',' | ';') || is_blank_char(c)).filter(|part| !part.is_empty()).collect()
}

/// Text without one pair of surrounding double quotes.
pub(crate) fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_pass_or_not() {
        type Row = (fn(&str) -> bool, &'static [&'static str], &'static [&'static str]);
        let checks: &[Row] = &[
            (
                is_mac,
                &["BC:24:11:00:00:01", "bc:24:11:aa:00:02"],
                &[
                    "01:24:11:00:09:04",
                    "BC:24:11:00:00",
                    "",
                    "BC-24-11-00-00-01",
                    "BC:24:11:00:00:0g",
                    "é:00:00:00:00:00",
                ],
            ),
            (
                is_uuid,
                &["ABCDEF01-2345-4678-9abc-DEF012345607"],
                &["", "ABCDEF01-2345-4678-9ABC-DEF01234560", "abcdef0123454678-9abc-def0-12345607"],
            ),
            (is_dns_name, &["web-01", "a.b.c", "0"], &["", "a_b", "-a", "a-", "a..b", "a.", "ü"]),
            (is_tag, &["prod", "_x", "a-b+c.d", "0"], &["", "-a", ".a", "a b", "ü"]),
            (is_address, &["10.0.0.1", "fe80::1", "ns.example"], &["", "a_b", "10.0.0.1/8"]),
            (
                is_cidr4,
                &["10.0.4.5/24", "10.0.0.0/8", "10.0.0.1/32"],
                &["10.0.4.5", "10.0.0.0/7", "10.0.0.0/33", "10.0.0.0/+8", "::1/64", "010.0.0.1/24"],
            ),
            (is_cidr6, &["2001:db8::1/64", "::1/128"], &["::1", "::1/129", "::1/0", "10.0.0.1/24"]),
            (is_url_encoded, &["", "ssh-ed25519%20AAA%0A"], &["a b", "a+b", "a/b"]),
            (is_rate, &["12.5", "0", ".5", "1e3"], &["-1", "", "inf", "nan", "1,5"]),
            (is_plain_number, &["1", "0.5"], &["", ".5", "1.", "-1", "1e3"]),
        ];
        for (check, good, bad) in checks {
            for text in *good {
                assert!(check(text), "{text} passes");
            }
            for text in *bad {
                assert!(!check(text), "{text} does not pass");
            }
        }
    }

    #[test]
    fn words_become_booleans() {
        for (text, expected) in [
            ("1", Some(true)),
            ("ON", Some(true)),
            ("yes", Some(true)),
            ("True", Some(true)),
            ("0", Some(false)),
            ("off", Some(false)),
            ("No", Some(false)),
            ("false", Some(false)),
            ("2", None),
            ("", None),
        ] {
            assert_eq!(boolean(text), expected, "{text}");
        }
    }

    #[test]
    fn lists_split_as_proxmox_splits_them() {
        for (text, expected) in [
            ("prod;web", vec!["prod", "web"]),
            ("one two", vec!["one", "two"]),
            (" ,a,,b; \t", vec!["a", "b"]),
            ("a,b\0c", vec!["a,b", "c"]),
            ("\0a\0\0", vec!["", "a"]),
            ("\0", vec![]),
            ("", vec![]),
            (" ", vec![]),
        ] {
            assert_eq!(split_list(text), expected, "{text:?}");
        }
    }
}
