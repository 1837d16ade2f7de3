//! The state of a stopped thread beside its general registers, and the stops themselves.
//!
//! All functions but [`next_stop`] and those that wait are about a thread that the calling thread
//! traces and that has stopped. Of a thread that is gone or runs they fail with `ESRCH`.

use crate::{check, check_int};
use std::io;

/// What [`next_stop`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The thread runs, or its stop was reported already.
    None,
    /// It stands at the begin or the end of a system call (needs [`super::CALLS_MARKED`]).
    Call,
    /// It is about to get this signal.
    Signal(i32),
    /// It stopped because it was interrupted, because it is new, or with its process; the signal is
    /// `SIGTRAP` or the one that stopped the process. From here the kernel still decides whether an
    /// interrupted call is made again.
    Trap(i32),
    /// Another event: one of `libc::PTRACE_EVENT_*`.
    Event(i32),
    /// It has ended. Its status is collected, unless it leads its process: that one belongs to the
    /// parent.
    Ended,
}

/// Returns the thread's next stop without waiting for it. Collects no exit status that a parent may
/// wait for.
///
/// # Errors
/// `ECHILD` when the calling thread does not trace it (any more).
pub fn next_stop(pid: i32, tid: i32) -> io::Result<Stop> {
    let peek = wait(tid, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT)?;
    let Some((code, status)) = peek else { return Ok(Stop::None) };
    if matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
        if tid != pid {
            wait(tid, libc::WEXITED)?;
        }
        return Ok(Stop::Ended);
    }
    // Asked again without the end: a kill may have come in between, and then there is no stop left
    // to collect.
    if wait(tid, libc::WSTOPPED)?.is_none() {
        return Ok(Stop::None);
    }
    let (signal, event) = (status & 0xff, status >> 8);
    Ok(match event {
        0 if signal == super::CALL => Stop::Call,
        0 => Stop::Signal(signal),
        libc::PTRACE_EVENT_STOP => Stop::Trap(signal),
        _ => Stop::Event(event),
    })
}

/// Collects a stop of a thread without waiting for one: the signal, with the event above it; `None`
/// if there is none. Asks for stops alone: the exit status of a thread that ends stays for whoever
/// waits for it.
///
/// # Errors
/// `ECHILD` when the calling thread does not trace it (any more).
pub fn collect_stop(tid: i32) -> io::Result<Option<i32>> {
    Ok(wait(tid, libc::WSTOPPED)?.map(|(_, status)| status))
}

/// Code and status of what there is, if there is something.
fn wait(tid: i32, options: i32) -> io::Result<Option<(i32, i32)>> {
    // SAFETY: an all-zero siginfo is a value, and means that nothing happened.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the struct outlives the call.
    check_int(unsafe {
        libc::waitid(libc::P_PID, tid as libc::id_t, &raw mut info, options | libc::WNOHANG | libc::__WALL)
    })?;
    // SAFETY: waitid filled these fields or left zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some((info.si_code, status)))
}

