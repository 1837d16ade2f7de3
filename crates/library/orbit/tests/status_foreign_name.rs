//! A program whose name is no UTF-8 is seen with its orbits, and so is what they use.

use std::ffi::{c_long, c_void};

use orbit::status::find_process;
use orbit::{Orbit, Outcome};

unsafe extern "C" fn works(_: *mut c_void, _: *mut c_void) -> c_long {
    // Its memory is seen under such a name too.
    std::fs::write("/proc/self/comm", b"\xd0\xb0\xd0").map_or(1, |()| 0)
}

#[test]
fn it_is_found_with_its_orbits() {
    std::fs::write("/proc/self/comm", b"\xd0\xb0) \xff").expect("another name");
    let orbit = Orbit::new("worker", works).expect("orbit");
    assert_eq!(orbit.call(&[], &[]).expect("call"), Outcome::Returned(0));
    let program = find_process(std::process::id() as i32).expect("this program is seen");
    assert_eq!(program.comm, "а) \u{fffd}");
    let worker = program.orbits.iter().find(|orbit| orbit.name == "worker").expect("its orbit is seen");
    assert!(worker.memory > 0, "{worker:?}");
}
