//! `cargo +nightly fuzz run update_reader`: see the target's body in crates/orbit for what it asserts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| orbit::fuzzing::update_reader(data));
