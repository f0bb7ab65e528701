//! The certificate that those who fetch the key set know this node by.
//!
//! In come the PEM files of a certificate and its key, later a connection; out goes a TLS stream on it. Only TLS 1.2 and
//! later is spoken, and only HTTP/1.1 on it. [`ServingKeys`] holds the pair that is in force: whoever keeps the inventory
//! reads the files, a connection only looks here. Refused: a pair that does not belong together; to renegotiate, and to
//! take sessions up again: whoever asks once an hour saves nothing by it, and would be shown no renewed certificate.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{
    AlpnError, Ssl, SslAcceptor, SslMethod, SslOptions, SslSessionCacheMode, SslVersion, select_next_proto,
};
use openssl::x509::X509;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_openssl::SslStream;

use super::BadKey;

/// HTTP/1.1, as ALPN has it (RFC 7301 §3.1).
const PROTOCOL: &[u8] = b"\x08http/1.1";

/// A certificate, those between it and a root if the file has them, and its key.
#[derive(Clone)]
pub struct ServingKey(SslAcceptor);

/// Why two files give no pair. Quotes nothing of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPair {
    /// The certificate's file.
    #[error("{0}")]
    Certificate(BadKey),
    /// The key's file.
    #[error("{0}")]
    Key(BadKey),
    /// Each is good, and they are not of one key.
    #[error("the certificate is another key's")]
    Strangers,
    /// OpenSSL refuses them: too short a key, too weak a signature.
    #[error("OpenSSL does not serve with it: its key is too short or its signature too weak")]
    Refused,
}

impl ServingKey {
    /// Reads a pair. Whether the certificate is still valid plays no part: who asks decides that.
    ///
    /// # Errors
    /// [`BadPair`]
    pub fn read(certificate: &[u8], key: &[u8]) -> Result<Self, BadPair> {
        let mut chain = X509::stack_from_pem(certificate).unwrap_or_default().into_iter();
        let certificate = chain.next().ok_or(BadPair::Certificate(BadKey::NoCertificate))?;
        let key = super::private_key(key).map_err(BadPair::Key)?;
        let key = PKey::private_key_from_pkcs8(&key).map_err(|_| BadPair::Key(BadKey::NoKey))?;
        if !certificate.public_key().is_ok_and(|public| public.public_eq(&key)) {
            return Err(BadPair::Strangers);
        }
        let acceptor = || -> Result<SslAcceptor, ErrorStack> {
            let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server())?;
            builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
            builder.set_options(SslOptions::NO_RENEGOTIATION | SslOptions::NO_TICKET);
            builder.set_session_cache_mode(SslSessionCacheMode::OFF);
            builder.set_num_tickets(0)?;
            builder.set_alpn_select_callback(|_, offered| {
                select_next_proto(PROTOCOL, offered).ok_or(AlpnError::ALERT_FATAL)
            });
            builder.set_certificate(&certificate)?;
            for between in chain {
                builder.add_extra_chain_cert(between)?;
            }
            builder.set_private_key(&key)?;
            builder.check_private_key()?;
            Ok(builder.build())
        };
        acceptor().map(Self).map_err(|_| BadPair::Refused)
    }

    /// Shakes hands. Costs a good part of a millisecond of a core, once the other side has said its first words.
    ///
    /// # Errors
    /// What OpenSSL says: no TLS, none that is spoken here, a connection that ended.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<SslStream<S>> {
        let mut stream = SslStream::new(Ssl::new(self.0.context())?, stream)?;
        Pin::new(&mut stream).accept().await.map_err(io::Error::other)?;
        Ok(stream)
    }
}

/// Nothing.
impl fmt::Debug for ServingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingKey").finish_non_exhaustive()
    }
}

/// The pair in force. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ServingKeys(Arc<ArcSwapOption<ServingKey>>);

impl ServingKeys {
    /// The pair; there may be none yet.
    #[must_use]
    pub fn now(&self) -> Option<Arc<ServingKey>> {
        self.0.load_full()
    }

    /// From now on this one, for connections that come.
    pub fn put(&self, key: ServingKey) {
        self.0.store(Some(Arc::new(key)));
    }
}

