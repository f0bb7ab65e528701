//! `/pve-imds/jwtsvid`: a VM's identity, as a JWT-SVID that others can check.
//!
//! In come the VM that asks and a body that says whom the token is for; out goes a compact JWS, and a line in the log with
//! the target `pve_imds::audit` that says who got one for whom. Refused: an audience that the node or the VM's policy does
//! not allow, and a VM whose UUID another one has too. How many it gets is decided before it comes here.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderMap, Response, StatusCode};
use pve_imds_backends::clock::Clock;
use pve_imds_backends::keys::{Signer, TokenKeys};
use pve_imds_backends::pve::Inventory;
use pve_imds_model::fault::{Fault, Outcome, RetryAfter};
use pve_imds_model::identity::{Asked, Audience, Claims, Issuer, Lifetime, Owners, SpiffeId, Template, TrustDomain};
use pve_imds_model::policy::Policy;

use crate::reply::{Body, Kind, Reply};
use crate::subject::Subject;

/// Bytes of the largest body.
pub(crate) const MAX_BODY: usize = 8 << 10;

/// What this node's tokens say.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Whose names they are.
    pub trust_domain: TrustDomain,
    /// The path of a name.
    pub template: Template,
    /// `iss`
    pub issuer: Option<Issuer>,
    /// Whom they may be for; `None`: anybody.
    pub audiences: Option<Vec<Audience>>,
    /// For how long they are good.
    pub lifetime: Lifetime,
    /// Whose a UUID is that several VMs have.
    pub owners: Owners,
}

/// Makes tokens. Clones have the same turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mint {
    signer: Signer,
}

/// The node has no key that signs.
#[derive(Debug, thiserror::Error)]
#[error("this node has no key that signs (jwtsvid.private_key_path)")]
struct NoKey;

/// `trust_domain: cluster`, and none is known.
#[derive(Debug, thiserror::Error)]
#[error("jwtsvid.trust_domain is `cluster`, and this node is in none (.members)")]
struct NoCluster;

impl Mint {
    /// A token for whom `body` names.
    ///
    /// # Errors
    /// [`Outcome::BadRequest`], [`Outcome::AudienceRefused`], [`Outcome::DuplicateUuid`],
    /// [`Outcome::SigningKeyUnavailable`], [`Outcome::SubjectUnavailable`]
    pub(crate) async fn issue(
        &self,
        subject: &Subject<'_>,
        (headers, body): (&HeaderMap, &[u8]),
        (rules, keys, clock): (&Rules, &TokenKeys, &Clock),
        inventory: Option<&Inventory>,
    ) -> Result<Response<Body>, Fault> {
        let Subject { vm, node, pool, .. } = subject;
        let mut kinds = headers.get_all(CONTENT_TYPE).iter().map(|kind| kind.to_str().unwrap_or("?"));
        // Somebody before us may have gone by the other one.
        let kind = kinds.next().map(|kind| if kinds.next().is_some() { "?" } else { kind });
        let asked = Asked::read(kind, body).map_err(|error| Fault::bad_request().because(error))?;
        let policy = vm.notes.policy.as_ref().and_then(|policy| policy.as_ref().ok());
        let own = policy.and_then(|Policy { audiences, .. }| audiences.as_deref());
        asked
            .allowed_by([(rules.audiences.as_deref(), "jwtsvid.audiences"), (own, "the VM's policy")])
            .map_err(|refused| Fault::forbidden(Outcome::AudienceRefused).because(refused))?;
        if let (Some(uuid), Some(inventory)) = (&vm.uuid, inventory) {
            let settled = rules.owners.settle(uuid, vm.vmid, &inventory.who_has(uuid));
            settled.map_err(|contested| Fault::forbidden(Outcome::DuplicateUuid).because(contested))?;
        }

        let unavailable = |outcome| Fault::unavailable(outcome, RetryAfter::DEFAULT);
        let unsigned = || unavailable(Outcome::SigningKeyUnavailable);
        let unnamed = || unavailable(Outcome::SubjectUnavailable);
        let cluster = keys.cluster();
        let trust_domain = match &rules.trust_domain {
            TrustDomain::Node => node,
            TrustDomain::Cluster => cluster.as_deref().ok_or_else(|| unnamed().because(NoCluster))?,
            TrustDomain::Named(name) => name,
        };
        let sub = SpiffeId::of(trust_domain, &rules.template, vm, node, pool.as_ref())
            .map_err(|error| unnamed().because(error))?;
        let key = keys.signing().ok_or_else(|| unsigned().because(NoKey))?;
        let jti = Signer::name().map_err(|error| unsigned().because(error))?;
        let kid = Arc::clone(key.public().kid());
        let claims = Claims::new(
            vm,
            (node, pool.as_ref()),
            (&sub, &asked),
            (clock.now(), rules.lifetime),
            (rules.issuer.as_ref().map(Issuer::as_str), &jti),
        );
        let payload = claims.payload().map_err(|error| unsigned().because(error))?;
        let token = self.signer.sign(key, payload).await.map_err(|error| unsigned().because(error))?;
        tracing::info!(
            target: "pve_imds::audit",
            vmid = %vm.vmid, %sub, jti, %kid, audiences = ?Vec::from_iter(asked.audiences().iter().map(Audience::as_str)),
            "identity token issued"
        );
        let mut response = Reply::new(Kind::Text, Bytes::from(token)).with_status(StatusCode::OK);
        // It is another one each time.
        response.headers_mut().remove(ETAG);
        Ok(response)
    }
}

/// What tokens are checked with.
///
/// # Errors
/// [`Outcome::SigningKeyUnavailable`]: an empty set would be kept, and every token refused for as long.
pub(crate) fn keys(keys: &TokenKeys) -> Result<Bytes, Fault> {
    let set = Some(keys.set()).filter(|set| !set.is_empty());
    let none = || Fault::unavailable(Outcome::SigningKeyUnavailable, RetryAfter::DEFAULT);
    set.map(|set| set.bytes()).ok_or_else(none)
}

#[cfg(test)]
mod tests;
