//! What can go wrong, in one closed list of words, and the only type that knows status codes.
//!
//! Anyone in the stack may raise a [`Fault`]; `middleware/rescue` alone turns it into an answer. A fault carries one
//! calm line for the guest and, apart from it, the reason for the operator's log. It is refused the means to become a
//! success, and a 503 or a 429 cannot be made without its `Retry-After`.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::words;

macro_rules! outcomes {
    ($($(#[$doc:meta])* $variant:ident => $word:literal, $status:literal;)*) => {
        words! {
            /// How a request ended: the same word in README, log, metric label and test.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
            pub enum Outcome { $($(#[$doc])* $variant => $word,)* }
        }

        impl Outcome {
            /// The status that goes with it (RFC 9110).
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }
        }
    };
}

outcomes! {
    /// A whole and true answer.
    Ok => "ok", 200;
    /// Nothing is served at this path.
    NotFound => "not_found", 404;
    /// The request cannot be understood.
    BadRequest => "bad_request", 400;
    /// The path does not know this method.
    MethodNotAllowed => "method_not_allowed", 405;
    /// The VM's policy says `ec2_tokens: required`, and there is no session token.
    TokenRequired => "token_required", 401;
    /// The session token has expired, is another VM's or nobody's.
    TokenInvalid => "token_invalid", 401;
    /// This node's private key, which seals session tokens, cannot be read.
    NodeKeyUnreadable => "node_key_unreadable", 503;
    /// This node has no key that signs identity tokens.
    SigningKeyUnavailable => "signing_key_unavailable", 503;
    /// The VM lacks a part of its name for others, or the node does not know whose trust domain that would be of.
    SubjectUnavailable => "subject_unavailable", 503;
    /// Tokens for this audience are not for this VM, or not for any of this node.
    AudienceRefused => "audience_refused", 403;
    /// Another VM of the cluster has the same UUID.
    DuplicateUuid => "duplicate_uuid", 403;
    /// The VM asks for identity tokens more often than its share: those who ask for one are programs, and know a 429.
    TokenRateLimited => "token_rate_limited", 429;
    /// The guest has said a password before; it is said once.
    PasswordSet => "password_set", 409;
    /// The request body is larger than any we take.
    BodyTooLarge => "body_too_large", 413;
    /// The interface has no VM (yet).
    VmUnknown => "vm_unknown", 503;
    /// The VM's policy, or the node's, says that it is not served.
    VmExcluded => "vm_excluded", 404;
    /// The VM's policy cannot be read; what it would have taken away nobody knows.
    PolicyInvalid => "policy_invalid", 503;
    /// The VM's policy says `mac: own`, and the request came from another address.
    MacRefused => "mac_refused", 403;
    /// A Notes block is broken; half of it is never used.
    NotesInvalid => "notes_invalid", 503;
    /// The Notes ask for secrets and this node renders none.
    SecretsDisabled => "secrets_disabled", 503;
    /// The block's `secrets=` names no set.
    SetNameInvalid => "set_name_invalid", 503;
    /// Whose secrets the VM's are cannot be told now: what decides about it cannot be read, or is not whole.
    ScopeUnreadable => "scope_unreadable", 503;
    /// This node is not part of the cluster's majority, and may have missed that somebody was taken out of a scope.
    NoQuorum => "no_quorum", 503;
    /// Secrets go by pools, and the VM is in none.
    VmNotInPool => "vm_not_in_pool", 503;
    /// Secrets go by tags, and the VM has none for that.
    TagMissing => "tag_missing", 503;
    /// It has more than one.
    TagAmbiguous => "tag_ambiguous", 503;
    /// Its tag is not one of the cluster's registered tags.
    TagNotRegistered => "tag_not_registered", 503;
    /// The cluster's settings do not keep registered tags for administrators.
    TagPolicyUnsafe => "tag_policy_unsafe", 503;
    /// The scope's name is none that a path can be made of.
    ScopeInvalid => "scope_invalid", 503;
    /// The file with the token for the secret store cannot be used.
    TokenUnreadable => "token_unreadable", 503;
    /// The secret store cannot be asked, or gives no answer that can be used.
    SecretFetchFailed => "secret_fetch_failed", 503;
    /// The secret store does not let this node read the set.
    SecretDenied => "secret_denied", 503;
    /// The secret store has no such set, or its latest version was deleted.
    SetMissing => "set_missing", 503;
    /// The set has no such field.
    FieldMissing => "field_missing", 503;
    /// The field is a number, a list or something else that is no text.
    FieldNotString => "field_not_string", 503;
    /// With its secrets the user data is larger than any we serve.
    DocumentTooLarge => "document_too_large", 503;
    /// The guest asks more often than its share. No 429 (RFC 6585 §4), the word made for it: Ignition takes every 4xx but
    /// 404 for the end of the boot, and cloud-init, curl and the SDKs wait on a 503 at least as well.
    RateLimited => "rate_limited", 503;
    /// No answer was ready in time.
    Deadline => "deadline", 503;
    /// The request passed through a proxy.
    Forwarded => "forwarded", 403;
    /// The `Host` is somebody else's name (DNS rebinding).
    HostRefused => "host_refused", 403;
    /// We failed; the request is lost and nobody else's.
    Panic => "panic", 500;
}

impl Outcome {
    /// Whether it says what keeps secrets from user data: one of the words for which there is more to know than who asks.
    #[must_use]
    pub const fn is_of_secrets(self) -> bool {
        matches!(
            self,
            Self::SecretsDisabled
                | Self::SetNameInvalid
                | Self::ScopeUnreadable
                | Self::NoQuorum
                | Self::VmNotInPool
                | Self::TagMissing
                | Self::TagAmbiguous
                | Self::TagNotRegistered
                | Self::TagPolicyUnsafe
                | Self::ScopeInvalid
                | Self::TokenUnreadable
                | Self::SecretFetchFailed
                | Self::SecretDenied
                | Self::SetMissing
                | Self::FieldMissing
                | Self::FieldNotString
                | Self::DocumentTooLarge
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Whole seconds a client is asked to wait before it asks again; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter(u32);

impl RetryAfter {
    /// For a VM we do not know yet: its configuration is usually milliseconds away.
    pub const UNKNOWN_VM: Self = Self(1);
    /// For everything else.
    pub const DEFAULT: Self = Self(2);

    /// At least `wait`, in whole seconds, never zero.
    #[must_use]
    pub fn at_least(wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Self(u32::try_from(seconds.max(1)).unwrap_or(u32::MAX))
    }

    /// The seconds.
    #[must_use]
    pub fn seconds(self) -> u32 {
        self.0
    }
}

/// The shape of an error answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed(&'static str),
    Conflict,
    PayloadTooLarge,
    TooManyRequests(RetryAfter),
    Internal,
    Unavailable(RetryAfter),
}

/// An error answer in the making: status, outcome, reason.
#[derive(Debug)]
pub struct Fault {
    kind: Kind,
    outcome: Outcome,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Fault {
    fn new(kind: Kind, outcome: Outcome) -> Self {
        Self { kind, outcome, source: None }
    }

    /// 404 with an empty body (a body makes systemd-imdsd give up for good).
    #[must_use]
    pub fn not_found() -> Self {
        Self::new(Kind::NotFound, Outcome::NotFound)
    }

    /// 404 to a VM for which there is nothing at all, for the reason that `outcome` names.
    #[must_use]
    pub fn not_served(outcome: Outcome) -> Self {
        Self::new(Kind::NotFound, outcome)
    }

    /// 400.
    #[must_use]
    pub fn bad_request() -> Self {
        Self::new(Kind::BadRequest, Outcome::BadRequest)
    }

    /// 401 for the reason that `outcome` names. Like EC2's without `WWW-Authenticate`: no scheme of HTTP's is meant, and
    /// clients know what to do.
    #[must_use]
    pub fn unauthorized(outcome: Outcome) -> Self {
        Self::new(Kind::Unauthorized, outcome)
    }

    /// 403 for the reason that `outcome` names.
    #[must_use]
    pub fn forbidden(outcome: Outcome) -> Self {
        Self::new(Kind::Forbidden, outcome)
    }

    /// 405; `allow` is the value of the `Allow` header.
    #[must_use]
    pub fn method_not_allowed(allow: &'static str) -> Self {
        Self::new(Kind::MethodNotAllowed(allow), Outcome::MethodNotAllowed)
    }

    /// 409 for the reason that `outcome` names.
    #[must_use]
    pub fn conflict(outcome: Outcome) -> Self {
        Self::new(Kind::Conflict, outcome)
    }

    /// 413.
    #[must_use]
    pub fn body_too_large() -> Self {
        Self::new(Kind::PayloadTooLarge, Outcome::BodyTooLarge)
    }

    /// 429 for the reason that `outcome` names: ask again, and less often.
    #[must_use]
    pub fn too_many_requests(outcome: Outcome, retry_after: RetryAfter) -> Self {
        Self::new(Kind::TooManyRequests(retry_after), outcome)
    }

    /// 503: not now, ask again.
    #[must_use]
    pub fn unavailable(outcome: Outcome, retry_after: RetryAfter) -> Self {
        Self::new(Kind::Unavailable(retry_after), outcome)
    }

    /// 500 after a panic.
    #[must_use]
    pub fn panic() -> Self {
        Self::new(Kind::Internal, Outcome::Panic)
    }

    /// Adds the reason for the log. The guest never sees it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// HTTP status code (RFC 9110), 4xx or 5xx.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self.kind {
            Kind::BadRequest => 400,
            Kind::Unauthorized => 401,
            Kind::Forbidden => 403,
            Kind::NotFound => 404,
            Kind::MethodNotAllowed(_) => 405,
            Kind::Conflict => 409,
            Kind::PayloadTooLarge => 413,
            Kind::TooManyRequests(_) => 429,
            Kind::Internal => 500,
            Kind::Unavailable(_) => 503,
        }
    }

    /// Which word the log, the metric and the answer carry.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// How long the client should wait, when waiting helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<RetryAfter> {
        match self.kind {
            Kind::Unavailable(after) | Kind::TooManyRequests(after) => Some(after),
            _ => None,
        }
    }

    /// The methods the path does know, for a 405.
    #[must_use]
    pub fn allow(&self) -> Option<&'static str> {
        match self.kind {
            Kind::MethodNotAllowed(allow) => Some(allow),
            _ => None,
        }
    }

    /// The guest's line: the outcome and nothing else, within the first 32 bytes. Empty for 404.
    #[must_use]
    pub fn text(&self) -> &'static str {
        match self.kind {
            Kind::NotFound => "",
            _ => self.outcome.word(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.outcome, self.status())
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_its_status_and_wait() {
        for (fault, status, retry, text) in [
            (Fault::not_found(), 404, None, ""),
            (Fault::bad_request(), 400, None, "bad_request"),
            (Fault::unauthorized(Outcome::TokenRequired), 401, None, "token_required"),
            (Fault::forbidden(Outcome::Forwarded), 403, None, "forwarded"),
            (Fault::method_not_allowed("GET, HEAD"), 405, None, "method_not_allowed"),
            (Fault::conflict(Outcome::PasswordSet), 409, None, "password_set"),
            (Fault::body_too_large(), 413, None, "body_too_large"),
            (Fault::unavailable(Outcome::RateLimited, RetryAfter::DEFAULT), 503, Some(2), "rate_limited"),
            (Fault::too_many_requests(Outcome::TokenRateLimited, RetryAfter(1)), 429, Some(1), "token_rate_limited"),
            (Fault::not_served(Outcome::VmExcluded), 404, None, ""),
            (Fault::unavailable(Outcome::VmUnknown, RetryAfter::UNKNOWN_VM), 503, Some(1), "vm_unknown"),
            (Fault::panic(), 500, None, "panic"),
        ] {
            assert_eq!((fault.status(), fault.outcome().status()), (status, status));
            assert_eq!(fault.retry_after().map(RetryAfter::seconds), retry);
            assert_eq!(fault.text(), text);
        }
    }

    #[test]
    fn every_word_is_distinct_and_fits_the_first_bytes_of_a_body() {
        let mut words: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.word()).collect();
        words.sort_unstable();
        let count = words.len();
        words.dedup();
        assert_eq!(words.len(), count);
        assert!(words.iter().all(|word| word.len() <= 32));
    }

    #[test]
    fn a_wait_is_never_zero() {
        assert_eq!(RetryAfter::at_least(Duration::ZERO).seconds(), 1);
        assert_eq!(RetryAfter::at_least(Duration::from_millis(1001)).seconds(), 2);
    }
}
