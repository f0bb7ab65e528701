//! Which frames are ours: four kernel programs and the hand that loads, attaches and pins them.
//!
//! ```text
//! guest ── tap106i0 ──tcx ingress: steer──▶ imds-a ═ veth ═ imds-b ──XDP: funnel──▶ one AF_XDP socket
//!                  ◀─tcx egress: shield──   imds-a ◀─tcx ingress: return──  imds-b ◀── AF_XDP tx
//! ```
//!
//! In come interface names and indexes, and a socket. Out go frames for the metadata address, each with a [`Tag`] that
//! says which [`Slot`] it came from, and counters for everything that was dropped on the way ([`Reason`]). The programs
//! themselves are C, in `c/`; what they let pass and what they drop stands there and in `tests/verdicts`. What a guest
//! may have on its way is bounded by [`Credit`], which the programs and user space keep together.
//!
//! Two lives are kept apart here. [`Pins`] are the links, in a BPF file system: they outlive the daemon, and a guest
//! whose guard is pinned gets silence while nobody serves. A [`Datapath`] is one load of the programs with maps of its
//! own: it dies with the daemon, and its successor's programs are swapped into the same links. Without a daemon, [`Idle`]
//! guards what is born meanwhile.
//!
//! Refused: kernels without tcx (before 6.6), generic XDP (it sees no redirected frame), and links that are not ours.
#![deny(unsafe_code)]

mod attach;
mod borrowed;
mod bucket;
mod census;
mod credit;
mod datapath;
mod error;
mod idle;
mod loaded;
mod lock;
mod mend;
mod netlink;
mod object;
mod offload;
mod pins;
mod reason;
mod standing;
mod step;
mod stray;
#[allow(unsafe_code)]
mod sys;
mod tag;
#[doc(hidden)]
pub mod testing;
mod words;

pub use attach::Swap;
pub use bucket::Bucket;
pub use credit::Credit;
pub use datapath::{Datapath, METADATA_MAC};
pub use error::{AttachError, LoadError, LockError, MapError, PinError};
pub use idle::{Held, Idle};
pub use loaded::Mode;
pub use lock::Lock;
pub use mend::removal;
pub use offload::{disable_tx_checksum, tx_checksum};
pub use pins::{Pinned, Pins, Program, Stray, Swept};
pub use reason::Reason;
pub use standing::Standing;
pub use step::Step;
pub use tag::{Epoch, Generation, Slot, Tag};