#[cfg(test)]
mod tests {
    use openssl::ssl::{SslConnector, SslVerifyMode};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::testing::{certificate_pem, key_pem, rsa_key_pem};

    fn pair() -> (Vec<u8>, Vec<u8>) {
        let key = rsa_key_pem(2048).unwrap();
        (certificate_pem(&key).unwrap(), key)
    }

    /// A client that trusts `root`, before it speaks.
    fn client(stream: DuplexStream, root: &[u8], newest: SslVersion, alpn: &[u8]) -> SslStream<DuplexStream> {
        let mut builder = SslConnector::builder(SslMethod::tls_client()).unwrap();
        builder.cert_store_mut().add_cert(X509::from_pem(root).unwrap()).unwrap();
        builder.set_verify(SslVerifyMode::PEER);
        // An old client takes what it gets.
        builder.set_min_proto_version(None).unwrap();
        builder.set_max_proto_version(Some(newest)).unwrap();
        builder.set_alpn_protos(alpn).unwrap();
        builder.set_security_level(0);
        SslStream::new(builder.build().configure().unwrap().into_ssl("localhost").unwrap(), stream).unwrap()
    }

    #[test]
    fn a_pair_is_two_files_of_one_key() {
        let ((certificate, key), (_, stranger)) = (pair(), pair());
        let (curve, short) = (key_pem().unwrap(), rsa_key_pem(512).unwrap());
        let chain = [&certificate[..], &pair().0].concat();
        for (certificate, key, expected) in [
            (&certificate[..], &key[..], Ok(())),
            (&chain, &key, Ok(())),
            (&certificate_pem(&curve).unwrap(), &curve, Ok(())),
            (&certificate, &stranger, Err(BadPair::Strangers)),
            (&certificate[..certificate.len() / 2], &key, Err(BadPair::Certificate(BadKey::NoCertificate))),
            (b"", &key, Err(BadPair::Certificate(BadKey::NoCertificate))),
            (&key, &key, Err(BadPair::Certificate(BadKey::NoCertificate))),
            (&certificate, &key[..key.len() / 2], Err(BadPair::Key(BadKey::NoKey))),
            (&certificate, b"", Err(BadPair::Key(BadKey::NoKey))),
            (&certificate_pem(&short).unwrap(), &short, Err(BadPair::Refused)),
        ] {
            assert_eq!(ServingKey::read(certificate, key).map(drop), expected);
        }
    }

    #[tokio::test]
    async fn only_what_is_new_enough_is_spoken() {
        let (certificate, key) = pair();
        let serving = ServingKey::read(&certificate, &key).unwrap();
        for (newest, alpn, spoken) in [
            (SslVersion::TLS1_3, &b"\x02h2\x08http/1.1"[..], Some("TLSv1.3")),
            (SslVersion::TLS1_3, b"", Some("TLSv1.3")),
            (SslVersion::TLS1_2, PROTOCOL, Some("TLSv1.2")),
            (SslVersion::TLS1_1, PROTOCOL, None),
            (SslVersion::TLS1_3, b"\x02h2", None),
        ] {
            let (near, far) = duplex(4096);
            let mut client = client(far, &certificate, newest, alpn);
            let (server, shaken) = tokio::join!(serving.accept(near), Pin::new(&mut client).connect());
            assert_eq!(server.is_ok() && shaken.is_ok(), spoken.is_some(), "{newest:?} {alpn:?}");
            if let (Ok(mut server), Some(version)) = (server, spoken) {
                assert_eq!(client.ssl().version_str(), version);
                server.write_all(b"words").await.unwrap();
                let mut heard = [0; 5];
                client.read_exact(&mut heard).await.unwrap();
                assert_eq!(&heard, b"words");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_tls_is_refused() {
        let (certificate, key) = pair();
        let serving = ServingKey::read(&certificate, &key).unwrap();
        for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01", b""] {
            let (near, mut far) = duplex(4096);
            far.write_all(said).await.unwrap();
            drop(far);
            assert!(serving.accept(near).await.is_err(), "{said:?}");
        }
    }
}
