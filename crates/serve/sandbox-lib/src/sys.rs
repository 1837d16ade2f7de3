//! System calls, made directly: libc's have another address in each member, and set a thread-local
//! `errno`.
//!
//! Each answers what the kernel does: a result, or `-errno`.

use core::arch::asm;

/// `clock_gettime`: the clock that all processes share.
pub const MONOTONIC: i32 = 1;
/// `clock_gettime`: CPU time of the calling thread.
pub const THREAD_CPU: i32 = 3;

const RT_SIGACTION: usize = 13;
const RT_SIGPROCMASK: usize = 14;
const MPROTECT: usize = 10;
const MADVISE: usize = 28;
const PKEY_MPROTECT: usize = 329;
const PKEY_ALLOC: usize = 330;
const PKEY_FREE: usize = 331;
const SIGALTSTACK: usize = 131;
const ACCEPT4: usize = 288;
const EPOLL_CREATE1: usize = 291;
const EPOLL_CTL: usize = 233;
const EPOLL_PWAIT: usize = 281;
const EPOLL_PWAIT2: usize = 441;
const SENDTO: usize = 44;
const RECVFROM: usize = 45;
const PREADV2: usize = 327;
const PWRITEV2: usize = 328;
/// `MSG_DONTWAIT`.
const DONT_WAIT: usize = 0x40;
/// `RWF_NOWAIT`.
const NO_WAIT: usize = 8;
/// `-ENOTSOCK`.
const NO_SOCKET: isize = -88;
const GETPID: usize = 39;
const EXIT_GROUP: usize = 231;
const SETPRIORITY: usize = 141;
const GETPRIORITY: usize = 140;
const SCHED_YIELD: usize = 24;
const SCHED_SETPARAM: usize = 142;
const SCHED_GETPARAM: usize = 143;
const SCHED_SETSCHEDULER: usize = 144;
const SCHED_GETSCHEDULER: usize = 145;
const GETTID: usize = 186;
const SCHED_SETAFFINITY: usize = 203;
const TIMER_CREATE: usize = 222;
const TIMER_SETTIME: usize = 223;
const TIMER_DELETE: usize = 226;
const CLOCK_GETTIME: usize = 228;
const TGKILL: usize = 234;
const PPOLL: usize = 271;
const TIMERFD_CREATE: usize = 283;
const TIMERFD_SETTIME: usize = 286;
const READ: usize = 0;
const WRITE: usize = 1;
const ACCESS: usize = 21;
const OPEN: usize = 2;
const CLOSE: usize = 3;
const STAT: usize = 4;
const CLOCK_NANOSLEEP: usize = 230;
const KILL: usize = 62;
const FUTEX: usize = 202;
const PRLIMIT: usize = 302;

/// One system call.
///
/// # Safety
/// As the call demands: what it is given pointers to is there and may be read or written.
pub unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the instruction changes rax, rcx, r11 and, for some calls, memory, as said; the rest
    // is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// A call whose arguments are numbers, or pointers to locals of the caller.
fn plain(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    // SAFETY: the callers below pass numbers, or pointers to locals that outlive the call.
    unsafe { call(number, [a, b, c, d, 0, 0]) }
}

