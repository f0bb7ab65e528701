//! One question to the store, from the token's file to the set.
//!
//! In comes the path of a set; out goes the set, or why not, within [`TOTAL`]. Connections are kept between questions, until
//! the file of certificates says something else. Refused: to follow the store elsewhere, to go through a proxy that the
//! environment names, to speak anything older than TLS 1.2.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pve_imds_model::chain;
use pve_imds_model::secrets::SecretPath;
use reqwest::header::HeaderName;
use reqwest::redirect::Policy;
use reqwest::tls::Version;
use reqwest::{Certificate, Client, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::answer::{self, SecretSet};
use super::credentials::{AuthorityFile, TokenFile};
use super::error::{Failure, FetchError};
use super::lookup::Lookup;
use super::{Address, CONNECT, MAX_BODY, Namespace, Settings, TOTAL};

const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");
/// Agents may be told to answer nobody without it: what can be talked into a GET cannot be talked into a header.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");

/// Questions at once. A set has one at a time, so these are as many sets.
const AT_ONCE: usize = 32;

/// Connections are kept this long while nobody asks.
const IDLE: Duration = Duration::from_secs(60);

/// See above.
#[derive(Debug)]
pub(super) struct Store {
    address: Address,
    namespace: Option<Namespace>,
    authority: Option<AuthorityFile>,
    token: TokenFile,
    client: Mutex<Option<Trusting>>,
    places: Semaphore,
}

/// A client, and the certificates that it goes by.
struct Trusting {
    pem: Option<Zeroizing<Vec<u8>>>,
    client: Client,
}

impl std::fmt::Debug for Trusting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trusting").finish_non_exhaustive()
    }
}

impl Store {
    pub(super) fn new(settings: Settings) -> Self {
        let Settings { address, namespace, authority, token, cache: _ } = settings;
        Self {
            address,
            namespace,
            authority: authority.map(AuthorityFile::new),
            token: TokenFile::new(token),
            client: Mutex::new(None),
            places: Semaphore::new(AT_ONCE),
        }
    }

    /// The set at `path`, as it is now.
    ///
    /// # Errors
    /// [`FetchError`]
    pub(super) async fn fetch(&self, path: &SecretPath) -> Result<SecretSet, FetchError> {
        timeout(TOTAL, self.ask(path)).await.unwrap_or_else(|_| Err(Failure::TooLate.into()))
    }

    async fn ask(&self, path: &SecretPath) -> Result<SecretSet, FetchError> {
        let url = self.address.of(path).ok_or(Failure::Path)?;
        let _place = self.places.acquire().await.map_err(|_| Failure::Broke)?;
        let token = self.token.token().await?;
        let client = self.client().await?;
        let mut request = client.get(url).header(TOKEN, token).header(REQUEST, "true");
        if let Some(namespace) = &self.namespace {
            request = request.header(NAMESPACE, namespace.as_str());
        }
        let response = request.send().await.map_err(sent)?;
        let status = response.status().as_u16();
        answer::read(status, &body(response).await?)
    }

    /// The client for the certificates as they are now.
    async fn client(&self) -> Result<Client, FetchError> {
        let pem = match &self.authority {
            Some(file) => Some(file.pem().await.map_err(Failure::from)?),
            None => None,
        };
        let mut known = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some(trusting) if trusting.pem == pem => Ok(trusting.client.clone()),
            _ => {
                let client = open(pem.as_deref().map(Vec::as_slice)).ok_or(Failure::Tls)?;
                *known = Some(Trusting { pem, client: client.clone() });
                Ok(client)
            }
        }
    }
}

fn open(pem: Option<&[u8]>) -> Option<Client> {
    let mut builder = Client::builder()
        .https_only(true)
        .tls_version_min(Version::TLS_1_2)
        .redirect(Policy::none())
        .no_proxy()
        .http1_only()
        .dns_resolver(Arc::new(Lookup::default()))
        .connect_timeout(CONNECT)
        .pool_idle_timeout(IDLE)
        .retry(reqwest::retry::never());
    if let Some(pem) = pem {
        builder = builder.tls_certs_only(Certificate::from_pem_bundle(pem).ok()?);
    }
    builder.build().ok()
}

/// Why there is no answer.
fn sent(error: reqwest::Error) -> FetchError {
    match error {
        error if error.is_connect() && error.is_timeout() => Failure::Silent(CONNECT),
        // System, TLS and certificates say what is wrong; nobody has been told anything yet.
        error if error.is_connect() => Failure::Unreachable(chain(&error.without_url())),
        error if error.is_timeout() => Failure::TooLate,
        _ => Failure::BrokeOff,
    }
    .into()
}

/// All of the body, if it is not too large.
async fn body(mut response: Response) -> Result<Zeroizing<Vec<u8>>, FetchError> {
    let claimed = response.content_length().unwrap_or(MAX_BODY as u64);
    let claimed = usize::try_from(claimed).ok().filter(|claimed| *claimed <= MAX_BODY).ok_or(Failure::TooLarge)?;
    // Room for all of it from the start, so that no part of a value is left behind elsewhere.
    let mut body = Zeroizing::new(Vec::with_capacity(claimed));
    while let Some(piece) = response.chunk().await.map_err(|_| Failure::BrokeOff)? {
        if body.len() + piece.len() > MAX_BODY {
            return Err(Failure::TooLarge.into());
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}
