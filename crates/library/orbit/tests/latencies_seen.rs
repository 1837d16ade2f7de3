//! The latencies that `orbit ps` shows are those of calls that returned; a cancelled call has none.

use std::ffi::{c_long, c_void};
use std::time::Duration;

use orbit::status::{OrbitStatus, find_process};
use orbit::{Orbit, Outcome};

unsafe extern "C" fn sleeps(_: *mut c_void, _: *mut c_void) -> c_long {
    std::thread::sleep(Duration::from_millis(2_000));
    0
}

fn seen() -> OrbitStatus {
    let program = find_process(std::process::id() as i32).expect("this program is seen");
    program.orbits.into_iter().find(|orbit| orbit.name == "sleeper").expect("its orbit is seen")
}

#[test]
fn cancelled_calls_do_not_count_as_fast_ones() {
    let orbit = Orbit::new("sleeper", sleeps).expect("orbit");
    let first = orbit.call_async(&[], &[]).expect("call");
    let behind: Vec<_> = (0..20).map(|_| orbit.call_async(&[], &[]).expect("call")).collect();
    let cancelled = behind.iter().filter(|future| future.cancel()).count();
    assert_eq!(first.wait().expect("wait"), Outcome::Returned(0));
    for future in &behind {
        future.wait().expect("wait");
    }
    assert!(cancelled > 10, "{cancelled} were cancelled: the first one sleeps meanwhile");
    // A bucket says where between two powers of two a latency lies.
    assert!(seen().p50_us() >= 1_000_000.0, "half of the calls that returned took {} us", seen().p50_us());
    assert_eq!(seen().lost, cancelled as u64);
}
