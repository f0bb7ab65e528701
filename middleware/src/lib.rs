//! What happens to every request, whoever answers it: one tower layer per file.
//!
//! In comes an HTTP request from one guest's interface; out goes an answer, always. From the outside in:
//!
//! | layer | what it does | error below it |
//! |---|---|---|
//! | [`catch`] | a panic becomes an answer and the connection lives | never |
//! | [`telemetry`] | span, access line, metrics, until the body ended | never |
//! | [`classify`] | path → [`Endpoint`](pve_imds_model::request::Endpoint), a closed set | never |
//! | [`rescue`] | [`Fault`](pve_imds_model::fault::Fault) → answer, in the language of the client at hand | `Fault` |
//! | [`tokens`] | a VM's share of identity tokens, per second | `Fault` |
//! | [`limits`] | a guest's share of requests, per second and at once | `Fault` |
//! | [`deadline`] | no request lives for ever | `Fault` |
//! | [`guard`] | proxies, foreign names, methods and bodies that we do not take | `Fault` |
//! | [`identify`] | interface → [`Caller`](pve_imds_model::request::Caller) | `Fault` |
//! | [`emulate`] | → [`Emulation`](pve_imds_model::request::Emulation) | `Fault` |
//!
//! Refused here: knowing any datasource, and looking at what an answer says. One body type goes each way, so that the
//! layers fit together in any order and a test can leave some out.
#![forbid(unsafe_code)]

mod body;
pub mod bounds;
mod budget;
pub mod catch;
pub mod classify;
mod clock;
pub mod deadline;
pub mod emulate;
pub mod guard;
pub mod identify;
pub mod limits;
pub mod rescue;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod tokens;

pub use body::{BoxError, RequestBody, ResponseBody, boxed, empty, full};
