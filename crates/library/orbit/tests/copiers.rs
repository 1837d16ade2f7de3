//! Calls whose snapshot a copier holds: nothing of it is lost, whatever becomes of the copier, and
//! the program's signal handlers do not run in it.

mod common;

use std::ffi::{c_long, c_void};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{Random, seed};
use orbit::{Area, CallOptions, Engine, Future, Orbit, Outcome};

const PAGE: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

/// One at a time: each searches for the copiers of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first word at the address in `args`.
unsafe extern "C" fn first_word(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of memory in an area.
    unsafe { *(*args.cast::<*const c_long>()) }
}

unsafe extern "C" fn sleeps(_: *mut c_void, _: *mut c_void) -> c_long {
    std::thread::sleep(Duration::from_millis(1500));
    0
}

fn area(pages: usize) -> (Area, *mut u64) {
    let bytes = (pages + 16) * PAGE;
    let area = Area::builder("held").size(bytes).limit(bytes).engine(Engine::Fork).build().expect("area");
    let base = area.alloc(pages * PAGE, PAGE).expect("room").as_ptr().cast();
    (area, base)
}

/// What two scans in a row agree on: one that meets a child being reaped may leave a younger one
/// out.
fn children() -> Vec<i32> {
    let mut last = children_seen();
    loop {
        let seen = children_seen();
        if seen == last {
            return seen;
        }
        last = seen;
    }
}

fn children_seen() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("tasks").flatten();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks.flat_map(|task| of(task).split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// An orbit that is busy, and a call behind that whose snapshot a copier holds; the copier's
/// process id.
fn held(orbit: &Orbit, area: &Area, base: *mut u64) -> (Future, i32) {
    drop(orbit.call_async_with(&[], &[], &CallOptions::default().function(sleeps)).expect("a call"));
    let before = children();
    let future = orbit.call_async(&[area], &(base as usize).to_ne_bytes()).expect("a call");
    let mut copier = None;
    assert!(common::eventually(|| {
        copier = children().into_iter().find(|pid| !before.contains(pid));
        copier.is_some()
    }));
    (future, copier.expect("a copier"))
}

#[test]
fn a_page_that_becomes_what_it_was_is_seen_so() {
    let _alone = alone();
    let orbit = Orbit::new("again", first_word).expect("orbit");
    let (area, base) = area(64);
    let mut random = Random(seed());
    for call in 0..400 {
        let value = random.next() as c_long % 2;
        // SAFETY: an object of the area.
        unsafe { base.write_volatile(value as u64) };
        let outcome = orbit.call(&[&area], &(base as usize).to_ne_bytes()).expect("a call");
        assert_eq!(outcome, Outcome::Returned(value), "call {call}");
    }
}

#[test]
fn a_call_whose_copier_dies_ends_and_the_next_sees_all() {
    let _alone = alone();
    let orbit = Orbit::new("widow", first_word).expect("orbit");
    let (area, base) = area(256);
    // SAFETY: an object of the area.
    unsafe { base.write_volatile(41) };
    let (future, copier) = held(&orbit, &area, base);
    // SAFETY: a child that the library has not reaped: it holds the snapshot until the orbit's
    // first call ends.
    unsafe { libc::kill(copier, libc::SIGKILL) };
    let begun = Instant::now();
    assert_eq!(future.wait_timeout(PATIENCE).expect("an end"), Outcome::Cancelled);
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(orbit.call(&[&area], &(base as usize).to_ne_bytes()).expect("a call"), Outcome::Returned(41));
}

#[test]
fn the_kernel_kills_a_copier_before_main() {
    let _alone = alone();
    let score = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap_or_default();
    let own = score(std::process::id() as i32);
    let orbit = Orbit::new("spared", first_word).expect("orbit");
    let (area, base) = area(256);
    // SAFETY: an object of the area.
    unsafe { base.write_volatile(41) };
    let (future, copier) = held(&orbit, &area, base);
    assert!(common::eventually(|| score(copier).trim() == "1000"), "{}", score(copier));
    assert_eq!(score(std::process::id() as i32), own, "main keeps its own");
    assert_eq!(future.wait_timeout(PATIENCE).expect("an end"), Outcome::Returned(41));
}

#[test]
fn handlers_of_the_program_run_in_no_copier() {
    let _alone = alone();
    static RUNS: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
    extern "C" fn count(_: i32) {
        // SAFETY: shared memory that is never unmapped.
        unsafe { &*RUNS.load(Ordering::Relaxed) }.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: a fresh mapping, shared with children, zeroed; the handler does nothing but count in
    // it.
    let runs = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        RUNS.store(page.cast(), Ordering::Relaxed);
        libc::signal(libc::SIGUSR2, count as extern "C" fn(i32) as libc::sighandler_t);
        &*page.cast::<AtomicU64>()
    };
    let orbit = Orbit::new("deaf", first_word).expect("orbit");
    let (area, base) = area(256);
    // SAFETY: an object of the area.
    unsafe { base.write_volatile(43) };
    let (future, copier) = held(&orbit, &area, base);
    for _ in 0..10 {
        // SAFETY: as in the test above.
        unsafe { libc::kill(copier, libc::SIGUSR2) };
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(future.wait_timeout(PATIENCE).expect("an end"), Outcome::Returned(43));
    assert_eq!(runs.load(Ordering::Relaxed), 0, "runs of the handler");
}

/// Bytes of memory that the largest replica has.
fn replica_bytes() -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let is_replica = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("memfd:orbit-replica"))
    };
    let of = |path: std::path::PathBuf| std::fs::metadata(path).map_or(0, |file| file.blocks() * 512);
    files.map(|file| file.path()).filter(|path| is_replica(path)).map(of).max().unwrap_or(0)
}