/// A clock, nanoseconds; 0 where there is none such.
pub fn clock(id: i32) -> u64 {
    let mut time = [0i64; 2];
    plain(CLOCK_GETTIME, id as isize as usize, &raw mut time as usize, 0, 0);
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// Monotonic time, nanoseconds.
pub fn now() -> u64 {
    clock(MONOTONIC)
}

/// The CPU's counter of time.
pub fn ticks() -> u64 {
    // SAFETY: the instruction reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The clock of the CPU time of another process, or of a thread of this one.
pub fn cpu_clock_of(process: i32) -> i32 {
    // The kernel's encoding (CPUCLOCK_SCHED of a process).
    (!process) << 3 | 2
}

/// The calling thread.
pub fn thread() -> i32 {
    plain(GETTID, 0, 0, 0, 0) as i32
}

/// The calling process.
pub fn process() -> i32 {
    plain(GETPID, 0, 0, 0, 0) as i32
}

/// Whether a thread of a process is there: 0, or `-ESRCH`.
pub fn probe_thread(process: i32, thread: i32) -> isize {
    plain(TGKILL, process as usize, thread as usize, 0, 0)
}

/// Opens or closes memory.
pub fn protect(address: usize, length: usize, protection: i32) -> isize {
    plain(MPROTECT, address, length, protection as usize, 0)
}

/// Says how memory is read: `MADV_RANDOM` is 1, `MADV_SEQUENTIAL` 2.
pub fn advise(address: usize, length: usize, advice: i32) -> isize {
    plain(MADVISE, address, length, advice as usize, 0)
}

/// A protection key of the process that the calling thread may not use; `-errno` where there is
/// none.
pub fn key_alloc() -> isize {
    const NO_ACCESS: usize = 1;
    plain(PKEY_ALLOC, 0, NO_ACCESS, 0, 0)
}

/// Gives a protection key back.
pub fn key_free(key: i32) -> isize {
    plain(PKEY_FREE, key as usize, 0, 0, 0)
}

/// Opens memory to threads that may use the key.
pub fn protect_by_key(address: usize, length: usize, protection: i32, key: i32) -> isize {
    plain(PKEY_MPROTECT, address, length, protection as usize, key as usize)
}

/// Policy and real-time priority of a thread (0: the calling one). Priority 0 is `SCHED_OTHER`,
/// else `SCHED_FIFO`.
pub fn set_priority(thread: i32, priority: i32) -> isize {
    let fifo = usize::from(priority > 0);
    plain(SCHED_SETSCHEDULER, thread as usize, fifo, &raw const priority as usize, 0)
}

/// The same, read: 0 for ordinary threads.
pub fn priority(thread: i32) -> isize {
    let mut priority = 0i32;
    let policy = plain(SCHED_GETSCHEDULER, thread as usize, 0, 0, 0);
    if policy < 0 {
        return policy;
    }
    let read = plain(SCHED_GETPARAM, thread as usize, &raw mut priority as usize, 0, 0);
    if read < 0 { read } else { priority as isize }
}

/// Changes the priority, and leaves the policy.
pub fn set_parameter(thread: i32, priority: i32) -> isize {
    plain(SCHED_SETPARAM, thread as usize, &raw const priority as usize, 0, 0)
}

/// Niceness of a thread, -20 to 19.
pub fn set_nice(thread: i32, nice: i32) -> isize {
    plain(SETPRIORITY, 0, thread as usize, nice as isize as usize, 0)
}

/// The same, read; the kernel answers 20 - nice.
pub fn nice(thread: i32) -> Result<i32, isize> {
    let answer = plain(GETPRIORITY, 0, thread as usize, 0, 0);
    if answer < 0 { Err(answer) } else { Ok(20 - answer as i32) }
}

/// Binds the calling thread to one processor below 1024.
pub fn bind(cpu: usize) -> isize {
    let mut set = [0u64; 16];
    set[cpu / 64 % 16] = 1 << (cpu % 64);
    plain(SCHED_SETAFFINITY, 0, 128, &raw const set as usize, 0)
}

/// The action of a signal: reads the present one into `old`, sets `new` if there is one. Words:
/// handler, flags, restorer, mask.
pub fn action(signal: i32, new: Option<&[u64; 4]>, old: Option<&mut [u64; 4]>) -> isize {
    let new = new.map_or(0, |new| &raw const *new as usize);
    let old = old.map_or(0, |old| &raw mut *old as usize);
    plain(RT_SIGACTION, signal as usize, new, old, 8)
}

/// Sets the mask of blocked signals of the calling thread.
pub fn set_mask(mask: u64) -> isize {
    plain(RT_SIGPROCMASK, 2, &raw const mask as usize, 0, 8)
}

/// As [`set_mask`]; answers the mask before.
pub fn swap_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    plain(RT_SIGPROCMASK, 2, &raw const mask as usize, &raw mut before as usize, 8);
    before
}

/// Lets other threads of this CPU run.
pub fn yield_cpu() {
    plain(SCHED_YIELD, 0, 0, 0, 0);
}

/// A timer that sends `signal` with `value` to this thread of the calling process. Answers its id
/// or `-errno`.
pub fn timer_create(signal: i32, value: u64, thread: i32) -> isize {
    const SIGEV_THREAD_ID: u32 = 4;
    // struct sigevent: value, signal, notify, thread; 64 bytes.
    let event: [u64; 8] =
        [value, u64::from(signal as u32) | u64::from(SIGEV_THREAD_ID) << 32, u64::from(thread as u32), 0, 0, 0, 0, 0];
    let mut id = 0i32;
    let made = plain(TIMER_CREATE, MONOTONIC as usize, &raw const event as usize, &raw mut id as usize, 0);
    if made < 0 { made } else { id as isize }
}

/// Lets a timer fire once, `ns` nanoseconds from now; 0: never.
pub fn timer_set(timer: i32, ns: u64) -> isize {
    let time: [u64; 4] = [0, 0, ns / 1_000_000_000, ns % 1_000_000_000];
    plain(TIMER_SETTIME, timer as usize, 0, &raw const time as usize, 0)
}

/// Lets a timer fire `ns` nanoseconds from now, and then each `again` nanoseconds.
pub fn timer_repeat(timer: i32, ns: u64, again: u64) -> isize {
    let time: [u64; 4] = [again / 1_000_000_000, again % 1_000_000_000, ns / 1_000_000_000, ns % 1_000_000_000];
    plain(TIMER_SETTIME, timer as usize, 0, &raw const time as usize, 0)
}

/// Deletes a timer.
pub fn timer_delete(timer: i32) -> isize {
    plain(TIMER_DELETE, timer as usize, 0, 0, 0)
}

/// A descriptor that becomes readable at a time set by [`timer_descriptor_set`].
pub fn timer_descriptor() -> isize {
    const CLOEXEC_NONBLOCK: usize = 0o2_000_000 | 0o4000;
    plain(TIMERFD_CREATE, MONOTONIC as usize, CLOEXEC_NONBLOCK, 0, 0)
}

/// Lets the descriptor become readable at this monotonic time; 0: never.
pub fn timer_descriptor_set(descriptor: i32, at_ns: u64) -> isize {
    let time: [u64; 4] = [0, 0, at_ns / 1_000_000_000, at_ns % 1_000_000_000];
    plain(TIMERFD_SETTIME, descriptor as usize, 1, &raw const time as usize, 0)
}

/// `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Poll {
    /// The descriptor; negative: none.
    pub descriptor: i32,
    /// What is waited for.
    pub events: i16,
    /// What there is.
    pub ready: i16,
}

