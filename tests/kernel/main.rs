//! The kernel tier: the daemon on real interfaces, real XDP and real guests' TCP, in namespaces. Needs root.
//!
//! Run one at a time (`--test-threads=1`): all nodes use the same names, so that each sweeps what a killed one left.
#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the kernel's time is not tokio's, it cannot be paused"
)]

#[path = "../world/mod.rs"]
mod world;

mod addresses;
mod again;
mod churn;
mod commands;
mod control;
mod devices;
mod floods;
mod guard;
mod hops;
mod identity;
mod kills;
mod links;
mod password;
mod pins;
mod policy;
mod publication;
mod pve;
mod qdisc;
mod rebuild;
mod refusals;
mod serving;
mod thousand;
mod upgrade;
mod window;
