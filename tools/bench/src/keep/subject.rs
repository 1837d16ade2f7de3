//! Programs of this command that are kept: one that writes to pages spread over its memory, and one
//! that crashes now and then.

use super::kept::failed;
use orbit_console::out::{Done, Failure};
use orbit_linux::map::Mapping;
use orbit_linux::memfd;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Time between two crashes.
const CRASH_STEP: Duration = Duration::from_millis(250);
/// Forks that are timed.
const FORKS: usize = 5;

/// The command that runs a subject: MiB held, percent of it written, milliseconds to run.
pub fn command(name: &str, mib: u64, percent: u64, ms: u64) -> Result<Vec<OsString>, Failure> {
    let mut command: Vec<OsString> = vec![std::env::current_exe()?.into()];
    let [mib, percent, ms] = [mib, percent, ms].map(|n| n.to_string());
    command.extend(["keep", "--subject", name, &mib, &percent, &ms].map(OsString::from));
    Ok(command)
}

/// Runs the subject that the command line names.
pub fn run(words: &[String]) -> Done {
    let number = |at: usize| words[at].parse::<u64>().map_err(|_| failed("a subject takes three numbers"));
    let (mib, percent, length) = (number(1)?, number(2)?, Duration::from_millis(number(3)?));
    match words[0].as_str() {
        "write" => write(mib, percent, length, |_| {}),
        "crash" => {
            let mut crashes = Crashes::new()?;
            write(mib, percent, length, move |since| crashes.crash_if_due(since));
        }
        "fork" => fork(mib)?,
        _ => return Err(failed("a subject is write, crash or fork")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Holds memory, and writes to pages spread over it again and again.
fn write(mib: u64, percent: u64, length: Duration, mut after: impl FnMut(Duration)) {
    let mut memory = vec![1u8; (mib as usize) << 20];
    let pages = memory.len() / PAGE;
    let written = (pages * percent as usize / 100).max(1);
    let since = Instant::now();
    let mut round = 0usize;
    while since.elapsed() < length {
        for nth in 0..written {
            memory[nth * (pages / written) * PAGE + round % PAGE] = round as u8;
        }
        std::hint::black_box(&memory);
        after(since.elapsed());
        round += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Crashes, each at an instruction of its own: at one that has crashed before the keeper would go
/// up its ladder.
struct Crashes {
    /// Shared memory, which no rollback touches: a count, then instructions that trap.
    memory: Mapping,
    begun: Instant,
}

impl Crashes {
    fn new() -> Result<Crashes, Failure> {
        let file = memfd::create("bench-keep-crashes", PAGE, false)?;
        let memory = Mapping::shared(file.as_fd(), PAGE, true, true)?;
        Ok(Crashes { memory, begun: Instant::now() })
    }

    fn crash_if_due(&mut self, _: Duration) {
        // SAFETY: the first word of a live shared mapping that only this thread uses.
        let count = unsafe { &*self.memory.as_ptr().cast::<std::sync::atomic::AtomicU64>() };
        let done = count.load(std::sync::atomic::Ordering::SeqCst);
        if self.begun.elapsed() < CRASH_STEP * (done as u32 + 1) {
            return;
        }
        count.store(done + 1, std::sync::atomic::Ordering::SeqCst);
        trap(done);
    }
}

/// Traps at an instruction that no other of eight values of `nth` shares.
fn trap(nth: u64) {
    macro_rules! here {
        () => {
            // SAFETY: an undefined instruction; the kernel sends SIGILL and nothing is changed.
            unsafe { std::arch::asm!("ud2", "nop", options(nomem, nostack)) }
        };
    }
    match nth % 8 {
        0 => here!(),
        1 => here!(),
        2 => here!(),
        3 => here!(),
        4 => here!(),
        5 => here!(),
        6 => here!(),
        _ => here!(),
    }
}

/// Prints how long the parent stands still for a fork with so much memory, in us.
fn fork(mib: u64) -> Result<(), Failure> {
    let memory = vec![1u8; (mib as usize) << 20];
    std::hint::black_box(&memory);
    for _ in 0..FORKS {
        let taken = super::super::rivals::fork()?;
        println!("{}", taken.as_nanos() as f64 / 1e3);
    }
    Ok(())
}

/// Times of forks of a program with so much memory, in us: the pause of a shadow.
pub fn forks(mib: u64) -> Result<Vec<f64>, Failure> {
    let command = command("fork", mib, 0, 0)?;
    let done = Command::new(&command[0]).args(&command[1..]).output()?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}
