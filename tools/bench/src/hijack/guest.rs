//! The process that measures: batches of getppid, alone or seen by one of the rivals, which it sets
//! up itself.

use super::{between, failure};
use orbit_console::out;
use orbit_hijack::guest::Gate;
use orbit_linux::signals::{Action, Set};
use orbit_linux::{dispatch, futex, map, process, ptrace, sched, seccomp, signals};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

const BATCH: usize = 50;
const BATCHES: usize = 400;

/// `guest` is the way and the descriptor for the figure.
pub fn run(guest: &[String]) -> out::Done {
    let fd = guest[1].parse().map_err(|error| failure("the descriptor of the figure", &error))?;
    // Pairs choose their CPUs themselves, and two that are awake at once need two.
    let is_pair = ["awake", "bare-lines"].contains(&guest[0].as_str());
    let cpu = sched::affinity(0).ok().and_then(|cpus| cpus.last().copied()).filter(|_| !is_pair);
    if let Some(cpu) = cpu {
        // On one CPU where that is possible; the figure is right without.
        let _ = sched::set_affinity(0, &[cpu]);
    }
    let cycles = match guest[0].as_str() {
        "dispatch" => dispatched().map_err(|error| failure("syscall user dispatch", &error))?,
        "notify" => notified().map_err(|error| failure("seccomp notification", &error))?,
        "page-zero" => over_page_zero().map_err(|error| failure("page 0", &error))?,
        "ptrace" => traced().map_err(|error| failure("ptrace", &error))?,
        "rpc" => called().map_err(|error| failure("the gate", &error))?,
        "switch" => switched().map_err(|error| failure("contexts", &error))?,
        "awake" | "asleep" => {
            between::guests(guest[0] == "awake").map_err(|error| failure("calls between guests", &error))?
        }
        "bare-lines" => between::bare_lines().map_err(|error| failure("two cache lines", &error))?,
        "bare-futexes" => between::bare_futexes().map_err(|error| failure("two futexes", &error))?,
        "pipes" => between::pipes().map_err(|error| failure("two pipes", &error))?,
        "handover" => handed_over().map_err(|error| failure("futex hand-over", &error))?,
        "start" => started().map_err(|error| failure("/bin/true", &error))?,
        _ => measure(),
    };
    // SAFETY: the bench gave this descriptor to this process alone.
    let mut to = unsafe { File::from_raw_fd(fd) };
    write!(to, "{cycles}")?;
    Ok(ExitCode::SUCCESS)
}

/// The time stamp counter.
fn stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a counter.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return 0;
}

/// Cycles of a getppid: the median of the batches. A batch in which the CPU went to another process
/// does not count.
fn measure() -> f64 {
    let mut batches: Vec<u64> = (0..BATCHES)
        .map(|_| {
            let began = stamp();
            for _ in 0..BATCH {
                process::parent();
            }
            stamp() - began
        })
        .collect();
    batches.sort_unstable();
    batches[BATCHES / 2] as f64 / BATCH as f64
}

/// Microseconds from the start of /bin/true to its end: the median of 40.
fn started() -> std::io::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..40 {
        let began = std::time::Instant::now();
        std::process::Command::new("/bin/true").status()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The median batch of something, as cycles of one.
pub fn batches(mut once: impl FnMut()) -> f64 {
    let mut batches: Vec<u64> = (0..BATCHES)
        .map(|_| {
            let began = stamp();
            for _ in 0..BATCH {
                once();
            }
            stamp() - began
        })
        .collect();
    batches.sort_unstable();
    batches[BATCHES / 2] as f64 / BATCH as f64
}

/// The gate, which guests have.
pub fn gate() -> std::io::Result<Gate> {
    Gate::find().ok_or_else(|| std::io::Error::other("this process runs natively"))
}

/// A function call into the executive and back.
fn called() -> std::io::Result<f64> {
    let gate = gate()?;
    Ok(batches(|| gate.nothing()))
}

static SWITCH: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Yields until the other context has measured.
extern "C" fn yields(measures: usize) {
    let Some(gate) = Gate::find() else { return };
    if measures == 1 {
        // Two changes a turn: there and back.
        let cycles = batches(|| gate.yield_context()) / 2.0;
        SWITCH.store(cycles.to_bits(), std::sync::atomic::Ordering::SeqCst);
    } else {
        while SWITCH.load(std::sync::atomic::Ordering::SeqCst) == 0 {
            gate.yield_context();
        }
    }
}

/// A change of context.
fn switched() -> std::io::Result<f64> {
    let gate = gate()?;
    let mut stacks = [vec![0u8; 65536], vec![0u8; 65536]];
    for (nth, stack) in stacks.iter_mut().enumerate() {
        // SAFETY: the stacks live until the contexts have returned, which `run_contexts` waits for.
        unsafe { gate.create_context(yields, nth, stack, 1) }?;
    }
    gate.run_contexts(0)?;
    Ok(f64::from_bits(SWITCH.load(std::sync::atomic::Ordering::SeqCst)))
}

/// The rival of contexts: two threads on one CPU wake each other by a futex; one change.
fn handed_over() -> std::io::Result<f64> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static TURN: AtomicU32 = AtomicU32::new(0);
    let pass = |mine: u32| {
        TURN.store(1 - mine, Ordering::SeqCst);
        futex::wake(&TURN, 1);
        while TURN.load(Ordering::SeqCst) == 1 - mine {
            // Woken or not, the word decides.
            let _ = futex::wait(&TURN, 1 - mine, None);
        }
    };
    std::thread::spawn(move || {
        loop {
            while TURN.load(Ordering::SeqCst) == 0 {
                // Woken or not, the word decides.
                let _ = futex::wait(&TURN, 0, None);
            }
            pass(1);
        }
    });
    // One pass is two changes.
    Ok(batches(|| pass(0)) / 2.0)
}

