#![no_main]

#[path = "../../crates/daemon/tests/text/mod.rs"]
mod text;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| text::config(bytes));
