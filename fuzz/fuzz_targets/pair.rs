//! Both of our roles on a bad wire: libFuzzer's entry.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bodies::pair(input));
