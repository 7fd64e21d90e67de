#![no_main]

#[path = "../../crates/netlink/tests/requests/mod.rs"]
mod requests;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| requests::netlink(bytes));