static SELECTOR: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Answers the call, and lets the handler's return through.
extern "C" fn on_sigsys(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives the context of the interrupted call.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RAX as usize] = 1 };
    SELECTOR.store(0, std::sync::atomic::Ordering::Relaxed);
}

/// Dispatch alone: each call is a SIGSYS with a handler that answers it. The selector is armed anew
/// for each call, which is a store.
fn dispatched() -> std::io::Result<f64> {
    let action = Action::handler(on_sigsys as *const () as usize, libc::SA_SIGINFO, &Set::of([]));
    // SAFETY: the handler touches the context only.
    unsafe { action.install(libc::SIGSYS) }?;
    dispatch::arm(&SELECTOR)?;
    let mut batches: Vec<u64> = (0..BATCHES)
        .map(|_| {
            let began = stamp();
            for _ in 0..BATCH {
                SELECTOR.store(1, std::sync::atomic::Ordering::Relaxed);
                process::parent();
            }
            stamp() - began
        })
        .collect();
    batches.sort_unstable();
    Ok(batches[BATCHES / 2] as f64 / BATCH as f64)
}

/// Seccomp notification: getppid of this thread is answered by another one.
fn notified() -> std::io::Result<f64> {
    let (to_server, listener) = std::sync::mpsc::channel::<OwnedFd>();
    // The server must not have the filter: it exists before. It answers until the process ends.
    std::thread::spawn(move || {
        if let Ok(fd) = listener.recv() {
            while seccomp::answer_next(fd.as_fd(), 1).is_ok() {}
        }
    });
    let _ = to_server.send(seccomp::notify_of(libc::SYS_getppid)?);
    Ok(measure())
}

/// Maps page 0: a slide of NOPs for the numbers of calls, then a syscall and a return, which is the
/// least that zpoline needs: no registers are saved, and no function is called.
#[cfg(target_arch = "x86_64")]
pub fn map_page_zero() -> std::io::Result<()> {
    const SLIDE: usize = 512;
    // SAFETY: nothing is mapped at page 0; the kernel rejects the call where it is forbidden.
    unsafe { map::fixed_anonymous(0, 4096) }?;
    let code: Vec<u8> = [0x90].repeat(SLIDE).into_iter().chain([0x0f, 0x05, 0xc3]).collect();
    for (nth, byte) in code.iter().enumerate() {
        // SAFETY: stores into the page just mapped. Address 0 is none that Rust's own pointers may
        // have.
        unsafe { std::arch::asm!("mov byte ptr [{}], {}", in(reg) nth, in(reg_byte) *byte, options(nostack)) };
    }
    // SAFETY: changes the rights of that page.
    unsafe { map::protect(0, 4096, libc::PROT_READ | libc::PROT_EXEC) }
}

/// Not on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub fn map_page_zero() -> std::io::Result<()> {
    Err(std::io::Error::from(std::io::ErrorKind::Unsupported))
}

/// getppid by `call *%rax` into page 0.
fn over_page_zero() -> std::io::Result<f64> {
    map_page_zero()?;
    Ok(batches(|| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the page holds NOPs, a system call and a return; the call destroys rax, rcx and
        // r11.
        unsafe {
            std::arch::asm!("call rax", inout("rax") libc::SYS_getppid => _, out("rcx") _, out("r11") _);
        }
    }))
}

/// ptrace: a child measures, this process stops it at both sides of each call.
fn traced() -> std::io::Result<f64> {
    let (mut reader, mut writer) = std::io::pipe()?;
    // SAFETY: this process has one thread; the child measures, writes and ends.
    let Some(child) = (unsafe { process::fork() })? else {
        // Until its parent has seized it.
        signals::raise(libc::SIGSTOP);
        let _ = write!(writer, "{}", measure());
        process::end(0);
    };
    drop(writer);
    while !process::child_has_stopped(child, false) {
        std::thread::sleep(Duration::from_millis(1));
    }
    ptrace::seize(child, libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL)?;
    signals::send(child, libc::SIGCONT)?;
    while ptrace::state::wait_status(child).is_ok_and(|status| libc::WIFSTOPPED(status)) {
        ptrace::go_to_call(child, 0)?;
    }
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text)?;
    text.parse().map_err(|_| std::io::Error::other(format!("the child reported {text:?}")))
}
