//! Those who vouch for a store.
//!
//! Out come an authority's own certificate, for clients to trust, and those that it signs for stores. All are good for a day.

use std::fmt;

use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{AlpnError, SslAcceptor, SslMethod, SslOptions, SslSessionCacheMode, SslVersion, select_next_proto};
use openssl::x509::extension::{BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName};
use openssl::x509::{X509, X509Builder, X509Name, X509NameRef};

/// A certificate authority.
#[derive(Clone)]
pub struct Authority {
    key: PKey<Private>,
    certificate: X509,
    pem: Vec<u8>,
}

impl Authority {
    /// A new one, unlike any other.
    ///
    /// # Errors
    /// OpenSSL makes none.
    pub fn new() -> Result<Self, ErrorStack> {
        let key = key()?;
        // Two of one name would be told apart by their signatures alone, and clients would say so in other words.
        let mut number = BigNum::new()?;
        number.rand(64, MsbOption::MAYBE_ZERO, false)?;
        let name = name(&format!("authority {}", number.to_hex_str()?))?;
        let mut builder = begin(&name, &name, &key)?;
        builder.append_extension(BasicConstraints::new().critical().ca().build()?)?;
        builder.append_extension(KeyUsage::new().critical().key_cert_sign().crl_sign().build()?)?;
        builder.sign(&key, MessageDigest::sha256())?;
        let certificate = builder.build();
        let pem = certificate.to_pem()?;
        Ok(Self { key, certificate, pem })
    }

    /// Its certificate.
    #[must_use]
    pub fn pem(&self) -> Vec<u8> {
        self.pem.clone()
    }

    /// A new key and a certificate for `127.0.0.1`, `::1` and `localhost`, and TLS that shows it.
    pub(super) fn identity(&self) -> Result<SslAcceptor, ErrorStack> {
        let key = key()?;
        let mut builder = begin(&*name("localhost")?, self.certificate.subject_name(), &key)?;
        builder.append_extension(BasicConstraints::new().critical().build()?)?;
        builder.append_extension(KeyUsage::new().critical().digital_signature().build()?)?;
        builder.append_extension(ExtendedKeyUsage::new().server_auth().build()?)?;
        let names = SubjectAlternativeName::new()
            .dns("localhost")
            .ip("127.0.0.1")
            .ip("::1")
            .build(&builder.x509v3_context(Some(&self.certificate), None))?;
        builder.append_extension(names)?;
        builder.sign(&self.key, MessageDigest::sha256())?;

        let mut tls = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server())?;
        tls.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        // Whoever took a session up again would not be shown another certificate.
        tls.set_options(SslOptions::NO_RENEGOTIATION | SslOptions::NO_TICKET);
        tls.set_session_cache_mode(SslSessionCacheMode::OFF);
        tls.set_num_tickets(0)?;
        tls.set_alpn_select_callback(|_, offered| {
            select_next_proto(b"\x08http/1.1", offered).ok_or(AlpnError::ALERT_FATAL)
        });
        tls.set_certificate(&builder.build())?;
        tls.set_private_key(&key)?;
        tls.check_private_key()?;
        Ok(tls.build())
    }
}

/// Nothing.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

fn key() -> Result<PKey<Private>, ErrorStack> {
    let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    PKey::from_ec_key(EcKey::generate(&curve)?)
}

fn name(common: &str) -> Result<X509Name, ErrorStack> {
    let mut name = X509Name::builder()?;
    name.append_entry_by_text("CN", common)?;
    Ok(name.build())
}

/// A certificate for that key, to which extensions and a signature are missing.
fn begin(subject: &X509NameRef, issuer: &X509NameRef, key: &PKey<Private>) -> Result<X509Builder, ErrorStack> {
    let mut builder = X509::builder()?;
    let mut serial = BigNum::new()?;
    serial.rand(64, MsbOption::MAYBE_ZERO, false)?;
    builder.set_version(2)?;
    builder.set_serial_number(&*serial.to_asn1_integer()?)?;
    builder.set_subject_name(subject)?;
    builder.set_issuer_name(issuer)?;
    builder.set_not_before(&*Asn1Time::days_from_now(0)?)?;
    builder.set_not_after(&*Asn1Time::days_from_now(1)?)?;
    builder.set_pubkey(key)?;
    Ok(builder)
}