/// Receives from a socket, or reads from a pipe, without waiting. `from`: where the sender's
/// address goes, and its room; 0: nowhere.
///
/// # Safety
/// What the service passes on is its own affair: a bad pointer is `-EFAULT`. The two of `from` are
/// the caller's.
pub unsafe fn receive_now(file: i32, to: usize, bytes: usize, from: [usize; 2]) -> isize {
    // SAFETY: the caller's promise; the kernel checks pointers.
    let received = unsafe { call(RECVFROM, [file as usize, to, bytes, DONT_WAIT, from[0], from[1]]) };
    if received != NO_SOCKET {
        return received;
    }
    let part = [to, bytes];
    // SAFETY: as above; the vector is a local.
    unsafe { call(PREADV2, [file as usize, &raw const part as usize, 1, usize::MAX, 0, NO_WAIT]) }
}

/// Sends to a socket, or writes to a pipe, without waiting. `to`: an address and its length; 0: the
/// socket's peer. A peer that is gone is an error and no signal.
///
/// # Safety
/// As [`receive_now`].
pub unsafe fn send_now(file: i32, from: usize, bytes: usize, to: [usize; 2]) -> isize {
    const NO_SIGNAL: usize = 0x4000;
    // SAFETY: as above.
    let sent = unsafe { call(SENDTO, [file as usize, from, bytes, DONT_WAIT | NO_SIGNAL, to[0], to[1]]) };
    if sent != NO_SOCKET {
        return sent;
    }
    let part = [from, bytes];
    // SAFETY: as above; the vector is a local.
    unsafe { call(PWRITEV2, [file as usize, &raw const part as usize, 1, usize::MAX, 0, NO_WAIT]) }
}

