//! A signal handler may fork, whatever of the library it interrupts: calls, merges, making and
//! dropping areas of the engine `share`. Not the allocator, of which libc's own fork takes locks.

mod common;
mod shared_common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use common::{Random, seed};
use orbit::{Orbit, Outcome};
use shared_common::{PAGE, Range, area, bytes, quiet, sum_then_spoil};

/// The system's allocator, which says when it works.
struct Marked;

thread_local! {
    static ALLOCATES: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Marked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = ALLOCATES.replace(true);
        // SAFETY: the caller's promise is the same.
        let at = unsafe { System.alloc(layout) };
        ALLOCATES.set(before);
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let before = ALLOCATES.replace(true);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) };
        ALLOCATES.set(before);
    }
}

#[global_allocator]
static ALLOCATOR: Marked = Marked;

/// The object of the test below, and how many children of its handler there were, and were wrong.
static OBJECT: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
static CHILDREN: AtomicU32 = AtomicU32::new(0);
static HANDLED: AtomicU32 = AtomicU32::new(0);
static WRONG: AtomicU32 = AtomicU32::new(0);

extern "C" fn forks(_: c_int) {
    if !ALLOCATES.get() {
        fork_once();
    }
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn fork_once() {
    let base = OBJECT.load(Ordering::SeqCst);
    // SAFETY: libc's fork in a handler; the child reads and writes one page that it has, and
    // leaves.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let before = base.read_volatile();
            base.write_volatile(before + 1);
            libc::_exit(i32::from(before == 0 || base.read_volatile() != before + 1));
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        WRONG.fetch_add(u32::from(child < 0 || status != 0), Ordering::SeqCst);
        CHILDREN.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_signal_handler_may_fork() {
    let Some((area, base)) = area(64) else { return };
    let range = Range { base: base as usize, pages: 64 };
    let orbit = Orbit::new("sums", sum_then_spoil).expect("orbit");
    OBJECT.store(base, Ordering::SeqCst);
    // SAFETY: inside the object, which this thread alone writes.
    unsafe { base.write_volatile(2) };
    // SAFETY: the handler forks, which is what is tested; this thread is the one to be interrupted.
    let this = unsafe {
        assert_ne!(libc::signal(libc::SIGUSR1, forks as *const () as usize), libc::SIG_ERR);
        libc::pthread_self()
    };
    let over = AtomicU32::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut random = Random(seed());
            while over.load(Ordering::SeqCst) == 0 {
                let seen = HANDLED.load(Ordering::SeqCst);
                // SAFETY: a thread that waits for this one.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                while HANDLED.load(Ordering::SeqCst) == seen && over.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                std::thread::sleep(std::time::Duration::from_micros(random.below(300) as u64));
            }
        });
        let mut value = 2u64;
        while CHILDREN.load(Ordering::SeqCst) < 300 {
            value += 2;
            // SAFETY: as above; a handler's child writes to its own copy.
            unsafe { base.write_volatile(value) };
            let seen = orbit.call_with(&[&area], bytes(&range), &quiet()).expect("call");
            assert_eq!(seen, Outcome::Returned(value as i64 >> 1));
            // SAFETY: this thread alone writes, and its handlers' children do not write here.
            unsafe { area.merge() }.expect("merge");
            drop(shared_common::build("short", 4 * PAGE).expect("area"));
        }
        over.store(1, Ordering::SeqCst);
    });
    assert_eq!(WRONG.load(Ordering::SeqCst), 0);
}
