//! The in-memory tier: everything above the wire, for real, over the wire's twin and tokio's paused clock.
//!
//! A guest here is a TCP stack of its own with a hyper client on it. No privileges, no real time: an hour of time-outs
//! takes a millisecond, and a lossy link is the same lossy link in every run.

#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bounds;
mod burdens;
mod commands;
mod properties;
mod secrets;
mod stack;
mod support;
mod tokens;
mod transport;
mod vendor;
