//! What an orbit is measured against: fork, a thread that waits on a condition, a process that
//! reads a pipe, and the bare futex. Each is what a careful programmer would write, no slower.

use orbit_console::out::Failure;
use orbit_linux::{futex, open_file, process, sched, signals, stream};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::memory::PAGE;

/// Where the parts of a bench run: main on one CPU, those it hands work to on another. A fork's
/// child may go anywhere, as it would otherwise fight its parent for one CPU.
#[derive(Clone)]
pub struct Places {
    all: Vec<usize>,
}

impl Places {
    /// The CPUs this process may use.
    pub fn find() -> Places {
        Places { all: sched::affinity(0).unwrap_or_default() }
    }

    /// The CPU of those that main hands work to; `None` on one CPU.
    pub fn others(&self) -> Option<usize> {
        (self.all.len() > 1).then(|| self.all[1])
    }

    /// Moves the calling thread to the others' CPU.
    pub fn go_to_others(&self) {
        if let Some(cpu) = self.others() {
            let _ = sched::set_affinity(0, &[cpu]);
        }
    }

    /// Holds the calling thread on main's CPU, or lets it go.
    pub fn hold(&self, on: bool) {
        if self.all.len() > 1 {
            let _ = sched::set_affinity(0, if on { &self.all[..1] } else { &self.all });
        }
    }
}

/// Knows when a thread or process sleeps.
pub struct Sleeper(File);

impl Sleeper {
    /// A thread of this process, by its number.
    pub fn thread(tid: i32) -> io::Result<Sleeper> {
        File::open(format!("/proc/self/task/{tid}/stat")).map(Sleeper)
    }

    /// A process.
    pub fn process(pid: i32) -> io::Result<Sleeper> {
        File::open(format!("/proc/{pid}/stat")).map(Sleeper)
    }

