//! The daemon and its command line: reads the configuration, builds the stack, runs, stops.
//!
//! Everything that knows something lives in another room; here it is put together. [`app::stack`] is the one place
//! that says what happens to a request and in which order.
#![forbid(unsafe_code)]

pub mod app;
pub mod cli;
mod cmd;
pub mod config;
#[doc(hidden)]
pub mod steps;
