//! Any bytes for `properties::path`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::path(bytes));
