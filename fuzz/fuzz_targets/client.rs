#![no_main]

#[path = "../../crates/daemon/tests/client/mod.rs"]
mod client;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| client::client(bytes));
