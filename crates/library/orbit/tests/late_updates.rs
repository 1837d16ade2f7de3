//! An update for an object that main has freed meanwhile leaves no trace in memory that is handed
//! out as zeros.

use std::ffi::{c_long, c_void};

use orbit::{Area, Orbit, Update};

const PAGE: usize = 4096;
const BYTES: usize = 64 * PAGE;

/// Pushes a modification of the place that the arguments name.
unsafe extern "C" fn push(_: *mut c_void, args: *mut c_void) -> c_long {
    let mut update = Update::new();
    // SAFETY: the test passes an address.
    update.modify(unsafe { *args.cast::<usize>() }, b"a late update");
    orbit::push(&update).map_or(-1, |()| 0)
}

/// The number of bytes of a new object that are not zero.
fn stains(area: &Area) -> usize {
    let object = area.alloc_zeroed(BYTES, 1).expect("room");
    // SAFETY: the object was just made, and has as many bytes.
    unsafe { std::slice::from_raw_parts(object.as_ptr(), BYTES) }.iter().filter(|byte| **byte != 0).count()
}

#[test]
fn zeroed_memory_is_zero() {
    let orbit = Orbit::new("late", push).expect("orbit");
    let area = Area::builder("objects").limit(4 << 20).build().expect("area");
    for inside in [0, 2 * PAGE - 5, BYTES - 13] {
        let object = area.alloc_zeroed(BYTES, 1).expect("room");
        let place = object.addr().get() + inside;
        orbit.call_value(&[&area], &place).expect("call");
        let update = orbit.pull().expect("an update");
        // SAFETY: nobody uses the object any more.
        unsafe { area.free(object) }.expect("freed");
        orbit.apply(&update).expect("applied: the area is there");
        assert_eq!(stains(&area), 0, "{inside} bytes into an object that was freed");
    }
    // Beyond all that was ever handed out.
    let place = area.base() + area.high_water() + PAGE + 8;
    orbit.call_value(&[&area], &place).expect("call");
    orbit.apply(&orbit.pull().expect("an update")).expect("applied");
    assert_eq!(stains(&area), 0, "in memory that was never used");
}
