//! Pure knowledge, no IO: what a VM is, what its Notes say, which words an outcome may have.
//!
//! In come bytes and names; out go values whose types are proof that they were checked. Nothing here opens a file,
//! reads a clock or knows HTTP: that is what lets fuzzers and property tests live here. Refused: anything that would
//! need to be refused again further in.
#![forbid(unsafe_code)]

pub mod fault;
pub mod notes;
pub mod request;
pub mod tap;
pub mod vm;
