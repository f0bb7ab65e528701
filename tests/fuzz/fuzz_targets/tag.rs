//! Any bytes for `properties::tag`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::tag(bytes));
