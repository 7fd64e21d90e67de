#![no_main]

#[path = "../../crates/daemon/tests/status/mod.rs"]
mod status;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| status::status(bytes));