#[test]
fn memory_that_nobody_touched_costs_none_in_the_replica() {
    let _alone = alone();
    let orbit = Orbit::new("sparse", first_word).expect("orbit");
    let (area, base) = area(65_536);
    // SAFETY: an object of the area.
    let last = unsafe { base.add(65_535 * PAGE / 8) };
    for value in [7, 0, 9] {
        // SAFETY: as above.
        unsafe { last.write_volatile(value) };
        let outcome = orbit.call(&[&area], &(last as usize).to_ne_bytes()).expect("a call");
        assert_eq!(outcome, Outcome::Returned(value as c_long));
    }
    let begun = Instant::now();
    // The supervisor gives a replica its memory afterwards, if at all.
    while begun.elapsed() < Duration::from_millis(200) {
        assert!(replica_bytes() < 8 << 20, "{} bytes", replica_bytes());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// However many large snapshots copiers held before, up to eight in a row: the call after them
/// sends what was written since.
#[test]
fn what_follows_a_held_snapshot_is_as_small_as_its_delta() {
    const PAGES: usize = 8192;
    let _alone = alone();
    let mut held = 0;
    for engine in [Engine::Auto, Engine::Fork] {
        let orbit = Orbit::new("small-again", first_word).expect("orbit");
        let bytes = (PAGES + 16) * PAGE;
        let area = Area::builder("large").size(bytes).limit(bytes).engine(engine).build().expect("area");
        let base: *mut u64 = area.alloc(PAGES * PAGE, PAGE).expect("room").as_ptr().cast();
        let mut value = 0;
        let mut write = |pages: usize| {
            value += 1;
            // SAFETY: pages of the object just allocated, which only this thread uses.
            (0..pages).for_each(|page| unsafe { *base.add(page * PAGE / 8) = value });
            let before = orbit.stats();
            let outcome = orbit.call(&[&area], &(base as usize).to_ne_bytes()).expect("call");
            assert_eq!(outcome, Outcome::Returned(value as c_long));
            let after = orbit.stats();
            held += after.copiers - before.copiers;
            after.pages - before.pages
        };
        for large in [1, 1, 2, 3, 8, 1] {
            (0..large).for_each(|_| assert!(write(PAGES) >= PAGES as u64));
            for _ in 0..3 {
                assert!(write(1) <= 2, "{engine}: after {large} large ones");
            }
        }
    }
    assert!(held >= 16, "{held} snapshots were held by copiers");
}

/// The process id of each step, for [`a_copier_does_not_outlive_a_main_that_is_killed`]: a copier
/// that waits for its turn, and its orbit; then "turn" once the orbit has come to its call.
fn main_that_is_killed(gate: std::ffi::OsString) -> ! {
    let orbit = Orbit::new("outlived", first_word).expect("orbit");
    let (area, base) = area(256);
    (0..256).for_each(|page| {
        // SAFETY: an object of the area.
        unsafe { base.add(page * PAGE / 8).write_volatile(7) }
    });
    let mut path = gate.into_encoded_bytes();
    path.push(0);
    let before = orbit.call_async_with(&[], &path, &CallOptions::default().function(common::begun_then_held));
    let before = before.expect("a call");
    before.pull().expect("begun");
    let others = children();
    let _held = orbit.call_async(&[&area], &(base as usize).to_ne_bytes()).expect("a call");
    let copier = children().into_iter().find(|pid| !others.contains(pid)).expect("a copier");
    println!("\npids {copier} {}", orbit.stats().pid);
    before.wait().expect("the gate is open");
    println!("\nturn");
    loop {
        std::thread::sleep(PATIENCE);
    }
}

#[test]
fn a_copier_does_not_outlive_a_main_that_is_killed() {
    if let Some(gate) = std::env::var_os("ORBIT_TEST_GATE") {
        main_that_is_killed(gate);
    }
    let gate = common::Gate::closed("outlived");
    let mut path = gate.args();
    path.pop();
    let mut main = std::process::Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "a_copier_does_not_outlive_a_main_that_is_killed", "--nocapture"])
        .env("ORBIT_TEST_GATE", String::from_utf8(path).expect("a path"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("start");
    let mut lines = BufReader::new(main.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let pids = lines.find(|line| line.starts_with("pids ")).expect("the copier and the orbit");
    let pids: Vec<i32> = pids.split(' ').skip(1).map(|pid| pid.parse().expect("a number")).collect();
    let (copier, orbit) = (pids[0], pids[1]);
    common::hold_up(copier);
    let files = std::fs::read_dir(format!("/proc/{copier}/fd")).expect("its descriptors").flatten();
    let is_replica = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("memfd:orbit-replica"))
    };
    let path = files.map(|file| file.path()).find(is_replica).expect("the replica");
    let replica = std::fs::File::open(path).expect("the replica");
    // The orbit comes to the call, and sleeps until the copier has written.
    gate.open();
    lines.find(|line| line == "turn").expect("the call before has ended");
    let sleeps = || std::fs::read_to_string(format!("/proc/{orbit}/stat")).is_ok_and(|stat| stat.contains(") S "));
    assert!(common::eventually(sleeps));
    main.kill().expect("kill");
    main.wait().expect("its end");
    // SAFETY: the stopped process, whose number nobody else has before it has run and ended.
    unsafe { libc::kill(copier, libc::SIGCONT) };
    let state = || std::fs::read_to_string(format!("/proc/{copier}/stat")).unwrap_or_default();
    assert!(common::eventually(|| state().is_empty() || state().contains(") Z ")), "it ends");
    assert_eq!(replica.metadata().expect("a file").blocks(), 0, "and has copied for nobody");
}