/// Waits for the next stop of a thread and collects it; returns its status as `waitpid` has it.
///
/// # Errors
/// `ECHILD` when the calling thread does not trace it (any more), `EINTR`.
pub fn wait_status(tid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` is live for the call.
    check_int(unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) }).map(|_| status)
}

/// The same without waiting: `None` if there is no stop.
///
/// # Errors
/// `ECHILD`.
pub fn collect_status(tid: i32) -> io::Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: as above.
    let got = check_int(unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) })?;
    Ok((got == tid).then_some(status))
}

/// The next change of one of the calling thread's own children and traced threads (`tid` -1), or of
/// one of them: its number and its status as `waitpid` has it. With `waits` false: `None` if there
/// is none now.
///
/// # Errors
/// `ECHILD` when there is no such child, `EINTR`.
pub fn next_status(tid: i32, waits: bool) -> io::Result<Option<(i32, i32)>> {
    let flags = libc::__WALL | libc::__WNOTHREAD | if waits { 0 } else { libc::WNOHANG };
    let mut status = 0;
    // SAFETY: `status` is live for the call.
    let found = check_int(unsafe { libc::waitpid(tid, &raw mut status, flags) })?;
    Ok((found != 0).then_some((found, status)))
}

/// Whether a stop or an end of the thread waits to be collected: `Some(true)` for an end. Collects
/// nothing, waits for nothing.
///
/// # Errors
/// `ECHILD`.
pub fn waits_to_be_collected(tid: i32) -> io::Result<Option<bool>> {
    loop {
        match wait(tid, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            found => {
                let ends = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED];
                return found.map(|found| found.map(|(code, _)| ends.contains(&code)));
            }
        }
    }
}

/// Sets what is reported about a thread: see [`super::seize`].
///
/// # Errors
/// See the module's head; `EPERM` for [`SUSPEND_SECCOMP`] without `CAP_SYS_ADMIN`, `EINVAL` for
/// what this kernel lacks.
pub fn set_options(tid: i32, options: i32) -> io::Result<()> {
    super::ask(libc::PTRACE_SETOPTIONS, tid, options as usize)
}

/// For [`super::seize`] and [`set_options`]: the thread's seccomp filters do not apply while it is
/// traced.
pub const SUSPEND_SECCOMP: i32 = libc::PTRACE_O_SUSPEND_SECCOMP;

/// The note type of vector and floating-point registers in the processor's own format.
const NT_X86_XSTATE: usize = 0x202;
/// The largest state: with the tiles of AMX some 11 KiB.
const LARGEST_XSTATE: usize = 16 << 10;

/// Returns the vector and floating-point registers as the processor's `XSAVE` lays them out.
///
/// # Errors
/// See the module's head; `ENODEV` on a processor without `XSAVE`.
pub fn vectors(tid: i32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; LARGEST_XSTATE];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel fills at most the bytes that `part` describes, which outlive the call, and
    // sets its length.
    check(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut part) })?;
    bytes.truncate(part.iov_len);
    Ok(bytes)
}

/// Gives the thread the vector and floating-point registers that [`vectors`] returned.
///
/// # Errors
/// See the module's head; `EINVAL`, `EFAULT` for bytes of another size or layout.
pub fn set_vectors(tid: i32, bytes: &[u8]) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel reads the bytes that `part` describes, which outlive the call.
    check(unsafe { libc::ptrace(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, &raw mut part) }).map(|_| ())
}

/// Returns the thread's blocked signals, bit 0 for signal 1. In a call with a mask of its own
/// (`ppoll`, `sigsuspend`) it is the mask that the call puts back.
///
/// # Errors
/// See the module's head.
pub fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: eight bytes are asked for and written.
    check(unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, tid, size_of::<u64>(), &raw mut mask) })?;
    Ok(mask)
}

/// Sets the thread's blocked signals. `SIGKILL` and `SIGSTOP` stay open.
///
/// # Errors
/// See the module's head.
pub fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    // SAFETY: eight bytes are said and read.
    check(unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, tid, size_of::<u64>(), &raw const mask) }).map(|_| ())
}

/// Where a thread's `struct rseq` is, or `None` if it has registered none.
///
/// # Errors
/// See the module's head; `EIO` before Linux 5.13.
pub fn rseq(tid: i32) -> io::Result<Option<Rseq>> {
    const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
    let mut raw = [0u64; 3];
    // SAFETY: the kernel writes at most the size said, into a live array of it.
    check(unsafe { libc::ptrace(GET_RSEQ_CONFIGURATION, tid, size_of_val(&raw), raw.as_mut_ptr()) })?;
    let (address, size, signature) = (raw[0], raw[1] as u32, (raw[1] >> 32) as u32);
    Ok((address != 0).then_some(Rseq { address, size, signature, flags: raw[2] as u32 }))
}

/// A thread's registration for restartable sequences, as the arguments of `rseq(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rseq {
    /// Address of the thread's `struct rseq`.
    pub address: u64,
    /// Its size in bytes.
    pub size: u32,
    /// The word that stands before each abort handler.
    pub signature: u32,
    /// Flags of the registration.
    pub flags: u32,
}

/// Returns address and length of a thread's list of robust mutexes; `(0, 0)` if it has none. The
/// thread needs not be stopped.
///
/// # Errors
/// `ESRCH`, `EPERM`.
pub fn robust_list(tid: i32) -> io::Result<(u64, u64)> {
    let (mut head, mut len) = (0u64, 0u64);
    // SAFETY: the kernel writes a pointer and a length, each eight bytes, to live locals.
    check(unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) })?;
    Ok(if head == 0 { (0, 0) } else { (head, len) })
}

