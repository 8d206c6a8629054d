//! The NBD server's machine: libFuzzer's entry.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bodies::nbd(input));
