//! Our initiator's disk with a target that answers anything: libFuzzer's entry.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bodies::disk(input));
