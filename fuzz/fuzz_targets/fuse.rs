//! Requests of a file system: libFuzzer's entry.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bodies::fuse(input));
