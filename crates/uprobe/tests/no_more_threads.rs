//! Where no thread can be made, probes are taken away all the same, and new ones set.

mod common;
use common::{Program, duty, until};

/// One instruction of a filter for system calls.
const fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// From now on no thread of this process can make another one, as in a control group that is full.
fn no_more_threads() {
    let refused = libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32;
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 2, 0, libc::SYS_clone as u32),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, libc::SYS_clone3 as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
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
    let refused = std::thread::Builder::new().spawn(|| ()).map(drop);
    assert!(refused.is_err());
}

#[test]
fn probes_come_and_go() {
    let Some(mut duty) = duty(None) else { return };
    let mut program = Program::start("no-more-threads", "counted.c");
    let first = duty.watch(program.target());
    until("no probes", || duty.tally(first).is_some_and(|t| t.attached));
    no_more_threads();
    duty.leave(first);
    let next = duty.watch(program.target());
    until("no probes any more", || duty.tally(next).is_some_and(|t| t.attached));
    program.run(0, 10);
    assert_eq!(duty.record(next, program.pid()).map(|r| r.entries), Some(10));
}
