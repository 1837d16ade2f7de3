//! A call returns about when its orbit is killed for its deadline: what ran behind it counts, once,
//! and never as cancelled.

use std::ffi::{c_long, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use orbit::{CallOptions, Future, Kind, Orbit, Outcome, Pending, Restart};

const BEHIND: usize = 80;
const LATE: usize = 60;
const ROUNDS: u64 = 400;

type Counts = [AtomicU32; BEHIND];

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time into a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Stays until a time, then counts itself, if it is one to be counted.
unsafe extern "C" fn until(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: each call below gives a time, and the address of a count or 0.
    let [time, count] = unsafe { *args.cast::<[u64; 2]>() };
    while now_ns() < time {}
    // SAFETY: a count in memory that main and its orbits share.
    if let Some(count) = unsafe { (count as *const AtomicU32).as_ref() } {
        count.fetch_add(1, Ordering::SeqCst);
    }
    1
}

fn args(time: u64, count: Option<&AtomicU32>) -> Vec<u8> {
    let count = count.map_or(0, |count| std::ptr::from_ref(count) as u64);
    [time, count].into_iter().flat_map(u64::to_ne_bytes).collect()
}

/// A call that is queued, if need be by the next process: this one may be killed for a call of the
/// round before, which had returned.
fn queued(orbit: &Orbit, args: &[u8], options: &CallOptions) -> Future {
    loop {
        match orbit.call_async_with(&[], args, options) {
            Err(e) if e.kind() == Kind::Down => orbit.wait_ready(Duration::from_secs(60)).expect("up"),
            made => return made.expect("call"),
        }
    }
}

#[test]
fn what_ran_behind_a_late_call_counts_once() {
    let (all, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of zeroes, large enough for the counts, that stays; made before the
    // library is set up.
    let counts = unsafe { &*libc::mmap(std::ptr::null_mut(), 4096, all, shared, -1, 0).cast::<Counts>() };
    orbit::init_with(orbit::Config::new().shared_memory(orbit::SharedMemory::Writable)).expect("set up");
    for pending in [Pending::Fail, Pending::Keep] {
        let builder = Orbit::builder("race").entry(until).restart(Restart::Always).pending(pending);
        let orbit = builder.build().expect("orbit");
        let (mut late, mut beside) = (0, 0);
        for round in 0..ROUNDS {
            orbit.wait_ready(Duration::from_secs(60)).expect("up");
            counts.iter().for_each(|count| count.store(0, Ordering::SeqCst));
            let crashes = orbit.stats().crashes;
            let soon = CallOptions::new().deadline(Duration::from_millis(3));
            let end = now_ns() + 3_000_000 + (round % 50) * 10_000;
            let first = queued(&orbit, &args(end, None), &soon);
            let plain = CallOptions::new();
            let behind: Vec<Future> =
                counts.iter().map(|count| queued(&orbit, &args(0, Some(count)), &plain)).collect();
            // These are late together with the first: telling their descriptors takes main a while
            // before it kills.
            let skipped: Vec<Future> = (0..LATE).map(|_| queued(&orbit, &args(0, None), &soon)).collect();
            skipped.iter().for_each(|future| drop(future.fd()));
            let outcome = first.wait().expect("wait");
            // The last two: its process was killed for a call of the round before, which had
            // returned.
            let fail = pending == Pending::Fail && outcome == Outcome::Cancelled;
            let right = matches!(outcome, Outcome::TimedOut(_) | Outcome::Returned(1) | Outcome::Killed(9));
            assert!(right || fail, "{outcome}");
            for (place, future) in behind.iter().enumerate() {
                let outcome = future.wait().expect("wait");
                let ran = counts[place].load(Ordering::SeqCst);
                let right = match &outcome {
                    Outcome::Returned(_) => ran == 1,
                    // It was that one which the death of the process met.
                    Outcome::Killed(9) => ran <= 1,
                    Outcome::Cancelled => ran == 0 && pending == Pending::Fail,
                    _ => false,
                };
                assert!(right, "round {round}, {pending:?}: call {place} ran {ran} times and is reported as {outcome}");
            }
            for future in skipped {
                let outcome = future.wait().expect("wait");
                let fail = pending == Pending::Fail && outcome == Outcome::Cancelled;
                let right = matches!(outcome, Outcome::TimedOut(_) | Outcome::Returned(1) | Outcome::Killed(9));
                assert!(right || fail, "{outcome}");
            }
            late += u32::from(matches!(outcome, Outcome::TimedOut(_)));
            beside += u32::from(!matches!(outcome, Outcome::TimedOut(_)) && orbit.stats().crashes > crashes);
        }
        println!("{pending:?}: {late} of {ROUNDS} timed out, {beside} returned beside the end of their orbit");
    }
}
