//! Where no thread can be made, probes are taken away all the same, and new ones set.

mod common;
use common::{PATIENCE, Program, duty, until};

/// One instruction of a filter for system calls.
const fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// From now on no thread of this process or of one that it makes can have another one made by plain
/// `clone`, as the one that closes probes does; libc's own threads, which have memory of their own
/// (`CLONE_SETTLS`), can.
fn no_more_threads() {
    let refused = libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32;
    let flags = std::mem::offset_of!(libc::seccomp_data, args) as u32;
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 4, libc::SYS_clone as u32),
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, flags),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, (libc::CLONE_THREAD | libc::CLONE_SETTLS) as u32),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::CLONE_THREAD as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain calls; `program` and its filter live until they return.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    std::thread::spawn(|| ()).join().expect("libc's threads are not refused");
    // SAFETY: rejected before the kernel reads anything but the flags.
    let thread = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_THREAD, 0, 0, 0, 0) };
    assert_eq!((thread, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EAGAIN)));
}

#[test]
fn probes_come_and_go() {
    no_more_threads();
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::start("no-more-threads", "counted.c");
    let first = duty.watch(program.target());
    until("no probes", || duty.tally(first).is_some_and(|t| t.attached));
    duty.leave(first);
    assert!(duty.settle(PATIENCE), "probes are left");
    let next = duty.watch(program.target());
    until("no probes any more", || duty.tally(next).is_some_and(|t| t.attached));
    program.run(0, 10);
    assert_eq!(duty.record(next, program.pid()).map(|r| r.entries), Some(10));
}
