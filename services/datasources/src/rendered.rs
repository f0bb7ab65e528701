//! What becomes of user data with secrets in it: who has it rendered, and what the operator hears of that.
//!
//! In come a request for user data, or one that a boot begins with, and what the renderer made of it; out go the document or
//! the word that the client waits on, one line in the log with the target `pve_imds::secrets`, and a count. Refused: to
//! render for whoever is not going to get it, and to say anything of a value.

use bytes::Bytes;
use metrics::{counter, describe_counter};
use pve_imds_backends::secrets::{Document, Rendering};
use pve_imds_model::endpoint::Endpoint;
use pve_imds_model::fault::Outcome;
use pve_imds_model::vm::{Vm, VmId};
use tracing::{info, warn};

const RENDERS: &str = "pve_imds_secret_renders_total";

/// The document, or the word for what is in the way.
pub(crate) type Rendered = Result<Bytes, Outcome>;

/// How a rendering can end.
fn outcomes() -> impl Iterator<Item = Outcome> {
    let all = Outcome::ALL.iter().copied();
    all.filter(|outcome| {
        outcome.is_of_secrets() || matches!(outcome, Outcome::Ok | Outcome::NotesInvalid | Outcome::Deadline)
    })
}

/// Says what is counted here.
pub(crate) fn describe() {
    describe_counter!(
        RENDERS,
        "Requests for which user data with secrets was rendered, or was to be, by outcome: `ok`, or the word that the \
         guest was answered."
    );
    // A series that begins with its first event hides that event from `increase()`.
    for outcome in outcomes() {
        counter!(RENDERS, "outcome" => outcome.word()).absolute(0);
    }
}

/// What an endpoint has to do with user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It is user data.
    Itself,
    /// A boot begins there, and is not to begin without.
    Entry,
    /// None.
    Nothing,
}

/// The table. Where a boot begins, [`Subject::may_enter`](crate::subject::Subject::may_enter) is asked.
pub(crate) fn part(endpoint: Endpoint, is_instance_id: impl FnOnce() -> bool) -> Part {
    use Endpoint as E;
    match endpoint {
        E::NocloudUserData | E::OpenstackUserData | E::Ec2UserData => Part::Itself,
        E::OpenstackIndex | E::OpenstackMetaData | E::Ec2Token => Part::Entry,
        E::Ec2MetaData if is_instance_id() => Part::Entry,
        E::NocloudIndex
        | E::NocloudMetaData
        | E::NocloudVendorData
        | E::NocloudNetworkConfig
        | E::OpenstackPassword
        | E::OpenstackVendorData
        | E::OpenstackNetworkData
        | E::Ec2Index
        | E::Ec2MetaData
        | E::Ec2Dynamic
        | E::IdentityToken
        | E::IdentityKeys
        | E::Pxe
        | E::Other => Part::Nothing,
    }
}

/// Tells the operator, and keeps what the guest gets.
pub(crate) fn told(vmid: VmId, endpoint: Endpoint, rendering: Rendering) -> Rendered {
    let Rendering { scope, set, document } = rendering;
    let (scope, set) = (scope.map(tracing::field::display), set.map(tracing::field::display));
    let endpoint = endpoint.word();
    let rendered = match document {
        Ok(document) => {
            info!(target: "pve_imds::secrets", %vmid, endpoint, scope, set, outcome = Outcome::Ok.word(), "user data rendered");
            Ok(Bytes::from_owner::<Document>(document))
        }
        Err(error) => {
            let (outcome, mend) = (error.outcome(), error.mend());
            warn!(
                target: "pve_imds::secrets",
                %vmid, endpoint, scope, set, outcome = outcome.word(), reason = %error, mend, "user data not rendered"
            );
            Err(outcome)
        }
    };
    let outcome = rendered.as_ref().map_or_else(|outcome| *outcome, |_| Outcome::Ok);
    counter!(RENDERS, "outcome" => outcome.word()).increment(1);
    rendered
}

/// The same, where nobody renders.
pub(crate) fn disabled(vm: &Vm, endpoint: Endpoint) -> Rendered {
    let (set, outcome) = (vm.notes.secret_set().map(tracing::field::display), Outcome::SecretsDisabled);
    warn!(
        target: "pve_imds::secrets",
        vmid = %vm.vmid, endpoint = endpoint.word(), set, outcome = outcome.word(),
        reason = "its block says `secrets=`, and this node renders none", mend = "secrets.enabled: true, or leave `secrets=` out",
        "user data not rendered"
    );
    counter!(RENDERS, "outcome" => outcome.word()).increment(1);
    Err(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is counted here, and what `pve-imds view` sends to `pve-imds doctor` for.
    #[test]
    fn a_rendering_ends_with_a_word_of_secrets_or_with_one_that_others_have_too() {
        const COMMON: [Outcome; 3] = [Outcome::Ok, Outcome::NotesInvalid, Outcome::Deadline];
        for outcome in Outcome::ALL.iter().copied() {
            let counted = outcomes().any(|counted| counted == outcome);
            assert_eq!(counted, outcome.is_of_secrets() || COMMON.contains(&outcome), "{outcome}");
        }
    }
}
