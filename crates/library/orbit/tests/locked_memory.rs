//! A task that locks its memory sees each call's snapshot all the same, and what it writes is gone
//! at the next call.

use std::ffi::{c_long, c_void};

use orbit::{Area, Engine, Orbit};

const BYTES: usize = 512 << 10;

unsafe extern "C" fn lock_all() -> *mut c_void {
    // SAFETY: numbers only. Without the right to do so, memory is not locked.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    std::ptr::null_mut()
}

/// What stands at the address that the arguments name, where this writes something else then.
unsafe extern "C" fn read_and_write(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the test passes the address of a number.
    unsafe {
        let place = *args.cast::<*mut c_long>();
        let there = place.read_volatile();
        place.write_volatile(777);
        there
    }
}

/// The same, and its page is locked.
unsafe extern "C" fn lock_and_write(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: as above.
    unsafe {
        let there = read_and_write(store, args);
        if libc::mlock(*args.cast::<*const c_void>(), 8) == 0 { there } else { -1 }
    }
}

/// The last number of the object, which nobody writes but main.
unsafe extern "C" fn read(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the test passes the address of an object of so many bytes.
    unsafe { (*args.cast::<*const c_long>()).add(BYTES / 8 - 1).read_volatile() }
}

fn sees_what_main_wrote(orbit: &Orbit, engine: Engine, at: usize) {
    let area = Area::builder("locked").limit(1 << 20).engine(engine).build();
    let Ok(area) = area else {
        println!("SKIP: engine {engine:?} is not to be had here");
        return;
    };
    let object = area.alloc_zeroed(BYTES, 8).expect("room").cast::<c_long>();
    for round in 1..6 {
        // SAFETY: within the object, which this thread alone writes.
        unsafe { object.add(at).write(round) };
        let saw = orbit.call_value(&[&area], &object.as_ptr()).expect("call");
        assert_eq!(saw, orbit::Outcome::Returned(round), "round {round}, engine {engine:?}");
    }
    orbit.detach(&area);
    area.destroy().expect("destroyed");
}

#[test]
fn locked_memory() {
    let all = [Engine::Auto, Engine::Track, Engine::Compare, Engine::Copy, Engine::Fork, Engine::Share];
    for engine in all {
        let orbit = Orbit::builder("locks-a-page").entry(lock_and_write).build().expect("orbit");
        sees_what_main_wrote(&orbit, engine, 0);
        orbit.destroy().expect("destroyed");
        for (entry, at) in [(read_and_write as orbit::Entry, 0), (read, BYTES / 8 - 1)] {
            let orbit = Orbit::builder("locks-all").entry(entry).init(lock_all).build().expect("orbit");
            sees_what_main_wrote(&orbit, engine, at);
            orbit.destroy().expect("destroyed");
        }
    }
}
