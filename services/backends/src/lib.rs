//! All outgoing IO: what this node has to fetch before it can answer.
//!
//! Today that is `/etc/pve`, from which comes an [`Inventory`](pve::Inventory) that requests read from memory, the
//! nodes' [keys](keys::NodeKeys) and the node's own [`Resolver`](resolver::Resolver). Nothing here runs on a request's path, knows HTTP, or decides what a VM may have.
#![forbid(unsafe_code)]

pub mod clock;
pub mod keys;
pub mod pve;
pub mod resolver;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod turns;
