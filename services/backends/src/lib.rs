//! All outgoing IO: what this node has to fetch before it can answer.
//!
//! Today that is one thing, `/etc/pve`: in come files, out goes an [`Inventory`](pve::Inventory) that requests read from
//! memory. Nothing here runs on a request's path, knows HTTP, or decides what a VM may have.
#![forbid(unsafe_code)]

pub mod pve;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
