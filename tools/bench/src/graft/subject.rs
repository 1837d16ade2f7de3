//! The program that is entered: this command again, with a thread that reads the clock without
//! pause and others that sleep.

use super::failed;
use graft::Process;
use orbit_console::out::{Done, Failure};
use orbit_linux::child::Exit;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What the program notes; this process reads and resets it in the program's memory.
#[repr(C)]
struct Noted {
    /// The longest time between two readings of the clock since it was reset, ns.
    gap: AtomicU64,
    /// Readings.
    readings: AtomicU64,
}

static NOTED: Noted = Noted { gap: AtomicU64::new(0), readings: AtomicU64::new(0) };

/// How long the program may take to begin, or to read the clock again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Becomes the program, which runs until it is killed.
pub fn run(threads: usize) -> Done {
    let begun = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| {
                begun.wait();
                loop {
                    std::thread::park();
                }
            });
        }
        begun.wait();
        println!("{}", &raw const NOTED as usize);
        std::io::stdout().flush()?;
        let begun = Instant::now();
        let mut last = begun.elapsed();
        loop {
            let now = begun.elapsed();
            NOTED.gap.fetch_max((now - last).as_nanos() as u64, SeqCst);
            NOTED.readings.fetch_add(1, SeqCst);
            last = now;
        }
    })
}

/// The program, from outside; killed when dropped.
pub struct Subject {
    child: Child,
    pub process: Process,
    noted: u64,
}

impl Subject {
    pub fn start(threads: usize) -> Result<Subject, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["graft", "--subject", &threads.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let found = read.transpose()?.and(line.trim().parse().ok()).ok_or_else(|| failed("the program did not begin"));
        let process = Process::find(child.id() as i32).map_err(failed);
        match (found, process) {
            (Ok(noted), Ok(process)) => Ok(Subject { child, process, noted }),
            (Err(error), _) | (_, Err(error)) => {
                // It may have ended already; then only its status is taken.
                let _ = child.kill();
                let _ = child.wait_for_exit();
                Err(error)
            }
        }
    }

    /// How long the program stood still at most while `enter` ran.
    pub fn stopped_by(&self, enter: impl FnOnce() -> Result<(), Failure>) -> Result<Duration, Failure> {
        self.reads_on()?;
        self.process.write(self.noted, &0u64.to_ne_bytes()).map_err(failed)?;
        enter()?;
        self.reads_on()?;
        Ok(Duration::from_nanos(self.word(0)?))
    }

    /// Waits until it has read the clock twice more: then the last gap is noted.
    fn reads_on(&self) -> Result<(), Failure> {
        let (before, since) = (self.word(1)?, Instant::now());
        while self.word(1)? < before + 2 {
            if since.elapsed() > PATIENCE {
                return Err(failed(format!("the program did not run within {PATIENCE:?}")));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn word(&self, nth: u64) -> Result<u64, Failure> {
        let mut word = [0u8; 8];
        self.process.read(self.noted + 8 * nth, &mut word).map_err(failed)?;
        Ok(u64::from_ne_bytes(word))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // It may have ended already; then only its status is taken.
        let _ = self.child.kill();
        let _ = self.child.wait_for_exit();
    }
}