/// Accepts a connection of a listener that does not wait (`O_NONBLOCK`). Its descriptor, which does
/// not wait either.
pub fn accept_now(listener: i32) -> isize {
    const CLOEXEC_NONBLOCK: usize = 0o2_004_000;
    plain(ACCEPT4, listener as usize, 0, 0, CLOEXEC_NONBLOCK)
}

/// Closes a descriptor.
pub fn close(descriptor: i32) -> isize {
    plain(CLOSE, descriptor as usize, 0, 0, 0)
}

/// A descriptor that waits for others.
pub fn event_descriptor() -> isize {
    plain(EPOLL_CREATE1, 0o2_000_000, 0, 0, 0)
}

/// Lets it report each arrival at another one, by this number, once.
pub fn event_add(events: i32, descriptor: i32, number: u64) -> isize {
    const IN_HANGUP_EDGE: u32 = 1 | 0x2000 | 1 << 31;
    const ADD: usize = 1;
    let event = Arrival { events: IN_HANGUP_EDGE, number };
    plain(EPOLL_CTL, events as usize, ADD, descriptor as usize, &raw const event as usize)
}

/// `struct epoll_event`.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    events: u32,
    /// The number that the descriptor was added with.
    pub number: u64,
}

/// Waits for arrivals, for `ns` nanoseconds at most. How many there are.
pub fn event_wait(events: i32, arrivals: &mut [Arrival], ns: u64) -> isize {
    const NO_CALL: isize = -38;
    let time = [ns / 1_000_000_000, ns % 1_000_000_000];
    let (to, room) = (arrivals.as_mut_ptr() as usize, arrivals.len());
    let waited = plain(EPOLL_PWAIT2, events as usize, to, room, &raw const time as usize);
    if waited != NO_CALL {
        return waited;
    }
    // Before Linux 5.11 the time is in milliseconds.
    plain(EPOLL_PWAIT, events as usize, to, room, ns.div_ceil(1_000_000) as usize)
}

/// Waits until one of them is ready, or a signal comes.
pub fn poll(descriptors: &mut [Poll]) -> isize {
    plain(PPOLL, descriptors.as_mut_ptr() as usize, descriptors.len(), 0, 0)
}

/// Whether a descriptor is readable or hung up, at once.
pub fn is_ready(descriptor: i32) -> bool {
    let mut polled = [Poll { descriptor, events: 1, ready: 0 }];
    let time = [0u64; 2];
    plain(PPOLL, polled.as_mut_ptr() as usize, 1, &raw const time as usize, 0);
    polled[0].ready != 0
}

/// Reads the eight bytes of a timer's or an event's descriptor.
pub fn read_word(descriptor: i32) -> isize {
    let mut word = 0u64;
    plain(READ, descriptor as usize, &raw mut word as usize, 8, 0)
}

/// Sets the alternate stack of the calling thread to what `sigaltstack` answered before; one of
/// size 0 is none.
pub fn set_alternate_stack(stack: &[u64; 3]) -> isize {
    const DISABLE: u64 = 2;
    let stack = if stack[2] == 0 { [0, DISABLE, 0] } else { *stack };
    plain(SIGALTSTACK, &raw const stack as usize, 0, 0, 0)
}

/// Sends a signal to a thread of a process.
pub fn signal_thread(process: i32, thread: i32, signal: i32) -> isize {
    plain(TGKILL, process as usize, thread as usize, signal as usize, 0)
}

