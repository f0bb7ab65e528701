//! EC2's session tokens (IMDSv2): for how long one is asked, what stands in it, and for whom it is good.
//!
//! In come a VM, seconds and bytes that were opened; out go a [`Pass`] and the reason why one is not good. A token is the
//! text of an [`Envelope`]: the node that sealed it, readable, and the sealed pass. Nothing is remembered of it anywhere.
//! Refused: a second spelling of the same bytes, and a pass of another VM, another UUID or another time. Pure: sealing is
//! for whoever has keys, and the time comes from without.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::vm::{Vm, VmId};
use crate::words;

/// Where a session begins, with PUT.
pub const PATH: &str = "/latest/api/token";

/// The header of the seconds that it shall last, in the request and the answer.
pub const TTL_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";

/// The header that a token is shown in.
pub const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";

/// How long a session may last that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl(u32);

impl Ttl {
    /// Six hours, EC2's own bound, in seconds.
    pub const MAX: u32 = 21_600;

    /// Reads whole seconds: decimal digits, 1 to [`Ttl::MAX`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let seconds = text.parse().ok().filter(|_| digits)?;
        (1..=Self::MAX).contains(&seconds).then_some(Self(seconds))
    }

    /// The seconds.
    #[must_use]
    pub fn seconds(self) -> u32 {
        self.0
    }
}

words! {
    /// What a request of EC2's says of a session.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum TokenUse {
        /// Nothing: it is asked in the way of IMDSv1.
        None => "none",
        /// It has a token that is good.
        Valid => "valid",
        /// It has one that is not.
        Invalid => "invalid",
    }
}

/// Why a token is not good. The texts are for the operator; the guest never sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Several, or not what any node makes.
    #[error("the session token is none")]
    Malformed,
    /// Of a node whose key is not known here.
    #[error("the session token is of a node whose key is not known")]
    UnknownNode,
    /// It was not sealed with that node's key as it is now, or not like this.
    #[error("the session token does not open with its node's key")]
    Altered,
    /// Of another VM, or of this one when it had another UUID.
    #[error("the session token is another VM's")]
    Foreign,
    /// Its time is over.
    #[error("the session token has expired")]
    Expired,
    /// It would last longer than any: a clock was set back since.
    #[error("the session token is of a time that is not yet")]
    FromLater,
}

/// Seconds by which the clocks of two nodes may differ.
const SKEW: u64 = 300;

/// Bytes of an identity: an UUID has 36.
const MAX_IDENTITY: usize = 64;

/// What is sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    vmid: VmId,
    /// The UUID, or what stands for it.
    identity: String,
    /// Seconds since 1970.
    expires: u64,
}

impl Pass {
    /// One for `vm`, from `now` (seconds since 1970) on.
    #[must_use]
    pub fn new(vm: &Vm, ttl: Ttl, now: u64) -> Self {
        Self { vmid: vm.vmid, identity: vm.instance_id(), expires: now.saturating_add(ttl.0.into()) }
    }

    /// Whether it is good for `vm` at `now`. What a clock that was set back makes of an expired one is bounded twice: it
    /// cannot come back for longer than any lasts, nor from further than that.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, vm: &Vm, now: u64) -> Result<(), Unfit> {
        let latest = now.saturating_add(u64::from(Ttl::MAX) + SKEW);
        match self {
            _ if self.vmid != vm.vmid || self.identity != vm.instance_id() => Err(Unfit::Foreign),
            _ if self.expires <= now => Err(Unfit::Expired),
            _ if self.expires > latest => Err(Unfit::FromLater),
            _ => Ok(()),
        }
    }

    /// Eight bytes of time, four of VMID, the identity.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.expires.to_be_bytes()[..], &self.vmid.get().to_be_bytes(), self.identity.as_bytes()].concat()
    }

    /// The reverse.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (expires, rest) = bytes.split_first_chunk()?;
        let (vmid, identity) = rest.split_first_chunk()?;
        let identity = str::from_utf8(identity).ok().filter(|text| text.len() <= MAX_IDENTITY)?;
        Some(Self {
            vmid: VmId::new(u32::from_be_bytes(*vmid))?,
            identity: identity.to_owned(),
            expires: u64::from_be_bytes(*expires),
        })
    }
}

/// The form of what follows, should there ever be another.
const FORM: u8 = 1;

/// Bytes of a node's name: a label of a host name (RFC 1035 §2.3.4).
const MAX_NODE: usize = 63;

/// Characters of the longest token: name, identity, and what sealing adds stay far below. Clients take 4 KiB.
const MAX_TEXT: usize = 512;

/// A sealed pass and whose seal it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The node.
    pub node: String,
    /// Its seal's bytes.
    pub sealed: Vec<u8>,
}

impl Envelope {
    /// What the seal covers besides the pass: the bytes in front of it. `None`: a name that no node has.
    #[must_use]
    pub fn head(node: &str) -> Option<Vec<u8>> {
        let length = u8::try_from(node.len()).ok().filter(|_| (1..=MAX_NODE).contains(&node.len()))?;
        Some([&[FORM, length], node.as_bytes()].concat())
    }

