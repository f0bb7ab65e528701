//! Any bytes for `properties::token`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::token(bytes));
