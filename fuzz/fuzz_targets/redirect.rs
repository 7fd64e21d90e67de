#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| uxfrm_redirect::fuzz::decode(bytes));