    /// Reads a token. One text is one envelope: unused bits of the last character must be 0, and nothing may follow.
    #[must_use]
    pub fn parse(token: &[u8]) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(Some(token).filter(|token| token.len() <= MAX_TEXT)?).ok()?;
        let ([form, length], rest) = bytes.split_first_chunk()?;
        let (node, sealed) = rest.split_at_checked(usize::from(*length))?;
        let node = str::from_utf8(node).ok().filter(|_| *form == FORM && (1..=MAX_NODE).contains(&node.len()))?;
        Some(Self { node: node.to_owned(), sealed: sealed.to_owned() })
    }

    /// The token: letters, digits, `-` and `_`. `None`: a name that no node has.
    #[must_use]
    pub fn token(&self) -> Option<String> {
        Some(BASE64_URL_SAFE_NO_PAD.encode([Self::head(&self.node)?, self.sealed.clone()].concat()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::conf;

    const UUID: &str = "smbios1: uuid=2C8C7C76-A26C-4EB7-B04C-BF52BC095B81\n";

    fn vm(number: u32, config: &str) -> Vm {
        conf::parse(VmId::new(number).unwrap(), config.as_bytes()).vm
    }

    #[test]
    fn a_session_lasts_as_long_as_ec2s() {
        for (text, expected) in [
            ("1", Some(1)),
            ("21600", Some(21_600)),
            ("060", Some(60)),
            ("0", None),
            ("21601", None),
            ("4294967297", None),
            ("", None),
            ("+60", None),
            ("-1", None),
            ("60 ", None),
            ("6e1", None),
            ("60.0", None),
            ("\u{0661}", None),
        ] {
            assert_eq!(Ttl::parse(text).map(Ttl::seconds), expected, "{text:?}");
        }
    }

    #[test]
    fn a_pass_is_one_vms_and_one_times() {
        let own = vm(106, UUID);
        let pass = Pass::new(&own, Ttl::parse("60").unwrap(), 1000);
        let lower = UUID.to_ascii_lowercase();
        for (vm, now, expected) in [
            (vm(106, UUID), 1000, Ok(())),
            (vm(106, UUID), 1059, Ok(())),
            (vm(106, &lower), 1059, Ok(())),
            (vm(106, UUID), 1060, Err(Unfit::Expired)),
            (vm(106, UUID), u64::MAX, Err(Unfit::Expired)),
            (vm(107, UUID), 1000, Err(Unfit::Foreign)),
            (vm(106, "name: x\n"), 1000, Err(Unfit::Foreign)),
            (vm(106, &UUID.replace("81", "82")), 1000, Err(Unfit::Foreign)),
        ] {
            assert_eq!(pass.admits(&vm, now), expected, "{} {:?} {now}", vm.vmid, vm.uuid);
        }
        // Clocks that were set back by less than that, and by more.
        let longest = Pass::new(&own, Ttl::parse("21600").unwrap(), 100_000);
        assert_eq!(longest.admits(&own, 100_000 - SKEW), Ok(()));
        assert_eq!(longest.admits(&own, 100_000 - SKEW - 1), Err(Unfit::FromLater));
    }

    #[test]
    fn a_token_is_short_and_plain() {
        let vm = vm(999_999_999, UUID);
        let pass = Pass::new(&vm, Ttl::parse("60").unwrap(), u64::MAX);
        // As much as AES-GCM adds.
        let sealed = [pass.to_bytes(), vec![0xff; 12 + 16]].concat();
        let token = Envelope { node: "n".repeat(MAX_NODE), sealed }.token().unwrap();
        assert!(token.len() < MAX_TEXT && token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
        for node in [String::new(), "n".repeat(MAX_NODE + 1)] {
            assert_eq!(Envelope { node, sealed: Vec::new() }.token(), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(node in "[a-z0-9-]{1,63}", sealed: Vec<u8>, number in 100u32..1_000_000_000, expires: u64) {
            let envelope = Envelope { node, sealed };
            let token = envelope.token().unwrap();
            prop_assert_eq!(Envelope::parse(token.as_bytes()), Some(envelope));
            let pass = Pass { vmid: VmId::new(number).unwrap(), identity: "x".into(), expires };
            prop_assert_eq!(Pass::from_bytes(&pass.to_bytes()), Some(pass));
        }

        #[test]
        fn one_envelope_has_one_spelling(bytes: Vec<u8>) {
            for text in [bytes.clone(), BASE64_URL_SAFE_NO_PAD.encode(&bytes).into_bytes()] {
                if let Some(envelope) = Envelope::parse(&text) {
                    prop_assert_eq!(envelope.token().map(String::into_bytes), Some(text));
                }
            }
            if let Some(pass) = Pass::from_bytes(&bytes) {
                prop_assert_eq!(pass.to_bytes(), bytes);
            }
        }
    }
}
