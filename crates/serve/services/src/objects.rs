//! Shared objects that the build script makes: the library inside the region, and the native
//! services that come with the crate.

/// What services are written against (`include/orbit_service.h`).
pub const HEADER: &str = include_str!("../include/orbit_service.h");
/// The library inside the region (`crates/serve/sandbox-lib`).
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/library.so"));
/// The CPU service manager (`native/cpu.c`).
pub const CPU: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cpu.so"));
/// The memory service manager (`native/memory.c`).
pub const MEMORY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/memory.so"));
/// The manager of descriptors (`native/descriptors.c`).
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.so"));
/// A service for measurements (`native/work.c`).
pub const WORK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/work.so"));
/// The CPU service manager as a service in the kernel (`bpf/cpu.bpf.c`).
pub const CPU_KERNEL: &[u8] = {
    // The loader wants it aligned.
    #[repr(C, align(8))]
    struct Aligned<T: ?Sized>(T);
    static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/cpu.bpf.o")));
    &OBJECT.0
};
