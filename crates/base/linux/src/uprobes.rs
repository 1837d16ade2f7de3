//! Probes of many places of a file at a time, in one process, each with a number that the program
//! gets (a cookie).
//!
//! A probe that is attached by `perf_event_open` goes in two steps: first its program, then, a
//! tenth of a second later, the breakpoint, and until then the probed program pays for hits that
//! nobody counts. These go in one; one by one is offered for kernels without. Kernels have them
//! since 6.6; before 6.10 those for a process saw its first thread only, which nothing but a try in
//! a program with threads would show: so what is asked for here is what came later, in 6.13.

use crate::Support;
use crate::bpf::{self, Instruction};
use crate::perf;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

// From <linux/bpf.h>.
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_PERF_EVENT: u32 = 41;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_TRACE_UPROBE_SESSION: u32 = 57;

/// Bytes of an instruction, at most.
const MAX_ENCODED_BYTES: usize = 16;

/// A part of `union bpf_attr`: to attach it.
#[repr(C)]
struct Attach {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    counters: u64,
    cookies: u64,
    count: u32,
    more_flags: u32,
    pid: u32,
    padding: u32,
}
const _: () = assert!(size_of::<Attach>() == 64);

/// The same for one event.
#[repr(C)]
struct AttachOne {
    program: u32,
    event: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}
const _: () = assert!(size_of::<AttachOne>() == 24);

/// Loads a program for [`attach`]; see [`bpf::load`].
pub fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    bpf::load(BPF_PROG_TYPE_KPROBE, BPF_TRACE_UPROBE_MULTI, instructions)
}

/// What the kernel does not find in its cache it reads under a lock of its own while it probes, of
/// which some file systems complain (ext4 on 6.18, once): so it is read before. A file that cannot
/// be read here is for the kernel to reject.
pub fn read_ahead(file: &Path, offsets: impl IntoIterator<Item = u64>) {
    if let Ok(read) = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file) {
        for offset in offsets {
            // As above.
            let _ = read.read_at(&mut [0; MAX_ENCODED_BYTES], offset);
        }
    }
}

/// Attaches a program to places of a file, each given by its offset in bytes and its cookie,
/// wherever this process has mapped it. The probes go when what is returned is closed: out of the
/// process at once, while the call takes some tenths of a second. Async-signal-safe.
///
/// Whoever is killed inside this call, or in that which closes, leaves breakpoints behind.
///
/// # Errors
/// `InvalidInput` where there are not as many cookies as offsets; those of the kernel.
pub fn attach(program: BorrowedFd<'_>, file: &CStr, offsets: &[u64], cookies: &[u64], pid: i32) -> io::Result<OwnedFd> {
    attach_as(BPF_TRACE_UPROBE_MULTI, program, file, (offsets, cookies), pid)
}

fn attach_as(
    attach_type: u32,
    program: BorrowedFd<'_>,
    file: &CStr,
    (offsets, cookies): (&[u64], &[u64]),
    pid: i32,
) -> io::Result<OwnedFd> {
    if offsets.len() != cookies.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let attr = Attach {
        program: program.as_raw_fd() as u32,
        target: 0,
        attach_type,
        flags: 0,
        path: file.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        counters: 0,
        cookies: cookies.as_ptr() as u64,
        count: u32::try_from(offsets.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        more_flags: 0,
        pid: u32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?,
        padding: 0,
    };
    // SAFETY: laid out as the command has it; both lists are as long as said, and live until the
    // call returns.
    unsafe { bpf::call(BPF_LINK_CREATE, &attr) }
}

/// The same for one place, as older kernels have it (5.15), for programs of kind kprobe; `kind` is
/// that of [`kind`]. Async-signal-safe.
///
/// # Errors
/// Those of the kernel.
pub fn attach_one(
    program: BorrowedFd<'_>,
    file: &CStr,
    (offset, cookie): (u64, u64),
    pid: i32,
    kind: u32,
) -> io::Result<OwnedFd> {
    let event = perf::open_uprobe(kind, file, offset, pid)?;
    let attr = AttachOne {
        program: program.as_raw_fd() as u32,
        event: event.as_raw_fd() as u32,
        attach_type: BPF_PERF_EVENT,
        flags: 0,
        cookie,
    };
    // SAFETY: laid out as the command has it. The link keeps the event.
    unsafe { bpf::call(BPF_LINK_CREATE, &attr) }
}

/// The number by which `perf_event_open` knows uprobes.
///
/// # Errors
/// `NotFound` where there are none.
pub fn kind() -> io::Result<u32> {
    let text = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Whether programs can be attached so by this process, and for a process mean all its threads.
pub fn probe() -> Support {
    let no = |e: io::Error| {
        Support::No(format!("uprobes, many at a time: {e}; from Linux 6.13 on, with CAP_BPF and CAP_PERFMON"))
    };
    let program = match bpf::load(BPF_PROG_TYPE_KPROBE, BPF_TRACE_UPROBE_SESSION, &bpf::NOTHING) {
        Ok(program) => program,
        Err(e) => return no(e),
    };
    // Older kernels load it all the same; only those that know it search for the file, and
    // there is none.
    let nowhere = c"/dev/null/none";
    match attach_as(BPF_TRACE_UPROBE_SESSION, program.as_fd(), nowhere, (&[0], &[0]), std::process::id() as i32) {
        Err(e) if e.raw_os_error() != Some(libc::ENOTDIR) => no(e),
        _ => Support::Yes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn a_place_of_this_program_is_probed() {
        if let Support::No(why) = probe() {
            println!("SKIP: needs {why}");
            return;
        }
        let program = load(&bpf::NOTHING).expect("a program");
        let me = std::process::id() as i32;
        // Of a file that nobody has mapped.
        let file = std::env::temp_dir().join(format!("orbit-uprobes-{me}"));
        std::fs::write(&file, [0x90u8; 64]).expect("a file");
        let name = CString::new(file.to_str().expect("text")).expect("no zeros");
        read_ahead(&file, [0, 7]);
        let link = attach(program.as_fd(), &name, &[0, 7], &[1, 2], me);
        let one = bpf::load(BPF_PROG_TYPE_KPROBE, 0, &bpf::NOTHING).expect("a program");
        let one = attach_one(one.as_fd(), &name, (3, 1), me, kind().expect("uprobes"));
        let missing = attach(program.as_fd(), c"/none", &[0], &[1], me);
        let uneven = attach(program.as_fd(), &name, &[0, 7], &[1], me);
        std::fs::remove_file(&file).expect("it is there");
        assert!(link.is_ok() && one.is_ok(), "{link:?}, {one:?}");
        assert_eq!(uneven.expect_err("a cookie is missing").kind(), io::ErrorKind::InvalidInput);
        assert_eq!(missing.expect_err("no file").kind(), io::ErrorKind::NotFound);
        assert!(load(&[[0xff; 8]]).is_err());
    }
}
