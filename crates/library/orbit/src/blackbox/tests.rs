//! A dying process leaves a record, whatever it dies of. Each case runs in a forked child on memory
//! shared with it.

use super::symbols::find_functions;
use super::*;

/// Memory shared with a child; unmapped at the end.
struct Shared(*mut BlackBox);

impl Shared {
    fn new() -> Shared {
        // SAFETY: a fresh mapping, anywhere.
        let at = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            libc::mmap(null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Shared(at.cast())
    }

    fn read(&self) -> Option<Record> {
        // SAFETY: mapped until drop.
        unsafe { read(self.0) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// Runs `crash` in a child with the handlers set; returns the signal that ended it and what it
/// left.
fn death_of(probe: usize, crash: impl FnOnce()) -> (i32, Option<Record>) {
    let shared = Shared::new();
    // The child must not be the first to load the unwinder: it has but one thread, and locks
    // may be held.
    backtrace::trace(|_| false);
    // SAFETY: the child only runs the test body and ends by itself.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: system calls on this process; the black box is mapped.
        unsafe {
            block_everything();
            if prepare().is_err() {
                libc::_exit(90);
            }
            install(shared.0, probe);
            crash();
            libc::_exit(91);
        }
    }
    let mut status = 0;
    wait_or_kill(child, &mut status);
    assert!(libc::WIFSIGNALED(status), "the child ended with status {status:#x}, not by a signal");
    (libc::WTERMSIG(status), shared.read())
}

/// Waits for a child; one that hangs is killed after half a minute, so that the test fails instead
/// of hanging too.
fn wait_or_kill(child: libc::pid_t, status: &mut c_int) {
    for wait in 0..3001 {
        if wait == 3000 {
            // SAFETY: the child is not waited for yet, so the number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        // SAFETY: waits for the child that the caller made.
        let ended = unsafe { libc::waitpid(child, &raw mut *status, if wait == 3000 { 0 } else { libc::WNOHANG }) };
        assert!(ended >= 0, "waiting for a child");
        if ended == child {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// As in a program that keeps signals for a thread of their own.
fn block_everything() {
    // SAFETY: a set of signals on the stack, initialised by `sigfillset`.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, null_mut());
    }
}

fn names(record: &Record) -> String {
    let stack = Stack::new(&record.frames, |at| Some(find_functions(at)));
    stack.frames.iter().filter_map(|frame| frame.function.clone()).collect::<Vec<_>>().join(" < ")
}

#[inline(never)]
fn writes_to(address: usize) {
    // SAFETY: none: the fault is the point of the test.
    unsafe { std::hint::black_box(address as *mut u32).write_volatile(1) };
    std::hint::black_box(());
}

#[test]
fn null_pointer() {
    let (signal, record) = death_of(65536, || writes_to(16));
    let record = record.expect("a record");
    assert_eq!((signal, record.signal, record.address), (libc::SIGSEGV, libc::SIGSEGV, 16));
    assert!(!record.memory_exhausted && record.sp != 0 && record.thread > 0);
    assert_eq!(record.frames[0], record.pc);
    let crash = record.into_crash(signal).named_here();
    let text = crash.to_string();
    let headline = text.lines().next().unwrap_or_default();
    assert!(headline.starts_with("SIGSEGV at 0x10 in "), "{text}");
    assert!(headline.contains("writes_to") && headline.contains("(tests.rs:"), "{text}");
    assert!(text.contains("death_of"), "callers are there too: {text}");
}

#[test]
fn jump_to_nowhere() {
    #[inline(never)]
    fn calls_nothing() {
        let nowhere: usize = std::hint::black_box(0);
        // SAFETY: none: the fault is the point of the test. The word has the size of a function
        // pointer, and is never used as one that is known to be null.
        unsafe { std::arch::asm!("call {}", in(reg) nowhere, clobber_abi("C")) };
        std::hint::black_box(());
    }
    let (signal, record) = death_of(0, calls_nothing);
    let record = record.expect("a record");
    assert_eq!((signal, record.address, record.pc, record.frames[0]), (libc::SIGSEGV, 0, 0, 0));
    assert!(names(&record).contains("calls_nothing") && names(&record).contains("death_of"), "{}", names(&record));
    assert!(record.into_crash(signal).named_here().to_string().starts_with("SIGSEGV at 0x0 in "));
}

#[test]
fn stack_overflow() {
    #[inline(never)]
    #[expect(unconditional_recursion, reason = "the overflow is the point of the test")]
    fn digs(depth: u64) -> u64 {
        let room = std::hint::black_box([depth; 32]);
        // The sum of what nobody can foresee: a plain one may be compiled to a loop, which ends
        // nowhere.
        std::hint::black_box(digs(depth + 1)) + room[3]
    }
    let (signal, record) = death_of(0, || {
        // A small stack, so that a test thread's size does not matter.
        std::hint::black_box(digs(0));
    });
    let record = record.expect("a record");
    assert_eq!((signal, record.signal, record.frames.len()), (libc::SIGSEGV, libc::SIGSEGV, MAX_FRAMES));
    assert!(names(&record).contains("digs"), "{}", names(&record));
}

#[test]
fn division_abort_trap_and_the_rest() {
    for signal in SIGNALS {
        let (died_of, record) = death_of(0, || {
            // SAFETY: raises a signal in this process.
            unsafe { libc::raise(signal) };
        });
        let record = record.unwrap_or_else(|| panic!("no record for {}", signal_name(signal)));
        assert_eq!((died_of, record.signal, record.address), (signal, signal, 0));
        assert!(names(&record).contains("death_of"), "{}", names(&record));
        let text = record.into_crash(signal).named_here().to_string();
        assert!(!text.lines().next().unwrap_or_default().contains(" at 0x"), "sent, so about no address: {text}");
    }
}

#[test]
fn panic_leaves_its_message() {
    let (signal, record) = death_of(0, || {
        panic!("the {} is on fire", "engine");
    });
    let record = record.expect("a record");
    assert_eq!((signal, record.signal), (libc::SIGABRT, libc::SIGABRT));
    let message = record.message.clone().unwrap_or_default();
    assert!(message.contains("the engine is on fire") && message.contains("tests.rs"), "{message}");
    let text = record.into_crash(signal).named_here().to_string();
    let headline = text.lines().next().unwrap_or_default();
    assert!(headline.contains("(tests.rs:") && headline.contains("on fire"), "{text}");
    assert!(text.contains("panic_leaves_its_message"), "not all compilers name a closure for it: {text}");
}

#[test]
fn long_panic_message_is_cut_off() {
    let (_, record) = death_of(0, || {
        panic!("{}", "é".repeat(1000));
    });
    let message = record.and_then(|record| record.message).expect("a message");
    assert!(message.contains("éééé") && message.chars().count() <= MAX_MESSAGE, "{message}");
}

#[test]
fn exhausted_memory_is_reported() {
    let (signal, record) = death_of(1 << 20, || {
        // SAFETY: limits this process, and maps what is left in ever smaller pieces.
        unsafe {
            let tight = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_DATA, &raw const tight);
        }
        writes_to(0);
    });
    assert!(signal == libc::SIGSEGV && record.expect("a record").memory_exhausted);
}

#[test]
fn crash_while_the_unwinder_would_hang_ends_by_the_true_signal() {
    // The handler of SIGSEGV is replaced by one that claims the crash as `record` does and then
    // never returns.
    extern "C" fn hangs(signal: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        CRASHING.store(1, Ordering::Relaxed);
        CAUSE.store(signal, Ordering::Relaxed);
        let _ = handle(libc::SIGALRM, out_of_patience as *const () as usize);
        Set::of([libc::SIGALRM]).unblock();
        // SAFETY: the handler for the alarm is set; pause waits for signals.
        unsafe {
            libc::alarm(PATIENCE);
            loop {
                libc::pause();
            }
        }
    }
    let (signal, _) = death_of(0, || {
        let _ = handle(libc::SIGSEGV, hangs as *const () as usize);
        writes_to(0);
    });
    assert_eq!(signal, libc::SIGSEGV);
}

#[test]
fn fault_in_the_unwinder_keeps_the_record() {
    // A call into nowhere with the stack pointer in memory that cannot be read: stepping back to
    // the caller faults.
    let (signal, record) = death_of(0, || {
        // SAFETY: none: the fault is the point of the test.
        unsafe { std::arch::asm!("mov rsp, 0x10000", "xor eax, eax", "jmp rax", options(noreturn)) };
    });
    let record = record.expect("a record");
    assert_eq!((signal, record.signal, record.frames.len()), (libc::SIGSEGV, libc::SIGSEGV, 1));
    assert_eq!((record.pc, record.sp), (0, 0x10000));
}

#[test]
fn crash_inside_malloc() {
    // A corrupted heap: glibc notices in free, with the arena in disorder, and aborts.
    let (signal, record) = death_of(0, || {
        // SAFETY: none: the corruption is the point of the test.
        unsafe {
            let object = libc::malloc(64);
            object.cast::<u64>().sub(1).write_volatile(0x7);
            libc::free(object);
            libc::free(std::hint::black_box(object));
        }
    });
    assert!(signal == libc::SIGABRT || signal == libc::SIGSEGV);
    let text = record.expect("a record").into_crash(signal).named_here().to_string();
    let headline = text.lines().next().unwrap_or_default();
    assert!(headline.contains("(tests.rs:"), "the task is blamed, not the C library: {text}");
}

#[test]
fn what_an_orbit_scribbled_is_read_within_limits() {
    let shared = Shared::new();
    assert_eq!(shared.read(), None);
    // SAFETY: the mapping is larger than a black box.
    unsafe { std::ptr::write_bytes(shared.0.cast::<u8>(), 0xff, size_of::<BlackBox>()) };
    assert_eq!(shared.read(), None, "no magic");
    // SAFETY: as above; all fields are atomics.
    let black_box = unsafe { &*shared.0 };
    black_box.magic.store(MAGIC, Ordering::Relaxed);
    black_box.state.store(STATE_RECORDED, Ordering::Relaxed);
    let record = shared.read().expect("a record");
    assert_eq!(record.frames.len(), MAX_FRAMES);
    let crash = record.into_crash(libc::SIGKILL);
    assert!(crash.to_string().starts_with("SIGKILL"), "{crash}");
}
