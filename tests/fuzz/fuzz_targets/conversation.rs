//! Any bytes for `properties::conversation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::conversation(bytes));
