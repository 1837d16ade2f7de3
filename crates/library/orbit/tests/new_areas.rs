//! New areas in any number block no one: not main, not the supervisor, whatever the orbit does
//! meanwhile.

use std::ffi::{c_long, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use orbit::{Area, CallOptions, Kind, Orbit, Outcome, Pending, Restart, WhenFull};

/// Memory that main and its orbits share, from before the library is set up; and a watch over the
/// whole test.
fn shared() -> &'static AtomicI64 {
    static SHARED: OnceLock<usize> = OnceLock::new();
    let at = *SHARED.get_or_init(|| {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(300));
            eprintln!("nothing came back for 300 s");
            std::process::abort();
        });
        let (all, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, never unmapped; and the limit of descriptors raised as far as it
        // may be.
        unsafe {
            let mut files: libc::rlimit = std::mem::zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut files);
            files.rlim_cur = files.rlim_max.min(100_000);
            libc::setrlimit(libc::RLIMIT_NOFILE, &files);
            libc::mmap(std::ptr::null_mut(), 4096, all, shared, -1, 0) as usize
        }
    });
    orbit::init().expect("set up");
    // SAFETY: a mapping of zeroes, aligned, that stays.
    unsafe { &*(at as *const AtomicI64) }
}

/// The sum of the numbers at the addresses given.
unsafe extern "C" fn sum(_: *mut c_void, args: *mut c_void) -> c_long {
    let words = args.cast::<usize>();
    // SAFETY: the calls below give a count and as many addresses of numbers in areas.
    unsafe { (1..=*words).map(|at| *(*words.add(at) as *const i64)).sum() }
}

/// Stays until main says that it may end.
unsafe extern "C" fn wait(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the call gives the address of the shared word.
    let word = unsafe { &**args.cast::<*const AtomicI64>() };
    while word.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    0
}

fn areas(count: usize) -> (Vec<Area>, Vec<u8>) {
    let areas: Vec<Area> = (0..count).map(|_| Area::builder("one").limit(4096).build().expect("area")).collect();
    let places = areas.iter().enumerate().map(|(n, area)| area.place(n as i64).expect("place").as_ptr() as usize);
    let words = std::iter::once(count).chain(places);
    (areas.clone(), words.flat_map(usize::to_ne_bytes).collect())
}

fn right(count: usize) -> Outcome {
    Outcome::Returned((0..count as i64).sum())
}

/// As many as the limit of descriptors allows, for up to three orbits.
fn many() -> usize {
    // SAFETY: the kernel writes one limit to a local.
    let files = unsafe {
        let mut files: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut files);
        files.rlim_cur as usize
    };
    (files.saturating_sub(200) / 8).min(1000)
}

#[test]
fn one_call_names_a_thousand() {
    shared();
    let count = many();
    let (areas, args) = areas(count);
    let areas: Vec<&Area> = areas.iter().collect();
    let orbit = Orbit::new("many", sum).expect("orbit");
    assert_eq!(orbit.call(&areas, &args).expect("call"), right(count));
    // The next process is given all of them with its identity, or with its first call.
    for pending in [Pending::Fail, Pending::Keep] {
        let orbit = Orbit::builder("many").entry(sum).restart(Restart::Always).pending(pending).build().expect("orbit");
        assert_eq!(orbit.call(&areas, &args).expect("call"), right(count));
        orbit.kill().expect("kill");
        // A call that is rejected while the orbit is down comes back at once.
        let give_up = Instant::now() + Duration::from_secs(60);
        let outcome = loop {
            match orbit.call(&areas, &args) {
                Ok(Outcome::Killed(_) | Outcome::Cancelled) => {}
                Err(e) if e.kind() == Kind::Down => {}
                other => break other.expect("call"),
            }
            assert!(Instant::now() < give_up, "down for a minute");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(outcome, right(count));
    }
}

#[test]
fn a_process_that_has_just_ended_is_no_error() {
    shared();
    let (areas, args) = areas(20);
    for round in 0..50 {
        let builder = Orbit::builder("ended").entry(sum).restart(Restart::Always).pending(Pending::Keep);
        let orbit = builder.build().expect("orbit");
        if round % 2 == 0 {
            orbit.wait_ready(Duration::from_secs(60)).expect("up");
        }
        orbit.kill().expect("kill");
        let known: Vec<&Area> = areas.iter().collect();
        let outcome = orbit.call(&known, &args).expect("the call is queued");
        assert!(matches!(outcome, Outcome::Killed(9)) || outcome == right(20), "{outcome}");
        assert_eq!(orbit.call(&known, &args).expect("call"), right(20));
    }
}

#[test]
fn a_full_socket_is_reported_and_empties() {
    let word = shared();
    let area = Area::new(1 << 20).expect("area");
    let bytes = area.alloc(900 << 10, 4096).expect("alloc").as_ptr();
    // SAFETY: the object just allocated.
    unsafe {
        bytes.write_bytes(1, 900 << 10);
        bytes.cast::<i64>().write_unaligned(77);
    }
    let args: Vec<u8> = [1, bytes as usize].into_iter().flat_map(usize::to_ne_bytes).collect();
    for when_full in [WhenFull::Fail, WhenFull::DropOldest, WhenFull::Block] {
        word.store(0, Ordering::Relaxed);
        // No log that is busy has room for the area.
        let builder = Orbit::builder("full").entry(sum).when_full(when_full).log(256 << 10);
        let orbit = builder.build().expect("orbit");
        let at = (std::ptr::from_ref(word) as usize).to_ne_bytes();
        let busy = orbit.call_async_with(&[], &at, &CallOptions::new().function(wait)).expect("call");
        let soon = CallOptions::new().deadline(Duration::from_millis(1));
        // Each time the area is a new one to the orbit, which reads nothing.
        for _ in 0..600 {
            let e = orbit.call_async_with(&[&area], &args, &soon).expect_err("no room");
            assert!(matches!(e.kind(), Kind::Full | Kind::TimedOut), "{e}");
            orbit.detach(&area);
        }
        word.store(1, Ordering::Relaxed);
        assert_eq!(busy.wait().expect("wait"), Outcome::Returned(0));
        // Nothing waits that would make room, so it is said what will; unless the orbit, which is
        // free, has made room by itself meanwhile.
        match orbit.call(&[&area], &args) {
            Err(e) => assert!(e.kind() == Kind::Limit && e.to_string().contains("new areas"), "{e}"),
            Ok(outcome) => assert_eq!(outcome, Outcome::Returned(77)),
        }
        assert_eq!(orbit.call(&[], &0usize.to_ne_bytes()).expect("call"), Outcome::Returned(0));
        assert_eq!(orbit.call(&[&area], &args).expect("call"), Outcome::Returned(77));
    }
}
