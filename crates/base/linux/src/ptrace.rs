//! Tracing threads: stopping them, seeing their calls, and letting them go.
//!
//! The kernel ties a tracer's hold to the thread that asked for it: all requests about a thread
//! come from that one, and when it ends everything it held continues. All but [`seize`] and
//! [`interrupt`] are about a thread that has stopped; of one that is gone or runs they fail with
//! `ESRCH`. Registers, and with them [`begin_again`] and [`refuse`], are known on x86-64 only.

use std::io;

use crate::{Support, process};

#[cfg(target_arch = "x86_64")]
pub mod state;

/// The signal that a stop at a system call shows, where [`CALLS_MARKED`] was asked for.
pub const CALL: i32 = libc::SIGTRAP | 0x80;
/// For [`seize`]: stops at calls show [`CALL`].
pub const CALLS_MARKED: i32 = libc::PTRACE_O_TRACESYSGOOD;
/// For [`seize`]: threads that the thread makes are traced too; a process that it makes by `clone`
/// stops and is reported as well.
pub const CLONES: i32 = libc::PTRACE_O_TRACECLONE;

fn ask(request: libc::c_uint, tid: i32, data: usize) -> io::Result<()> {
    // SAFETY: the requests used here take a number, or the address of a value that the caller keeps
    // for the call and that is as large as they say.
    match unsafe { libc::ptrace(request, tid, 0usize, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Becomes a thread's tracer, without stopping it. `options`: [`CALLS_MARKED`] and [`CLONES`].
///
/// # Errors
/// `EPERM` without the right to trace it, or where it is traced already; `ESRCH` when it has ended.
pub fn seize(tid: i32, options: i32) -> io::Result<()> {
    ask(libc::PTRACE_SEIZE, tid, options as usize)
}

/// Lets any process of the same user trace the calling one, where Yama restricts that.
/// Async-signal-safe.
///
/// # Errors
/// `EINVAL` where the kernel has no Yama.
pub fn allow_all_tracers() -> io::Result<()> {
    // SAFETY: integers only.
    crate::check_int(unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) }).map(|_| ())
}

/// Has it stop: its next stop is this one, or another that comes first.
///
/// # Errors
/// `ESRCH` when it has ended or is not traced by this thread.
pub fn interrupt(tid: i32) -> io::Result<()> {
    ask(libc::PTRACE_INTERRUPT, tid, 0)
}

/// Has it continue, with a signal unless that is 0.
///
/// # Errors
/// See the module's head; `EIO` for a signal that there is not.
pub fn go_on(tid: i32, signal: i32) -> io::Result<()> {
    ask(libc::PTRACE_CONT, tid, signal as usize)
}

/// The same, up to the next call that it makes or completes.
///
/// # Errors
/// As [`go_on`].
pub fn go_to_call(tid: i32, signal: i32) -> io::Result<()> {
    ask(libc::PTRACE_SYSCALL, tid, signal as usize)
}

/// Leaves a thread that `SIGSTOP` or its like has stopped as it is, until `SIGCONT`.
///
/// # Errors
/// See the module's head.
pub fn listen(tid: i32) -> io::Result<()> {
    ask(libc::PTRACE_LISTEN, tid, 0)
}

/// Lets it go, with a signal unless that is 0.
///
/// # Errors
/// See the module's head.
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    ask(libc::PTRACE_DETACH, tid, signal as usize)
}

/// The number of the thread or process that it just made.
///
/// # Errors
/// See the module's head.
pub fn made(tid: i32) -> io::Result<i32> {
    let mut child: libc::c_ulong = 0;
    ask(libc::PTRACE_GETEVENTMSG, tid, (&raw mut child) as usize)?;
    Ok(child as i32)
}

/// The signal that it has stopped before.
///
/// # Errors
/// See the module's head; `EINVAL` where it stopped for another reason.
pub fn signal(tid: i32) -> io::Result<libc::siginfo_t> {
    // SAFETY: an all-zero siginfo is a value; the kernel fills it.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    ask(libc::PTRACE_GETSIGINFO, tid, (&raw mut info) as usize)?;
    Ok(info)
}

/// A system call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// How it is made: `AUDIT_ARCH_X86_64` and its like; another one has numbers of its own.
    pub machine: u32,
    /// Its number.
    pub number: i64,
    /// What is passed.
    pub arguments: [u64; 6],
}

/// The call that a thread stopped at is about to make; nothing at the end of one, and where it
/// stopped for another reason.
pub fn call(tid: i32) -> Option<Call> {
    const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
    const ENTRY: u8 = 1;
    let mut info = [0u64; 11];
    // SAFETY: the buffer is as long as said; the kernel fills no more than that.
    let n = unsafe { libc::ptrace(GET_SYSCALL_INFO, tid, size_of_val(&info), info.as_mut_ptr()) };
    // Kind and machine, then where it is, its stack, the number, and six arguments.
    let arguments = [info[4], info[5], info[6], info[7], info[8], info[9]];
    (n >= 80 && info[0].to_ne_bytes()[0] == ENTRY).then_some(Call {
        machine: (info[0] >> 32) as u32,
        number: info[3] as i64,
        arguments,
    })
}

/// Its registers.
///
/// # Errors
/// See the module's head.
#[cfg(target_arch = "x86_64")]
pub fn registers(tid: i32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero bytes are a value of this struct of integers; the kernel fills it.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ask(libc::PTRACE_GETREGS, tid, (&raw mut registers) as usize)?;
    Ok(registers)
}

/// Gives it these.
///
/// # Errors
/// See the module's head.
#[cfg(target_arch = "x86_64")]
pub fn set_registers(tid: i32, registers: &libc::user_regs_struct) -> io::Result<()> {
    ask(libc::PTRACE_SETREGS, tid, (&raw const *registers) as usize)
}

