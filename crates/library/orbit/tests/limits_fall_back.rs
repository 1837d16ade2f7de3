//! Where no control group is available, limits are held by rlimits and nice, the library says so
//! and why, and an orbit over its memory still ends as `out of memory`.

mod common;

use std::ffi::{c_long, c_void};

use common::{eventually, groups_of};
use orbit::{Limits, Orbit, Outcome, Restart};

/// Fills so many MiB, piece by piece: where one allocation too large for the limit fails, the task
/// has not run out of memory.
unsafe extern "C" fn fill(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes one i64.
    let mib = unsafe { *args.cast::<i64>() };
    let pieces: Vec<Vec<u8>> = (0..mib).map(|_| std::hint::black_box(vec![1u8; 1 << 20])).collect();
    pieces.iter().flat_map(|piece| piece.iter().step_by(4096)).map(|&byte| c_long::from(byte)).sum()
}

#[test]
fn limits_hold_without_a_group() {
    let limits = Limits::new().memory(48 << 20).cpu_percent(20);
    let orbit = Orbit::builder("plain").entry(fill).restart(Restart::Always).limits(limits).build().expect("orbit");
    let held = orbit.limits_held();
    if held.contains("by control group") {
        println!("SKIP: needs a user without a control group ({held})");
        return;
    }
    println!("{held}");
    assert!(
        held.starts_with("memory 50331648 bytes by RLIMIT_DATA, each process for itself, CPU 20 % only approximated")
    );
    assert!(held.contains("(no control group: ") && held.contains("delegate one"), "why, and what to do: {held}");
    assert!(groups_of(std::process::id()).is_empty());
    let call = |mib: i64| {
        let mut outcome = None;
        let answered = eventually(|| {
            outcome = orbit.call(&[], &mib.to_ne_bytes()).ok();
            outcome.is_some()
        });
        assert!(answered, "the orbit takes calls");
        outcome.expect("answered")
    };
    for _ in 0..3 {
        assert_eq!(call(8), Outcome::Returned(2048), "within the limit");
        assert_eq!(call(256), Outcome::OutOfMemory);
    }
    assert_eq!(call(8), Outcome::Returned(2048));
    orbit.destroy().expect("destroy");
}
