//! Counters: a busy thread's clock moves and wakes its watcher; watched memory counts and reports
//! each write; where the hardware has no counter the error says so.

use orbit_linux::perf::{self, Access, Counter, Kind, Ticks};
use orbit_linux::poll;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

struct Busy {
    tid: i32,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn start() -> Busy {
        let (stop, tid) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
        let (stop2, tid2) = (stop.clone(), tid.clone());
        let thread = std::thread::spawn(move || {
            // SAFETY: reads a number.
            tid2.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            while !stop2.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        while tid.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        Busy { tid: tid.load(Ordering::SeqCst), stop, thread: Some(thread) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

fn skip(support: orbit_linux::Support, what: &str) -> bool {
    if let Some(why) = support.reason() {
        println!("SKIP: needs {what}: {why}");
        return true;
    }
    false
}

#[test]
fn a_busy_threads_clock_wakes_its_watcher() {
    if skip(perf::probe(), "perf counters") {
        return;
    }
    let busy = Busy::start();
    let mut counter = Counter::open_thread(busy.tid, Kind::TaskClock).expect("open");
    counter.set_period(2_000_000).expect("period");
    let mut samples = 0;
    while samples < 5 {
        let mut polled = [libc::pollfd { fd: counter.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        assert_eq!(poll::poll(&mut polled, Some(Duration::from_secs(30))).expect("poll"), 1, "no overflow in 30 s");
        while let Some(s) = counter.next_sample() {
            assert_eq!((s.tid, s.pid), (busy.tid, std::process::id() as i32));
            samples += 1;
        }
    }
    assert!(counter.read() >= 8_000_000, "{} ns", counter.read());
    counter.set_period(1_000_000).expect("another period");
    counter.disable().expect("disable");
    counter.reset().expect("reset");
    assert_eq!(counter.read(), 0);
}

#[test]
fn a_processors_clock_moves() {
    match Counter::open_cpu(0, Kind::CpuClock) {
        Ok(c) => {
            let before = c.read();
            std::thread::sleep(Duration::from_millis(10));
            assert!(c.read() > before);
        }
        Err(e) => println!("SKIP: needs perf counters on a processor: {e}"),
    }
}

#[test]
fn instructions_count_or_the_error_says_why() {
    match Counter::open_thread(0, Kind::Instructions) {
        Ok(c) => {
            let before = c.read();
            std::hint::black_box((0..10_000u64).fold(0, |a, b| std::hint::black_box(a ^ b)));
            assert!(c.read() >= before + 10_000);
        }
        Err(e) => {
            assert!(matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied), "{e:?}");
            assert!(e.to_string().contains("task clock") || e.to_string().contains("perf_event"), "{e}");
            println!("SKIP: needs an instruction counter: {e}");
        }
    }
}

#[test]
fn watched_writes_are_counted_and_reported() {
    if skip(perf::probe_breakpoint(), "hardware breakpoints") {
        return;
    }
    let word = Box::new(AtomicU64::new(0));
    let addr = word.as_ptr() as usize;
    let mut counter = Counter::open_thread(0, Kind::Breakpoint { addr, len: 8, access: Access::Write }).expect("open");
    counter.set_period(1).expect("period");
    for i in 1..=10 {
        word.store(i, Ordering::SeqCst);
    }
    std::hint::black_box(word.load(Ordering::SeqCst));
    assert_eq!(counter.read(), 10);
    let samples: Vec<_> = std::iter::from_fn(|| counter.next_sample()).collect();
    assert_eq!(samples.len() as u64 + counter.lost(), 10);
    assert!(samples.iter().all(|s| s.addr == addr as u64 && s.ip != 0), "{samples:?}");
}

#[inline(never)]
extern "C" fn watched_function(n: u64) -> u64 {
    std::hint::black_box(n + 1)
}

#[test]
fn a_watched_instruction_is_counted() {
    if skip(perf::probe_breakpoint(), "hardware breakpoints") {
        return;
    }
    let addr = watched_function as extern "C" fn(u64) -> u64 as usize;
    let kind = Kind::Breakpoint { addr, len: 1, access: Access::Execute };
    let counter = match Counter::open_thread(0, kind) {
        Ok(c) => c,
        Err(e) => {
            println!("SKIP: needs breakpoints on instructions: {e}");
            return;
        }
    };
    let call = std::hint::black_box(watched_function as extern "C" fn(u64) -> u64);
    for i in 0..7 {
        call(i);
    }
    assert_eq!(counter.read(), 7);
}

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: i32) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn an_overflow_raises_the_signal_asked_for() {
    if skip(perf::probe_breakpoint(), "hardware breakpoints") {
        return;
    }
    let signal = libc::SIGRTMIN() + 3;
    // SAFETY: the handler only adds to an atomic; the signal is used by nothing else here.
    unsafe { libc::signal(signal, on_signal as extern "C" fn(i32) as libc::sighandler_t) };
    let word = Box::new(AtomicU64::new(0));
    let addr = word.as_ptr() as usize;
    let mut counter =
        Counter::open_thread(0, Kind::Breakpoint { addr, len: 8, access: Access::ReadWrite }).expect("open");
    counter.set_period(1).expect("period");
    // SAFETY: reads a number.
    counter.signal_on_overflow(unsafe { libc::gettid() }, signal).expect("signal");
    word.store(1, Ordering::SeqCst);
    let give_up = std::time::Instant::now() + Duration::from_secs(30);
    while SIGNALS.load(Ordering::SeqCst) == 0 {
        assert!(std::time::Instant::now() < give_up, "no signal");
        std::thread::yield_now();
    }
}

#[test]
fn a_breakpoint_that_is_not_aligned_is_refused() {
    if skip(perf::probe_breakpoint(), "hardware breakpoints") {
        return;
    }
    assert!(Counter::open_thread(0, Kind::Breakpoint { addr: 0x1001, len: 8, access: Access::Write }).is_err());
    let mut c = Counter::open_thread(0, Kind::TaskClock).expect("open");
    assert_eq!(c.set_period(0).expect_err("0").kind(), ErrorKind::InvalidInput);
}

#[test]
fn ticks_say_where_the_thread_is() {
    if skip(perf::probe(), "perf counters") {
        return;
    }
    let busy = Busy::start();
    let mut ticks = Ticks::open(busy.tid, 100_000, false).expect("a clock");
    let give_up = std::time::Instant::now() + Duration::from_secs(30);
    let (mut met, mut last) = (0, 0);
    while met < 20 {
        assert!(std::time::Instant::now() < give_up, "{met} ticks in 30 s");
        while let Some(tick) = ticks.next_tick() {
            assert!(tick.own, "without ticks inside the kernel: {tick:?}");
            let registers = tick.registers.expect("a program of 64 bits");
            // Its loop stands in this program, and its stack where no code is.
            let here = ticks_say_where_the_thread_is as fn() as usize as u64;
            assert!(registers[16].abs_diff(here) < 1 << 30, "{registers:x?}");
            assert!(registers[7].abs_diff(here) > 1 << 30 && registers[7].is_multiple_of(8), "{registers:x?}");
            assert!(tick.ns > last, "{} after {last}", tick.ns);
            (met, last) = (met + 1, tick.ns);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