/// Whether a process is there: 0, `-ESRCH`, or `-EPERM` for another user's.
pub fn probe_process(process: i32) -> isize {
    plain(KILL, process as usize, 0, 0, 0)
}

/// Wakes all threads, of any process, that sleep on a word in shared memory.
pub fn wake(word: &core::sync::atomic::AtomicU32) {
    const WAKE: usize = 1;
    plain(FUTEX, word.as_ptr() as usize, WAKE, i32::MAX as usize, 0);
}

/// Sleeps until a word in shared memory is not `seen` any more, for `ns` nanoseconds at most.
/// Answers 0 when it was woken.
pub fn sleep_on(word: &core::sync::atomic::AtomicU32, seen: u32, ns: u64) -> isize {
    const WAIT: usize = 0;
    let time = [ns / 1_000_000_000, ns % 1_000_000_000];
    plain(FUTEX, word.as_ptr() as usize, WAIT, seen as usize, &raw const time as usize)
}

/// Sleeps until this monotonic time, or until a signal comes.
pub fn sleep_until(at_ns: u64) -> isize {
    const ABSOLUTE: usize = 1;
    let time = [at_ns / 1_000_000_000, at_ns % 1_000_000_000];
    plain(CLOCK_NANOSLEEP, MONOTONIC as usize, ABSOLUTE, &raw const time as usize, 0)
}

/// Bytes of a [`Text`] at most.
const TEXT: usize = 511;

/// A short text with a zero at its end: a path, or what a file says. What does not fit is cut off.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    bytes: [u8; TEXT + 1],
    length: usize,
}

impl Default for Text {
    fn default() -> Text {
        Text { bytes: [0; TEXT + 1], length: 0 }
    }
}

impl Text {
    /// Appends.
    pub fn push(&mut self, more: &[u8]) {
        for (to, from) in self.bytes.iter_mut().take(TEXT).skip(self.length).zip(more) {
            *to = *from;
        }
        self.length = (self.length + more.len()).min(TEXT);
    }

    /// Its bytes, without the zero.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// What a small file says.
///
/// # Errors
/// `-errno`; `-ESRCH` for a file that is not there: it is one of a process.
pub fn contents(path: &Text) -> Result<Text, i64> {
    let file = plain(OPEN, path.bytes.as_ptr() as usize, 0o2_000_000, 0, 0);
    if file < 0 {
        return Err(if file == -2 { -3 } else { file as i64 });
    }
    let mut text = Text::default();
    let read = plain(READ, file as usize, text.bytes.as_mut_ptr() as usize, TEXT, 0);
    plain(CLOSE, file as usize, 0, 0, 0);
    text.length = read.max(0) as usize;
    if read < 0 { Err(read as i64) } else { Ok(text) }
}

/// Writes a file that is there.
///
/// # Errors
/// `-errno`.
pub fn write_text(path: &Text, text: &Text) -> Result<(), i64> {
    let file = plain(OPEN, path.bytes.as_ptr() as usize, 0o2_000_001, 0, 0);
    if file < 0 {
        return Err(file as i64);
    }
    let written = plain(WRITE, file as usize, text.bytes.as_ptr() as usize, text.length, 0);
    plain(CLOSE, file as usize, 0, 0, 0);
    if written < 0 { Err(written as i64) } else { Ok(()) }
}

/// Whether a file is there.
pub fn exists(path: &Text) -> bool {
    plain(ACCESS, path.bytes.as_ptr() as usize, 0, 0, 0) == 0
}

/// Whether this user may write it.
pub fn is_writable(path: &Text) -> bool {
    plain(ACCESS, path.bytes.as_ptr() as usize, 2, 0, 0) == 0
}

/// A path below `/proc/PID`. No indexing here: a check that could fail would pull in code that
/// formats.
pub fn of_process(process: i32, file: &[u8]) -> Text {
    let mut digits = [0u8; 10];
    let (mut left, mut n) = (process.unsigned_abs(), 0);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
        n += 1;
        if left == 0 {
            break;
        }
    }
    let mut path = Text::default();
    path.push(b"/proc/");
    for digit in digits.iter().skip(10 - n) {
        path.push(core::slice::from_ref(digit));
    }
    path.push(b"/");
    path.push(file);
    path
}

