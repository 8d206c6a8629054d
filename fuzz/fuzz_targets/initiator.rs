//! Whole sessions against our initiator: libFuzzer's entry.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bodies::initiator(input));
