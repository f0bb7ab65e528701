//! `smbios1`: the UUID and the texts of the SMBIOS type 1 table.
//!
//! In comes the option's value; out go the UUID as written and the other fields decoded. Refused as a whole when any
//! field is bad: then the VM has no UUID at all, as in Proxmox. The UUID is what a VM's owner wrote, not proof of
//! anything: two VMs can carry the same one.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::format::{boolean, is_uuid};
use crate::property::{self, BadProperty, Format};

const BASE64: &str = "letters, digits, `+` and `/`, with at most two `=` at the end (base64)";

/// Proxmox demands the base64 alphabet of every text, also of those it will not decode.
const SMBIOS: Format = Format {
    fields: &[
        ("uuid", "8-4-4-4-12 hexadecimal digits", is_uuid),
        ("version", BASE64, is_base64_like),
        ("serial", BASE64, is_base64_like),
        ("manufacturer", BASE64, is_base64_like),
        ("product", BASE64, is_base64_like),
        ("sku", BASE64, is_base64_like),
        ("family", BASE64, is_base64_like),
        ("base64", "0 or 1", |text| boolean(text).is_some()),
    ],
    nameless: None,
    shorthand: None,
    required: &[],
    needs: &[],
};

/// As forgiving as Proxmox's decoder: padding may be missing and odd bits are dropped.
const FORGIVING: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// SMBIOS type 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Smbios {
    /// As written.
    pub(crate) uuid: Option<String>,
    /// The other fields by name, decoded; bytes that are not UTF-8 become U+FFFD.
    pub(crate) texts: BTreeMap<String, String>,
}

impl Smbios {
    /// Reads the value of `smbios1`.
    pub(crate) fn parse(text: &str) -> Result<Self, BadProperty> {
        let mut fields = property::parse(&SMBIOS, text)?;
        let uuid = fields.remove("uuid").map(str::to_owned);
        let encoded = fields.remove("base64").and_then(boolean).unwrap_or(false);
        let decoded = |value: &str| if encoded { decode(value) } else { value.to_owned() };
        Ok(Self { uuid, texts: fields.into_iter().map(|(name, value)| (name.to_owned(), decoded(value))).collect() })
    }
}

fn is_base64_like(text: &str) -> bool {
    let stem = text.trim_end_matches('=');
    text.len() - stem.len() <= 2
        && !stem.is_empty()
        && stem.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

fn decode(text: &str) -> String {
    let stem = text.trim_end_matches('=');
    // One character of a group of four holds no whole byte.
    let whole = if stem.len() % 4 == 1 { &stem[..stem.len() - 1] } else { stem };
    let bytes = FORGIVING.decode(whole).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "ABCDEF01-2345-4678-9ABC-DEF012345607";

    fn smbios(uuid: Option<&str>, texts: &[(&str, &str)]) -> Smbios {
        let texts = texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Smbios { uuid: uuid.map(str::to_owned), texts }
    }

    #[test]
    fn texts_are_decoded_and_uuids_are_not() {
        use BadProperty as Bad;
        let wrong = |field, wanted| Err(Bad::BadValue { field, wanted });
        for (text, expected) in [
            (format!("uuid={UUID}"), Ok(smbios(Some(UUID), &[]))),
            (format!("serial=QUJD,base64=1,uuid={UUID}"), Ok(smbios(Some(UUID), &[("serial", "ABC")]))),
            ("serial=QUJD".into(), Ok(smbios(None, &[("serial", "QUJD")]))),
            ("serial=QUJD,base64=0".into(), Ok(smbios(None, &[("serial", "QUJD")]))),
            ("family=w7w=,base64=yes".into(), Ok(smbios(None, &[("family", "ü")]))),
            ("sku=QUI,base64=1".into(), Ok(smbios(None, &[("sku", "AB")]))),
            ("sku=QUJDR,base64=1".into(), Ok(smbios(None, &[("sku", "ABC")]))),
            ("sku=QUJDR0==,base64=1".into(), Ok(smbios(None, &[("sku", "ABCG")]))),
            ("product=/w==,base64=1".into(), Ok(smbios(None, &[("product", "\u{fffd}")]))),
            (format!("uuid={UUID},serial=ds=nocloud"), wrong("serial", BASE64)),
            ("serial=a===".into(), wrong("serial", BASE64)),
            ("serial===".into(), wrong("serial", BASE64)),
            ("uuid=1".into(), wrong("uuid", "8-4-4-4-12 hexadecimal digits")),
            ("serial=a,base64=2".into(), wrong("base64", "0 or 1")),
            ("asset=QUJD".into(), Err(property::parse(&SMBIOS, "asset=QUJD").unwrap_err())),
            (
                "version=Mg,serial=Mw,manufacturer=NA,product=NQ,sku=Ng,family=Nw,base64=1".into(),
                Ok(smbios(
                    None,
                    &[
                        ("version", "2"),
                        ("serial", "3"),
                        ("manufacturer", "4"),
                        ("product", "5"),
                        ("sku", "6"),
                        ("family", "7"),
                    ],
                )),
            ),
            // Proxmox's interface takes 512 characters, its loader more.
            (format!("serial={}", "A".repeat(600)), Ok(smbios(None, &[("serial", &"A".repeat(600))]))),
        ] {
            assert_eq!(Smbios::parse(&text), expected, "{text}");
        }
    }
}
