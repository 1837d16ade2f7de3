//! Shared objects that the build script makes: the library inside the region, and the native services that come with the
//! crate.

/// The library inside the region (`crates/sandbox-lib`).
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/library.so"));
/// The CPU service manager (`native/cpu.c`).
pub const CPU: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cpu.so"));
