//! A spare that became an orbit is made up for soon, also where orbits go while the supervisor is
//! about to wait for them: making the next orbit is cheap.

mod common;

use orbit::{Config, Orbit};
use std::ffi::{c_long, c_void};
use std::time::{Duration, Instant};

unsafe extern "C" fn seven(_: *mut c_void, _: *mut c_void) -> c_long {
    7
}

/// After it this process' first writes to its pages are slow, the supervisor's too.
fn fork() {
    // SAFETY: the child calls nothing but _exit, and is waited for.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            child => assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child),
        }
    }
}

fn make() -> (Orbit, f64) {
    let since = Instant::now();
    let orbit = Orbit::new("short", seven).unwrap();
    (orbit, since.elapsed().as_secs_f64() * 1e6)
}

#[test]
fn a_spare_is_there_again_soon() {
    orbit::init_with(Config::new().spares(1)).unwrap();
    let (mut with_spare, mut without) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        Orbit::new("shortest", seven).unwrap().destroy().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let (first, took) = make();
        with_spare.push(took);
        // The one spare is gone for now.
        let (second, took) = make();
        without.push(took);
        for orbit in [first, second] {
            orbit.call(&[], &[]).unwrap();
            orbit.destroy().unwrap();
        }
        fork();
    }
    let (with_spare, without) = (common::quantile(&mut with_spare, 0.5), common::quantile(&mut without, 0.5));
    println!("medians: {with_spare:.0} us with a spare, {without:.0} us without");
    assert!(with_spare * 2.0 < without, "{with_spare} us, {without} us");
}
