//! Of threads that are suspected together each is judged when its turn comes: one that has left its
//! section by then is not reported to hang in whatever it does next.
//!
//! The test starts itself again as the program.

use crate::common::{PATIENCE, Program};
use orbit_ahd::{Config, Event};
use orbit_section::{Section, enter, section};
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

static WAITS: Section = section!("waits");
static WRITER: AtomicI32 = AtomicI32::new(-1);

const WAY: &str = "ORBIT_AHD_TEST_LEFT_MEANWHILE";
/// More than are reported together.
const THREADS: usize = 400;
const LIMIT: Duration = Duration::from_secs(1);

extern "C" fn let_all_go(_: i32) {
    // SAFETY: plain call with a number.
    unsafe { libc::close(WRITER.load(Ordering::SeqCst)) };
}

fn pause() -> ! {
    loop {
        // SAFETY: plain call.
        unsafe { libc::pause() };
    }
}

/// Reads in a section until nobody can write any more.
fn reads(fd: i32) {
    let _inside = enter(&WAITS);
    let mut byte = 0u8;
    // SAFETY: room for a byte.
    while unsafe { libc::read(fd, (&raw mut byte).cast(), 1) } < 0 {}
}

fn program() -> ! {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers; the handler makes one plain call.
    unsafe {
        libc::pipe(ends.as_mut_ptr());
        libc::signal(libc::SIGUSR1, let_all_go as extern "C" fn(i32) as usize);
    }
    WRITER.store(ends[1], Ordering::SeqCst);
    let begin = Arc::new(Barrier::new(THREADS));
    for _ in 0..THREADS {
        let begin = Arc::clone(&begin);
        let work = move || {
            begin.wait();
            reads(ends[0]);
            pause();
        };
        std::thread::Builder::new().stack_size(64 << 10).spawn(work).expect("a thread");
    }
    reads(ends[0]);
    pause();
}

#[test]
fn the_program() {
    if std::env::var_os(WAY).is_some() {
        program();
    }
}

/// Threads of the process that sleep in this call.
fn sleeping_in(pid: i32, call: i64) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten();
    let in_it = |text: String| text.split(' ').next() == Some(&call.to_string());
    tasks.filter(|t| std::fs::read_to_string(t.path().join("syscall")).is_ok_and(in_it)).count()
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn threads_that_left_are_not_reported() {
    let itself = std::env::current_exe().expect("the test");
    let program = Program::start(
        Command::new(itself).args(["sections_left_meanwhile::the_program", "--exact", "--nocapture"]).env(WAY, "1"),
    );
    let pid = program.pid();
    wait_until("all to wait", || sleeping_in(pid, libc::SYS_read) == THREADS + 1);
    let mut ahd = orbit_ahd::Watcher::new(Config { limit: LIMIT, ..Config::default() });
    ahd.add(pid).expect("the program");
    let (mut hangs, mut let_go) = (Vec::new(), None);
    let start = Instant::now();
    while let_go.is_none_or(|at: Instant| at.elapsed() < LIMIT * 3) {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for a hang");
        std::thread::sleep(ahd.pause());
        ahd.scan(&mut |event| {
            let Event::Hang(hang) = event else { return };
            hangs.push(hang);
            if let_go.is_none() {
                // The others are still to be judged, in this scan or the next.
                program.signal(libc::SIGUSR1);
                wait_until("all to get on", || sleeping_in(pid, libc::SYS_pause) == THREADS + 1);
                let_go = Some(Instant::now());
            }
        });
    }
    println!("{} reported", hangs.len());
    for hang in &hangs {
        assert!(hang.why.contains("bytes from the pipe"), "{}", hang.why);
    }
}
