//! Probes of many places of a file at a time, in one process, each with a number that the program gets (a cookie).
//!
//! A probe that is attached by `perf_event_open` goes in two steps: first its program, then, a tenth of a second later, the breakpoint, and until then
//! the probed program pays for hits that nobody counts. These go in one. Kernels have them since 6.6; before 6.10 those for a process saw its
//! first thread only, which nothing but a try in a program with threads would show: so what is asked for here is what came later, in 6.13.

use crate::Support;
use crate::bpf::{self, Instruction};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

// From <linux/bpf.h>.
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_TRACE_UPROBE_SESSION: u32 = 57;

/// Bytes of an instruction, at most.
const LONGEST: usize = 16;

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

/// Loads a program for [`attach`]; see [`bpf::load`].
pub fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    bpf::load(BPF_PROG_TYPE_KPROBE, BPF_TRACE_UPROBE_MULTI, instructions)
}

/// Attaches a program to places of a file, each given by its offset in bytes and its cookie, wherever this process has mapped it. The probes go when what
/// is returned is closed: out of the process at once, while the call takes some tenths of a second.
pub fn attach(program: BorrowedFd<'_>, file: &Path, places: &[(u64, u64)], pid: i32) -> io::Result<OwnedFd> {
    // What the kernel does not find in its cache it reads under a lock of its own, of which some file systems complain (ext4 on 6.18, once). A file
    // that cannot be read here is for the kernel to refuse.
    if let Ok(read) = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file) {
        for (offset, _) in places {
            let _ = read.read_at(&mut [0; LONGEST], *offset);
        }
    }
    attach_as(BPF_TRACE_UPROBE_MULTI, program, file, places, pid)
}

fn attach_as(
    attach_type: u32,
    program: BorrowedFd<'_>,
    file: &Path,
    places: &[(u64, u64)],
    pid: i32,
) -> io::Result<OwnedFd> {
    let path = CString::new(file.as_os_str().as_bytes())?;
    let (offsets, cookies): (Vec<u64>, Vec<u64>) = places.iter().copied().unzip();
    let attr = Attach {
        program: program.as_raw_fd() as u32,
        target: 0,
        attach_type,
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        counters: 0,
        cookies: cookies.as_ptr() as u64,
        count: u32::try_from(places.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        more_flags: 0,
        pid: u32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?,
        padding: 0,
    };
    // SAFETY: as above; both lists are as long as said.
    unsafe { bpf::call(BPF_LINK_CREATE, &attr) }
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
    // Older kernels load it all the same; only those that know it come to look for the file, and there is none.
    let nowhere = Path::new("/dev/null/none");
    match attach_as(BPF_TRACE_UPROBE_SESSION, program.as_fd(), nowhere, &[(0, 0)], std::process::id() as i32) {
        Err(e) if e.raw_os_error() != Some(libc::ENOTDIR) => no(e),
        _ => Support::Yes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let link = attach(program.as_fd(), &file, &[(0, 1), (7, 2)], me);
        let missing = attach(program.as_fd(), Path::new("/none"), &[(0, 1)], me);
        std::fs::remove_file(&file).expect("it is there");
        assert!(link.is_ok(), "{link:?}");
        assert_eq!(missing.expect_err("no file").kind(), io::ErrorKind::NotFound);
        assert!(load(&[[0xff; 8]]).is_err());
    }
}