/// Has it run one instruction.
///
/// # Errors
/// See the module's head.
#[cfg(target_arch = "x86_64")]
pub fn step(tid: i32) -> io::Result<()> {
    ask(libc::PTRACE_SINGLESTEP, tid, 0)
}

/// The call that it is about to make is not made: it fails with this `errno`.
///
/// # Errors
/// See the module's head.
#[cfg(target_arch = "x86_64")]
pub fn refuse(tid: i32, errno: i32) -> io::Result<()> {
    let mut registers = registers(tid)?;
    registers.orig_rax = u64::MAX;
    registers.rax = i64::from(-errno) as u64;
    set_registers(tid, &registers)
}

/// Calls that give up with EINTR when a thread is stopped though no signal has come, as far as it
/// changes nothing to make them once more.
#[cfg(target_arch = "x86_64")]
const GIVE_UP: [i64; 20] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
];

/// The `libc` crate lacks its number.
#[cfg(target_arch = "x86_64")]
const SYS_IO_PGETEVENTS: i64 = 333;

/// To be called while a thread is stopped by [`interrupt`]: if the stop has ended a call of its
/// early, that call is made again when the thread continues, unless the handler of a signal runs
/// first. A time limit of the call begins anew.
#[cfg(target_arch = "x86_64")]
pub fn begin_again(tid: i32) {
    let Ok(mut registers) = registers(tid) else { return };
    if have_begin_again(&mut registers) {
        // A thread that is gone needs no answer.
        let _ = set_registers(tid, &registers);
    }
}

/// The same on registers read already; true if they changed and are to be set.
#[cfg(target_arch = "x86_64")]
pub fn have_begin_again(registers: &mut libc::user_regs_struct) -> bool {
    const EINTR: i64 = -(libc::EINTR as i64);
    // What a call answers inside the kernel so that it is made again if no handler runs.
    const ERESTARTNOHAND: i64 = -514;
    let ended_early = GIVE_UP.contains(&(registers.orig_rax as i64)) && registers.rax as i64 == EINTR;
    if ended_early {
        registers.rax = ERESTARTNOHAND as u64;
    }
    ended_early
}

/// Becomes the tracer of a child that sleeps, and ends it.
pub fn probe() -> Support {
    // SAFETY: the child sleeps, and calls nothing that allocates or locks.
    let tried = unsafe { process::raw_fork(0) }.and_then(|child| {
        let Some(child) = child else {
            let _ = process::set_parent_death_signal(libc::SIGKILL);
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        };
        let seized = seize(child.pid, 0);
        // SAFETY: an own child that nothing else reaps, so the number is its own until it is waited
        // for.
        unsafe {
            libc::kill(child.pid, libc::SIGKILL);
            libc::waitpid(child.pid, std::ptr::null_mut(), libc::__WALL);
        }
        seized
    });
    Support::from_result("ptrace", tried, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// A child that makes calls until it is killed, ended when this is dropped.
    struct Guest(i32);

    impl Guest {
        fn new(mut does: impl FnMut()) -> Guest {
            // SAFETY: the child makes system calls only.
            match unsafe { process::raw_fork(0) }.expect("a child") {
                Some(child) => Guest(child.pid),
                None => {
                    let _ = process::set_parent_death_signal(libc::SIGKILL);
                    loop {
                        does();
                    }
                }
            }
        }

        /// Its next stop, as waitpid reports it.
        fn stops(&self) -> i32 {
            let mut status = 0;
            // SAFETY: an own child, and a live local.
            assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) }, self.0);
            assert!(libc::WIFSTOPPED(status), "{status:#x}");
            status
        }
    }

    impl Drop for Guest {
        fn drop(&mut self) {
            // SAFETY: as in `probe`.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL);
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_call_is_seen_refused_and_made() {
        if let Support::No(why) = probe() {
            println!("SKIP: needs {why}");
            return;
        }
        let page = crate::memfd::create("answer", 4096, false)
            .and_then(|fd| crate::map::Mapping::shared(fd.as_fd(), 4096, true, false))
            .expect("a page");
        // SAFETY: a page of zeros that both have, a word of which the child writes.
        let answer = unsafe { &*page.as_ptr().cast::<std::sync::atomic::AtomicI64>() };
        let guest = Guest::new(|| {
            // SAFETY: a call without pointers.
            answer.store(unsafe { libc::syscall(libc::SYS_getpriority, 7, 8, 9) }, std::sync::atomic::Ordering::SeqCst);
        });
        seize(guest.0, CALLS_MARKED).expect("traced");
        interrupt(guest.0).expect("asked");
        assert_eq!(guest.stops() >> 16, libc::PTRACE_EVENT_STOP);
        let next = || loop {
            go_to_call(guest.0, 0).expect("goes on");
            assert_eq!(libc::WSTOPSIG(guest.stops()), CALL);
            // Its first call may be that of its beginning.
            if let Some(call) = call(guest.0).filter(|call| call.number == libc::SYS_getpriority) {
                assert_eq!(call.arguments[..3], [7, 8, 9]);
                return;
            }
        };
        next();
        // Made: rejected by the kernel itself, for there is no such class of priorities.
        next();
        assert_eq!(answer.load(std::sync::atomic::Ordering::SeqCst), -1);
        refuse(guest.0, -5).expect("refused with what is no error: it answers 5");
        next();
        assert_eq!(answer.load(std::sync::atomic::Ordering::SeqCst), 5);
        detach(guest.0, 0).expect("free");
        assert!(go_on(guest.0, 0).is_err(), "not traced any more");
    }
}
