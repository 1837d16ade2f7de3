//! Threads that a call leaves running write into no later snapshot: their process is replaced, the
//! calls that wait run, and the counters say so. Threads that end with the call, and those of the
//! init function, cost no process.

mod common;

use std::ffi::{c_long, c_void};
use std::time::Duration;

use common::{Gate, begun_then_held};
use orbit::{Area, CallOptions, Orbit, Outcome, Restart};

const NUMBERS: usize = 4096;

unsafe extern "C" fn sum(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the tests pass the address of so many numbers in an area they name.
    unsafe { (0..NUMBERS).map(|n| *(*args.cast::<*const i64>()).add(n)).sum::<i64>() as c_long }
}

/// Leaves a thread that writes to all of the area for ever.
unsafe extern "C" fn leaves_a_writer(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: as above.
    let at = unsafe { *args.cast::<usize>() };
    std::thread::spawn(move || {
        loop {
            for n in 0..NUMBERS {
                let number = std::ptr::with_exposed_provenance_mut::<i64>(at).wrapping_add(n);
                // SAFETY: the area's numbers; the thread ends with its process.
                unsafe { number.write_volatile(-1) };
            }
        }
    });
    1
}

/// Threads that end before the function returns, or are about to.
unsafe extern "C" fn joins(_: *mut c_void, _: *mut c_void) -> c_long {
    let joined: i64 =
        (0..4).map(|n| std::thread::spawn(move || n)).map(|thread| thread.join().expect("no panic")).sum();
    std::thread::scope(|scope| {
        scope.spawn(|| std::hint::black_box(1));
    });
    joined as c_long
}

unsafe extern "C" fn leaves_a_sleeper(_: *mut c_void, _: *mut c_void) -> c_long {
    std::thread::spawn(|| std::thread::sleep(Duration::from_secs(1000)));
    1
}

unsafe extern "C" fn a_thread_of_its_own() -> *mut c_void {
    std::thread::spawn(|| std::thread::sleep(Duration::from_secs(1000)));
    std::ptr::null_mut()
}

#[test]
fn a_left_thread_writes_into_no_later_snapshot() {
    for restart in [Restart::default(), Restart::Never] {
        let area = Area::new(64 << 10).expect("area");
        let numbers = area.place([1i64; NUMBERS]).expect("room").as_ptr().cast::<i64>();
        let args = (numbers as usize).to_ne_bytes();
        let orbit = Orbit::builder("leaver").entry(sum).restart(restart).build().expect("orbit");
        // However loaded the machine is: a call waits for the next process until its deadline.
        let patient = CallOptions::new().deadline(Duration::from_secs(100));
        for round in 0..5i64 {
            let leaves = patient.function(leaves_a_writer);
            assert_eq!(orbit.call_with(&[&area], &args, &leaves).expect("call"), Outcome::Returned(1));
            for later in 1..=4 {
                // SAFETY: an object of the area, which this thread alone uses.
                unsafe { *numbers += 1 };
                let right = NUMBERS as i64 + round * 4 + later;
                assert_eq!(orbit.call_with(&[&area], &args, &patient).expect("call"), Outcome::Returned(right));
            }
        }
        let stats = orbit.stats();
        assert_eq!((stats.left_threads, stats.restarts, stats.crashes, stats.failed), (5, 5, 0, 0));
    }
}

#[test]
fn calls_that_wait_behind_run_on_their_snapshots() {
    let area = Area::new(64 << 10).expect("area");
    let numbers = area.place([1i64; NUMBERS]).expect("room").as_ptr().cast::<i64>();
    let args = (numbers as usize).to_ne_bytes();
    let orbit = Orbit::new("leaver", sum).expect("orbit");
    let gate = Gate::closed("left");
    let held = orbit.call_async_with(&[], &gate.args(), &CallOptions::new().function(begun_then_held)).expect("call");
    let leaves = CallOptions::new().function(leaves_a_writer);
    let leaver = orbit.call_async_with(&[&area], &args, &leaves).expect("call");
    let behind: Vec<_> = (0..5)
        .map(|_| {
            // SAFETY: an object of the area, which this thread alone uses.
            unsafe { *numbers += 1 };
            orbit.call_async(&[&area], &args).expect("call")
        })
        .collect();
    gate.open();
    assert_eq!(held.wait().expect("wait"), Outcome::Returned(1));
    assert_eq!(leaver.wait().expect("wait"), Outcome::Returned(1));
    for (nth, call) in behind.iter().enumerate() {
        assert_eq!(call.wait().expect("wait"), Outcome::Returned((NUMBERS + 1 + nth) as i64));
    }
    let stats = orbit.stats();
    assert_eq!((stats.left_threads, stats.crashes, stats.failed), (1, 0, 0));
}

#[test]
fn threads_that_end_with_the_call_cost_no_process() {
    let area = Area::new(64 << 10).expect("area");
    let orbit = Orbit::new("joiner", joins).expect("orbit");
    orbit.wait_ready(Duration::from_secs(60)).expect("up");
    let pid = orbit.pid();
    for _ in 0..200 {
        assert_eq!(orbit.call(&[&area], &[]).expect("call"), Outcome::Returned(6));
    }
    assert_eq!((orbit.pid(), orbit.stats().left_threads), (pid, 0));
}

/// A module keeps threads from one call to the next; before its first snapshot they end.
#[test]
fn threads_stay_as_long_as_there_is_no_snapshot() {
    let area = Area::new(64 << 10).expect("area");
    let numbers = area.place([1i64; NUMBERS]).expect("room").as_ptr().cast::<i64>();
    let args = (numbers as usize).to_ne_bytes();
    let orbit = Orbit::new("module", sum).expect("orbit");
    let sleeps = CallOptions::new().function(leaves_a_sleeper);
    for _ in 0..20 {
        assert_eq!(orbit.call_with(&[], &[], &sleeps).expect("call"), Outcome::Returned(1));
    }
    assert_eq!((orbit.stats().left_threads, orbit.stats().restarts), (0, 0));
    let patient = CallOptions::new().deadline(Duration::from_secs(100));
    assert_eq!(orbit.call_with(&[&area], &args, &patient).expect("call"), Outcome::Returned(NUMBERS as i64));
    let stats = orbit.stats();
    assert_eq!((stats.left_threads, stats.restarts, stats.crashes, stats.failed), (1, 1, 0, 0));
}

#[test]
fn threads_of_the_init_function_stay() {
    let area = Area::new(64 << 10).expect("area");
    let orbit = Orbit::builder("keeper").entry(joins).init(a_thread_of_its_own).build().expect("orbit");
    for _ in 0..20 {
        assert_eq!(orbit.call(&[&area], &[]).expect("call"), Outcome::Returned(6));
    }
    assert_eq!((orbit.stats().left_threads, orbit.stats().restarts), (0, 0));
}
