#![no_main]

#[path = "../../crates/tunnel/tests/gateway/fuzz.rs"]
mod fuzz;
#[path = "../../crates/tunnel/tests/gateway/mod.rs"]
mod gateway;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::tunnel(bytes));
