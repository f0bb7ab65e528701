//! Identity tokens (JWT-SVID): whom one is asked for, whose name stands in it, and what it says of a VM.
//!
//! In come a request's body, a VM and what the node was told; out go the [`Audience`]s asked for, a [`SpiffeId`], an [`Issuer`]
//! and the [`Claims`]. Names and claims are [SPIFFE's](https://github.com/spiffe/spiffe/blob/main/standards/JWT-SVID.md) and those
//! of RFC 7519. Refused: a body that could be read in two ways, and a name in which a part is missing: another VM without
//! that part would have the same. Pure: signing is for whoever has keys, time and chance come from without.

mod audience;
mod claims;
mod issuer;
mod owner;
mod subject;

pub use audience::{Asked, Audience, BadAsk, MAX_AUDIENCE, MAX_AUDIENCES, NotAllowed};
pub use claims::{Claims, Lifetime, Payload};
pub use issuer::{BadIssuer, DISCOVERY_PATH, Issuer, JWKS_PATH};
pub use owner::{BadOwner, Contested, Owners};
pub use subject::{BadTemplate, BadTrustDomain, NoSubject, SpiffeId, Template, TrustDomain};
