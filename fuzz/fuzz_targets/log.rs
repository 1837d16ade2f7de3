//! `cargo +nightly fuzz run log`: see the target's body in crates/orbit for what it asserts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| orbit::fuzzing::log(data));
