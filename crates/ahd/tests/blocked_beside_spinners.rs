//! A wait for a lock is told at the limit also beside threads that were told to spin: these are followed now and then only, and time in which
//! the watcher follows one counts.
//!
//! The test starts itself again as the program.

mod common;
use common::{PATIENCE, Program, Watcher};
use orbit_ahd::{Config, Event, Kind};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

const SPINNERS: usize = 12;
const WAY: &str = "ORBIT_AHD_TEST_BESIDE_SPINNERS";
const LIMIT: Duration = Duration::from_secs(5);
/// Waits by which a thread's loop is learnt.
const ROUNDS: usize = 40;

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn ask(_: libc::c_int) {
    ASKED.store(true, SeqCst);
}

/// Waits for jobs that come now and then, and at last spins.
fn works(nobody: &(Mutex<()>, Condvar), learnt: &AtomicUsize) -> ! {
    for _ in 0..ROUNDS {
        let guard = nobody.0.lock().expect("a lock");
        drop(nobody.1.wait_timeout(guard, Duration::from_millis(120)).expect("a wait"));
    }
    learnt.fetch_add(1, SeqCst);
    loop {
        std::hint::spin_loop();
    }
}

#[test]
fn the_program() {
    if std::env::var(WAY).is_err() {
        return;
    }
    static NOBODY: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    static LEARNT: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: the handler stores a flag.
    unsafe { libc::signal(libc::SIGUSR1, ask as *const () as libc::sighandler_t) };
    for _ in 0..SPINNERS {
        std::thread::spawn(|| works(&NOBODY, &LEARNT));
    }
    while !ASKED.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let lock: &'static mut libc::pthread_mutex_t = Box::leak(Box::new(libc::PTHREAD_MUTEX_INITIALIZER));
    let lock = std::ptr::from_mut(lock) as usize;
    static HELD: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(move || {
        // SAFETY: the mutex lives for ever.
        unsafe { libc::pthread_mutex_lock(lock as *mut libc::pthread_mutex_t) };
        HELD.store(true, SeqCst);
        std::thread::sleep(PATIENCE * 10);
    });
    while !HELD.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: as above.
    unsafe { libc::pthread_mutex_lock(lock as *mut libc::pthread_mutex_t) };
}

/// Time for which the calling thread waited for a CPU.
fn delayed() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0))
}

#[test]
fn a_lock_beside_a_dozen_that_spin() {
    let mut command = Command::new(std::env::current_exe().expect("the test"));
    command.args(["the_program", "--exact"]).env(WAY, "").stdin(Stdio::null()).stdout(Stdio::null());
    let program = Program(command.spawn().expect("the program"));
    let mut w = Watcher::of(program.pid(), Config { limit: LIMIT, ..Config::default() });
    let spins = |e: &Event| matches!(e, Event::Hang(h) if h.kind == Kind::Busy);
    let start = Instant::now();
    while w.events.iter().filter(|e| spins(e)).count() < SPINNERS {
        assert!(start.elapsed() < PATIENCE * 3, "{} are told to spin", w.events.len());
        w.look();
    }
    program.signal(libc::SIGUSR1);
    let (start, before) = (Instant::now(), delayed());
    let blocked = |e: &Event| matches!(e, Event::Hang(h) if h.kind == Kind::Blocked);
    w.until("the lock", |all| all.iter().any(blocked));
    let (took, held_up) = (start.elapsed(), delayed() - before);
    println!("told after {took:?}, of which the watcher waited for a CPU for {held_up:?}");
    // Most of it beyond the limit is the machine's: the program, too, must get a CPU to begin with.
    assert!(took < 3 * LIMIT + held_up, "told after {took:?}; {held_up:?} without a CPU");
    let again = w.events.iter().filter(|e| matches!(e, Event::Recovered { .. })).count();
    assert_eq!(again, 0, "those that spin go on");
}
