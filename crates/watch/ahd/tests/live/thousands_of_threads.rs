//! Watching a program with 2,000 threads costs less than reading `/proc/PID/task/TID/stat` of each
//! of them PASSES times a second (one such pass a second is 2 to 4 % of a CPU, as busy as the
//! machine is), and the one that hangs among them is found.

use crate::common::{Dir, Program, Watcher, cpu, functions};
use orbit_ahd::{Config, Kind};
use std::process::Command;
use std::time::{Duration, Instant};

const THREADS: usize = 2000;
const PASSES: f64 = 2.0;

#[test]
fn one_of_two_thousand() {
    let dir = Dir::new("crowd");
    let Some(fares) = dir.program() else { return };
    let p = Program::start(Command::new(&fares).args(["crowd", &THREADS.to_string()]));
    let tasks = format!("/proc/{}/task", p.pid());
    let count = || std::fs::read_dir(&tasks).map_or(0, Iterator::count);
    let start = Instant::now();
    while count() < THREADS + 2 {
        assert!(start.elapsed() < crate::common::PATIENCE, "{} threads", count());
        std::thread::sleep(Duration::from_millis(10));
    }
    // As the guard does: the counters of each thread stay open.
    let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `files` outlives both calls.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files);
        files.rlim_cur = files.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
    }
    if files.rlim_cur < 3 * THREADS as u64 + 300 {
        println!("SKIP: needs a limit of {} open files, not {}", 3 * THREADS + 300, files.rlim_cur);
        return;
    }
    let mut w = Watcher::of(p.pid(), Config::default());
    // Meeting so many threads has its price once.
    w.run(Duration::from_secs(3));
    // SAFETY: plain call.
    let me = unsafe { libc::gettid() };
    let own = || cpu(std::process::id() as i32, me);
    let pass = || {
        let before = own();
        for task in std::fs::read_dir(&tasks).expect("tasks").flatten() {
            std::fs::read(task.path().join("stat")).expect("a thread's stat");
        }
        (own() - before).as_secs_f64()
    };
    // In turns, as the machine changes.
    let (mut watched, mut passed) = (0.0, 0.0);
    for _ in 0..6 {
        passed += pass();
        let (start, before) = (Instant::now(), own());
        w.run(Duration::from_secs(1));
        watched += (own() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    }
    let passes = watched / passed;
    println!("{THREADS} threads: {:.2} % of a CPU, as {passes:.1} passes a second", watched / 6.0 * 100.0);
    w.quiet();
    assert!(passes < PASSES, "as {passes:.1} passes a second");
    p.signal(libc::SIGUSR1);
    let h = w.hang();
    assert_eq!((h.kind, h.cycle.len()), (Kind::Blocked, 1), "{h:#?}");
    assert!(functions(h).contains(&"deadlocks_here"), "{h:#?}");
}
