//! Pure knowledge, no IO: what a VM is, what its Notes say, which words an outcome may have.
//!
//! In come bytes and names; out go values whose types are proof that they were checked. Nothing here opens a file,
//! reads a clock or knows HTTP: that is what lets fuzzers and property tests live here. Refused: anything that would
//! need to be refused again further in.
#![forbid(unsafe_code)]

mod braces;
mod chain;
pub mod cloud_config;
mod cloudinit;
pub mod conf;
pub mod datacenter;
pub mod endpoint;
pub mod exclude;
pub mod fault;
mod format;
pub mod hidden;
pub mod identity;
pub mod instance;
pub mod ipxe;
pub mod network;
pub mod network_data;
mod nic;
pub mod notes;
mod options;
pub mod policy;
pub mod pools;
mod property;
pub mod request;
pub mod secrets;
pub mod session;
pub mod site;
mod smbios;
pub mod sources;
mod sshkeys;
pub mod tap;
pub mod vendor;
pub mod vm;
mod weight;
mod words;
pub mod yaml;

pub use chain::chain;
