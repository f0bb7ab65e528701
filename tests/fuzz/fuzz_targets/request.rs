//! Any bytes for `properties::request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::request(bytes));
