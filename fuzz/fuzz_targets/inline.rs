#![no_main]

#[path = "../../crates/runtime/tests/router/mod.rs"]
mod router;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| router::inline(bytes));
