//! All outgoing IO: what this node has to fetch before it can answer.
//!
//! Today that is `/etc/pve`, from which comes an [`Inventory`](pve::Inventory) that requests read from memory, the
//! nodes' [keys](keys::NodeKeys), the node's own [`Resolver`](resolver::Resolver), and the [secret store](openbao). Nothing
//! here knows what a guest has asked for.
#![forbid(unsafe_code)]

mod bounded;
pub mod clock;
pub mod keys;
pub mod openbao;
pub mod pve;
pub mod resolver;
pub mod secrets;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod turns;
