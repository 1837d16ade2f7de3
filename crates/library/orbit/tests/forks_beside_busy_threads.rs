//! A child forked while other threads of its parent use the library continues with its own:
//! whatever they held at the fork blocks no one in the child.

mod common;

use std::ffi::{c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use orbit::{Area, Engine, Kind, Orbit, Outcome, Update, register_operation, unregister_operation};

unsafe extern "C" fn asks(_: *mut c_void, _: *mut c_void) -> c_long {
    let mut update = Update::new();
    update.operation(stays, &[]);
    c_long::from(orbit::push(&update).is_err())
}

unsafe extern "C" fn stays(_: *mut c_void, _: usize) -> c_long {
    DONE.store(true, Ordering::Relaxed);
    0
}

unsafe extern "C" fn comes_and_goes(_: *mut c_void, _: usize) -> c_long {
    1
}

static DONE: AtomicBool = AtomicBool::new(false);

/// Pages that the parent's threads write to and harvest, under the engine whose tracker is a
/// handler of faults.
static WATCHED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
const PAGES: usize = 64;

/// An area whose memory main and orbits have in common, where that is available.
fn in_common(bytes: usize) -> orbit::Result<Area> {
    let made = Area::builder("watched").size(bytes).engine(Engine::Share).build();
    made.or_else(|e| if e.kind() == Kind::Unsupported { Area::new(bytes) } else { Err(e) })
}

fn write_watched() {
    for page in 0..PAGES {
        // SAFETY: an object of as many pages, made before any thread; each byte is written whole
        // and read by nobody.
        unsafe { WATCHED.load(Ordering::Relaxed).add(page * 4096).write_volatile(1) };
    }
}

/// What a child does: an area of either kind, an object and an orbit of its own, and an operation
/// that its parent registered. It writes to what it has of its parent's.
fn own_orbit() -> orbit::Result<bool> {
    write_watched();
    let own = in_common(1 << 16)?;
    own.place(1u64)?;
    let area = Area::new(4096)?;
    let object = area.place(6u64)?;
    // SAFETY: just made, and not shared.
    unsafe {
        orbit::area::free(object.as_ptr().cast())?;
        register_operation(comes_and_goes);
    }
    let orbit = Orbit::new("childs", asks)?;
    let outcome = orbit.call(&[&area], &[])?;
    if let Some(update) = orbit.pull() {
        orbit.apply(&update)?;
    }
    Ok(outcome == Outcome::Returned(0) && DONE.load(Ordering::Relaxed))
}

/// One test, since it forks.
#[test]
fn a_child_waits_for_none_of_its_parents_threads() {
    // SAFETY: takes any bytes.
    unsafe { register_operation(stays) };
    let area = Area::new(1 << 20).expect("area");
    let orbit = Orbit::new("parents", asks).expect("orbit");
    let over = AtomicBool::new(false);
    let allocates = || {
        let object = area.place(1u64).expect("room");
        // SAFETY: just made, and not shared.
        unsafe { orbit::area::free(object.as_ptr().cast()).expect("free") };
    };
    let makes_areas = || Area::new(4096).and_then(|area| area.destroy()).expect("area");
    let registers = || {
        // SAFETY: takes any bytes.
        unsafe { register_operation(comes_and_goes) };
        unregister_operation(comes_and_goes);
    };
    let makes_orbits = || Orbit::new("short", asks).and_then(|orbit| orbit.destroy()).expect("orbit");
    let calls = || drop(orbit.call(&[&area], &[]).expect("call"));
    let watched = in_common(1 << 20).expect("area");
    WATCHED.store(watched.alloc(PAGES * 4096, 4096).expect("room").as_ptr(), Ordering::Relaxed);
    let harvests = || {
        write_watched();
        drop(orbit.call(&[&watched], &[]).expect("call"));
    };
    let makes_watched = || {
        in_common(1 << 16).and_then(|area| area.destroy()).expect("area");
    };
    let busy: [(&str, &(dyn Fn() + Sync)); 7] = [
        ("allocate", &allocates),
        ("make areas", &makes_areas),
        ("register operations", &registers),
        ("make orbits", &makes_orbits),
        ("call", &calls),
        ("write and harvest", &harvests),
        ("make watched areas", &makes_watched),
    ];
    for (what, work) in busy {
        over.store(false, Ordering::Relaxed);
        let failed = std::thread::scope(|threads| {
            let working = || {
                while !over.load(Ordering::Relaxed) {
                    work();
                }
            };
            threads.spawn(working);
            threads.spawn(working);
            let failed = (0..25).find_map(|_| child_fails());
            over.store(true, Ordering::Relaxed);
            failed
        });
        assert_eq!(failed, None, "children of a program whose threads {what}");
    }
}

/// Forks a child that makes an orbit of its own; how it failed, if it did.
fn child_fails() -> Option<String> {
    // SAFETY: the child uses the library, which says that it may, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let end = own_orbit();
        // SAFETY: ends the child without running what main's exit would.
        unsafe { libc::_exit(if matches!(end, Ok(true)) { 0 } else { 1 }) };
    }
    let until = Instant::now() + Duration::from_secs(60);
    let mut status = 0;
    // SAFETY: the child just made, which nothing else waits for.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > until {
            // SAFETY: as above.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &mut status, 0);
            }
            return Some("one hangs".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    (status != 0).then(|| format!("one ends with status {status:#x}"))
}