/// Memory of a process that is resident, bytes.
///
/// # Errors
/// `-errno`: `-ESRCH` when it is gone.
pub fn resident(process: i32) -> Result<u64, i64> {
    let text = contents(&of_process(process, b"statm"))?;
    if text.length == 0 {
        return Err(-3);
    }
    // The second number, in pages.
    let digits = text.bytes().iter().skip_while(|byte| **byte != b' ').skip(1).take_while(|byte| byte.is_ascii_digit());
    Ok(digits.fold(0u64, |sum, digit| sum.wrapping_mul(10).wrapping_add(u64::from(*digit - b'0'))).wrapping_mul(4096))
}

/// When a process or thread began, in ticks since the machine did.
///
/// # Errors
/// `-errno`: `-ESRCH` when it is gone.
pub fn began(task: i32) -> Result<u64, i64> {
    let text = contents(&of_process(task, b"stat"))?;
    let bytes = text.bytes();
    // The name, in parentheses, may have any bytes; the time is the 20th word after it.
    let end = bytes.iter().rposition(|byte| *byte == b')').ok_or(-3)?;
    let mut words = bytes.get(end + 2..).unwrap_or_default().split(|byte| *byte == b' ');
    let digits = words.nth(19).filter(|word| !word.is_empty()).ok_or(-3i64)?;
    Ok(digits.iter().fold(0u64, |sum, digit| sum.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')))))
}

/// The scheduling policy of a thread.
pub fn policy(thread: i32) -> isize {
    plain(SCHED_GETSCHEDULER, thread as usize, 0, 0, 0)
}

/// Open descriptors of a process, from the size that Linux 6.2 and later gives its folder of them.
///
/// # Errors
/// `-errno`: `-ESRCH` when it is gone; `-EOPNOTSUPP` where the kernel does not say.
pub fn descriptors(process: i32) -> Result<u64, i64> {
    let path = of_process(process, b"fd");
    let mut stat = [0u64; 18];
    let answer = plain(STAT, path.bytes.as_ptr() as usize, &raw mut stat as usize, 0, 0);
    match (answer, stat[6]) {
        (-2, _) => Err(-3),
        (0, 0) => Err(-95),
        (0, open) => Ok(open),
        (error, _) => Err(error as i64),
    }
}

/// The largest number of descriptors that a process may have open.
///
/// # Errors
/// `-errno`: `-ESRCH` when it is gone, `-EPERM` for another user's.
pub fn descriptor_limit(process: i32) -> Result<u64, i64> {
    const OPEN_FILES: usize = 7;
    let mut limits = [0u64; 2];
    let answer = plain(PRLIMIT, process as usize, OPEN_FILES, 0, &raw mut limits as usize);
    if answer < 0 { Err(answer as i64) } else { Ok(limits[0]) }
}

/// Ends the process by `SIGILL`, which the kernel forces where it is blocked.
pub fn stop_here() -> ! {
    let default = [0; 4];
    action(4, Some(&default), None);
    loop {
        // SAFETY: raises SIGILL.
        unsafe { asm!("ud2") };
    }
}

/// Ends the process.
pub fn exit(status: i32) -> ! {
    loop {
        plain(EXIT_GROUP, status as usize, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_and_descriptors_of_a_process_are_read() {
        let me = super::process();
        let resident = super::resident(me).expect("own memory");
        assert!(resident > 100_000 && resident < 1 << 40, "{resident}");
        assert!(
            super::descriptors(me).is_ok_and(|open| (3..10_000).contains(&open)) || super::descriptors(me) == Err(-95)
        );
        assert!(super::descriptor_limit(me).is_ok_and(|limit| limit > 3));
        assert_eq!(super::resident(i32::MAX), Err(-3));
        assert_eq!(super::descriptors(i32::MAX), Err(-3));
    }
}
