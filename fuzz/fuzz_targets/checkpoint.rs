//! Whatever bytes a checkpoint has, it is whole or an error in words: `cargo +nightly fuzz run checkpoint`.

#![no_main]

#[path = "../../proptests/support/tampered.rs"]
mod tampered;

libfuzzer_sys::fuzz_target!(|input: &[u8]| tampered::check(input));