    /// Waits, without sleeping, until it sleeps.
    pub fn wait(&self) -> Result<(), Failure> {
        let began = Instant::now();
        let mut text = [0; 128];
        while began.elapsed() < Duration::from_secs(20) {
            let len = self.0.read_at(&mut text, 0)?;
            // number (name) state; the name is one of ours and has no brackets.
            let bracket = text[..len].iter().rposition(|&byte| byte == b')');
            if bracket.and_then(|at| text.get(at + 2)) == Some(&b'S') {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        Err(Failure::text("a rival did not go to sleep within 20 s"))
    }
}

/// A fork whose child ends at once: how long it delayed the caller.
pub fn fork() -> Result<Duration, Failure> {
    let began = Instant::now();
    let Some(pid) = bare_fork()? else { process::end(0) };
    let took = began.elapsed();
    process::wait_child(pid);
    Ok(took)
}

/// A fork whose child lives until it is dropped.
pub struct Child {
    pid: i32,
    /// How long the fork delayed the caller.
    pub took: Duration,
}

impl Child {
    pub fn start() -> Result<Child, Failure> {
        let began = Instant::now();
        let Some(pid) = bare_fork()? else {
            let _ = process::set_parent_death_signal(libc::SIGKILL);
            loop {
                signals::pause();
            }
        };
        Ok(Child { pid, took: began.elapsed() })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        process::kill_child(self.pid);
    }
}

/// The bare system call, as `fork` of libc makes it, without atfork handlers: less work than
/// libc's, never more.
fn bare_fork() -> Result<Option<i32>, Failure> {
    // SAFETY: in the child the callers make system calls only, and end it.
    Ok(unsafe { process::bare_fork() }?)
}

/// A thread that waits on a condition for work.
pub struct Hand {
    shared: Arc<HandShared>,
    pub sleeper: Sleeper,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct HandShared {
    /// Pieces of work handed over.
    given: Mutex<u64>,
    more: Condvar,
    done: AtomicU64,
    tid: AtomicI32,
    end: AtomicBool,
}

impl Hand {
    /// Starts the thread.
    pub fn start(places: &Places) -> Result<Hand, Failure> {
        let shared = Arc::new(HandShared::default());
        let (there, places) = (shared.clone(), places.clone());
        let thread = std::thread::Builder::new().name("hand".to_owned()).spawn(move || {
            places.go_to_others();
            there.tid.store(process::own_thread_id(), Ordering::Release);
            let mut seen = 0;
            while !there.end.load(Ordering::Acquire) {
                let mut given = there.given.lock().unwrap_or_else(PoisonError::into_inner);
                while *given == seen {
                    given = there.more.wait(given).unwrap_or_else(PoisonError::into_inner);
                }
                seen = *given;
                drop(given);
                there.done.store(seen, Ordering::Release);
            }
        })?;
        let sleeper = Sleeper::thread(wait_for_tid(&shared.tid))?;
        Ok(Hand { shared, sleeper, thread: Some(thread) })
    }

    /// Hands a piece of work over: how long that delayed the caller. Returns after the thread has
    /// taken it.
    pub fn give(&self) -> Duration {
        let began = Instant::now();
        let mut given = self.shared.given.lock().unwrap_or_else(PoisonError::into_inner);
        *given += 1;
        let number = *given;
        drop(given);
        self.shared.more.notify_one();
        let took = began.elapsed();
        while self.shared.done.load(Ordering::Acquire) < number {
            std::hint::spin_loop();
        }
        took
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Release);
        self.give();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn wait_for_tid(word: &AtomicI32) -> i32 {
    loop {
        match word.load(Ordering::Acquire) {
            0 => std::thread::yield_now(),
            tid => return tid,
        }
    }
}

/// A thread that answers a futex by a futex: the least that a round trip between two sleepers
/// costs.
pub struct Echo {
    words: Arc<EchoWords>,
    pub sleeper: Sleeper,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct EchoWords {
    there: AtomicU32,
    back: AtomicU32,
    tid: AtomicI32,
}

/// Tells the echo to end.
const END: u32 = u32::MAX;

impl Echo {
    /// Starts the thread.
    pub fn start(places: &Places) -> Result<Echo, Failure> {
        let words = Arc::new(EchoWords::default());
        let (mine, places) = (words.clone(), places.clone());
        let thread = std::thread::Builder::new().name("echo".to_owned()).spawn(move || {
            places.go_to_others();
            mine.tid.store(process::own_thread_id(), Ordering::Release);
            let mut seen = 0;
            while seen != END {
                await_change(&mine.there, seen);
                seen = mine.there.load(Ordering::Acquire);
                mine.back.store(seen, Ordering::Release);
                futex::wake(&mine.back, 1);
            }
        })?;
        let sleeper = Sleeper::thread(wait_for_tid(&words.tid))?;
        Ok(Echo { words, sleeper, thread: Some(thread) })
    }

    /// There and back: how long it took.
    pub fn round_trip(&self) -> Duration {
        let next = self.words.there.load(Ordering::Relaxed) + 1;
        self.trip(next)
    }

    fn trip(&self, number: u32) -> Duration {
        let began = Instant::now();
        let before = self.words.back.load(Ordering::Relaxed);
        self.words.there.store(number, Ordering::Release);
        futex::wake(&self.words.there, 1);
        await_change(&self.words.back, before);
        began.elapsed()
    }
}

fn await_change(word: &AtomicU32, from: u32) {
    while word.load(Ordering::Acquire) == from {
        // Whatever the answer: the word decides.
        let _ = futex::wait(word, from, None);
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.trip(END);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A resident process that reads a pipe: the dirty pages are written to it. Made before main is
/// large.
pub struct Piped {
    pipe: File,
    pub sleeper: Sleeper,
    pid: i32,
}

impl Piped {
    /// Starts the process. To be called while this one has one thread and little memory.
    pub fn start(places: &Places) -> Result<Piped, Failure> {
        // As much as an ordinary user may have: fewer turns for large writes.
        let (reader, pipe) = open_file::pipe(1 << 20)?;
        stream::set_flags(reader.as_fd(), 0)?;
        stream::set_flags(pipe.as_fd(), 0)?;
        let mut buffer = vec![0_u8; 1 << 20];
        buffer.fill(1);
        let Some(pid) = bare_fork()? else {
            places.go_to_others();
            // Main's end first, or the loop would never end.
            drop(pipe);
            while stream::read(reader.as_fd(), &mut buffer).is_ok_and(|bytes| bytes > 0) {}
            process::end(0)
        };
        drop(reader);
        Ok(Piped { pipe: File::from(pipe), sleeper: Sleeper::process(pid)?, pid })
    }

    /// Writes these pages from `base` on to it: how long that delayed the caller.
    pub fn give(&self, base: *const u8, pages: &[usize]) -> Result<Duration, Failure> {
        let began = Instant::now();
        for part in pages.chunks(1024) {
            let mut slices = [IoSlice::new(&[]); 1024];
            for (slice, page) in slices.iter_mut().zip(part) {
                // SAFETY: the caller has these pages, and nothing writes to them meanwhile.
                *slice = IoSlice::new(unsafe { std::slice::from_raw_parts(base.add(page * PAGE), PAGE) });
            }
            let mut left = &mut slices[..part.len()];
            while !left.is_empty() {
                let written = (&self.pipe).write_vectored(left)?;
                IoSlice::advance_slices(&mut left, written);
            }
        }
        Ok(began.elapsed())
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        process::kill_child(self.pid);
    }
}
