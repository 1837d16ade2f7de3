//! Run by `scripts/fuzz.sh`, or `cargo +nightly fuzz run update_reader`. What it asserts stands at
//! its body in crates/library/orbit.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| orbit::fuzzing::update_reader(data));
