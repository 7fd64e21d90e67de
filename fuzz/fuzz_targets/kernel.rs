#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| uxfrm_io::fuzz::answers(bytes));
