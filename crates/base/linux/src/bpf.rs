//! Programs for the kernel to run, loaded as they are: without maps, types or relocations.

use crate::check;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// From <linux/bpf.h>.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_PROG_LOAD: libc::c_long = 5;

/// An instruction, as the kernel has it.
pub type Instruction = [u8; 8];

/// A program that does nothing: r0 = 0; exit.
pub const NOTHING: [Instruction; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];

/// A part of `union bpf_attr`: to load a program. The kernel takes zeros for the rest.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}
const _: () = assert!(size_of::<Load>() == 72);

/// Loads a program of this kind, under GPL, for this way of attaching it (0 where the kind has one
/// only). What it names by descriptors has to be open. An error of kind `PermissionDenied` is also
/// how the kernel rejects a program that it cannot follow.
pub fn load(kind: u32, attach_type: u32, instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let attr = Load {
        kind,
        count: u32::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: [0; 16],
        interface: 0,
        attach_type,
    };
    // SAFETY: the structure is as long as said; what it points to outlives the call and is only
    // read.
    unsafe { call(BPF_PROG_LOAD, &attr) }
}

/// Whether this process may use `bpf(2)`: makes the smallest map. A container may grant the
/// capability and still forbid the call.
///
/// # Errors
/// `EPERM`, `ENOSYS`.
pub fn may_make_maps() -> io::Result<()> {
    // BPF_MAP_CREATE: an array (type 2) with one entry of 8 bytes under a key of 4.
    let attr: [u32; 18] = [2, 4, 8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the command takes such an array and follows no pointer in it.
    unsafe { call(BPF_MAP_CREATE, &attr) }.map(drop)
}

/// Attaches a program of kind raw tracepoint to a tracepoint by its name, until what is returned is
/// closed.
///
/// # Errors
/// `ENOENT` for a name that the kernel does not know, `EINVAL` for a program of another kind,
/// `EPERM`.
pub fn attach_raw_tracepoint(program: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
    // The name's address, and the program in the low half of the second word.
    let attr: [u64; 2] = [name.as_ptr() as u64, program.as_raw_fd() as u64];
    // SAFETY: the command takes these two words; the name outlives the call and is only read.
    unsafe { call(RAW_TRACEPOINT_OPEN, &attr) }
}

/// A command that answers a descriptor.
///
/// # Safety
/// `T` is laid out as the command has it, and what it points to outlives the call.
pub(crate) unsafe fn call<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads as many bytes as said; the rest is the caller's promise.
    let fd = check(unsafe { libc::syscall(libc::SYS_bpf, command, attr as *const T, size_of::<T>()) })?;
    // SAFETY: a new descriptor that nothing else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