/// Writes one word of the program's memory, also where the program itself may not write: private
/// pages are copied first.
///
/// # Errors
/// See the module's head; `EIO` where nothing is mapped, or shared memory may not be written.
pub fn poke(tid: i32, address: u64, word: u64) -> io::Result<()> {
    // SAFETY: the address is of the other process; nothing of this one is read or written.
    check(unsafe { libc::ptrace(libc::PTRACE_POKEDATA, tid, address as usize, word as usize) }).map(|_| ())
}

/// Whether the thread's calls are dispatched to itself (Syscall User Dispatch): a call made from
/// outside the range that it set raises `SIGSYS` in place of being made. False where the kernel
/// cannot say (before Linux 6.4).
pub fn dispatches_calls(tid: i32) -> bool {
    const GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
    let mut raw = [0u64; 4];
    // SAFETY: the kernel writes exactly the size said, into a live array of it.
    let read = unsafe { libc::ptrace(GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size_of_val(&raw), raw.as_mut_ptr()) };
    read == 0 && raw[0] != 0
}

/// Where a thread's system calls pass, and the byte that says whether others do: [`set_dispatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// First address of the range from which calls pass.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Address, in the program, of a byte: 1 while calls from elsewhere raise `SIGSYS`, 0 while
    /// they pass.
    pub selector: u64,
}

/// Has a thread's calls dispatched to itself, or (`None`) not any more.
///
/// # Errors
/// See the module's head; `EIO` before Linux 6.4.
pub fn set_dispatch(tid: i32, dispatch: Option<Dispatch>) -> io::Result<()> {
    const SET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4210;
    let raw = dispatch.map_or([0u64; 4], |d| [1, d.selector, d.start, d.len]);
    // SAFETY: the kernel reads exactly the size said, from a live array of it.
    let set = unsafe { libc::ptrace(SET_SYSCALL_USER_DISPATCH_CONFIG, tid, size_of_val(&raw), raw.as_ptr()) };
    check(set).map(|_| ())
}

/// Returns the signals that wait to be delivered to a thread, or (`shared`) to any thread of its
/// process: the kernel's `siginfo`, 128 bytes each.
///
/// # Errors
/// See the module's head.
pub fn pending(tid: i32, shared: bool) -> io::Result<Vec<[u64; 16]>> {
    const AT_A_TIME: usize = 64;
    let mut all = Vec::new();
    loop {
        let off = all.len() as u64;
        let mut ask = libc::ptrace_peeksiginfo_args { off, flags: u32::from(shared), nr: AT_A_TIME as i32 };
        let mut infos = [[0u64; 16]; AT_A_TIME];
        // SAFETY: the kernel reads `ask` and writes at most AT_A_TIME siginfos of 128 bytes, both
        // live.
        let got = check(unsafe {
            libc::ptrace(libc::PTRACE_PEEKSIGINFO, tid, &raw mut ask, infos.as_mut_ptr().cast::<libc::c_void>())
        })?;
        all.extend_from_slice(infos.get(..got as usize).unwrap_or_default());
        if (got as usize) < AT_A_TIME {
            return Ok(all);
        }
    }
}
