//! A flood of events: what a process did is what was received plus what was counted as lost, exactly; at 80,000 events a second
//! and beyond what anybody can take.

mod common;
use common::{Forked, Gate, kernel_programs_or_skip, until};
use orbit_rmk::{Core, Filter, Kind};
use std::time::{Duration, Instant};

/// Has a child make `calls` system calls, `per_ms` of them each millisecond (0: as fast as it can); gives received and lost.
fn flood(calls: u64, per_ms: u64, queue: u32) -> (u64, u64) {
    let core = Core::new().expect("a core");
    let module = core.client("flood");
    module.use_pin("P_SYSC").expect("P_SYSC");
    let gate = Gate::new();
    let child = Forked::new(|| {
        gate.pass();
        let start = orbit_rmk::now();
        for n in 0..calls {
            // SAFETY: no pointers are passed.
            unsafe { libc::syscall(libc::SYS_getppid) };
            // The clock is read without a system call, so pacing adds no events.
            while per_ms != 0 && n % per_ms == 0 && orbit_rmk::now() - start < n / per_ms * 1_000_000 {
                std::hint::spin_loop();
            }
        }
        gate.pass();
    });
    let filter = Filter::pids(&[child.pid()]).keys(&[libc::SYS_getppid as u32]).queue(queue);
    let id = module.subscr_event("P_SYSC", Kind::CallBegun, filter).expect("a subscription");
    let start = Instant::now();
    gate.open();
    let (mut events, mut received, mut last) = (Vec::new(), 0, 0);
    until("all calls are received or lost", || {
        events.clear();
        received += module.wait(16384, Duration::from_millis(20), &mut events) as u64;
        for event in &events {
            assert!(event.time >= last, "in order");
            last = event.time;
        }
        received + module.counts(id).expect("counts").lost >= calls
    });
    let seconds = start.elapsed().as_secs_f64();
    let counts = module.counts(id).expect("counts");
    println!("{calls} events in {seconds:.2} s: rate {:.0} a second, lost {}", calls as f64 / seconds, counts.lost);
    assert_eq!((counts.passed, counts.due, counts.waiting), (calls, calls, 0), "the kernel counted every call");
    assert_eq!((counts.delivered, received + counts.lost), (received, calls), "nothing is lost silently");
    gate.open();
    (received, counts.lost)
}

#[test]
fn eighty_thousand_events_a_second_arrive() {
    if !kernel_programs_or_skip() {
        return;
    }
    let (_, lost) = flood(120_000, 80, 131_072);
    assert_eq!(lost, 0, "the queue holds them all, however late the reader");
}

#[test]
fn more_than_can_be_taken_is_counted() {
    if !kernel_programs_or_skip() {
        return;
    }
    let (received, lost) = flood(400_000, 0, 64);
    assert!(received > 0 && lost > 0, "{received} received, {lost} lost");
}
