//! A template that a program lets go of, having given up the right to end it, leaves the program's
//! other orbits alone: their control groups, too, are that program's.

mod common;

use std::ffi::{c_long, c_void};
use std::path::Path;

use common::{eventually, function_loaded_now, groups_of, parent};
use orbit::{CallOptions, Limits, Orbit, Outcome};

unsafe extern "C" fn seven(_: *mut c_void, _: *mut c_void) -> c_long {
    7
}

#[test]
fn orbits_in_groups_outlive_an_older_template() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root, to become another user");
        return;
    }
    let limited = |name: &str| Orbit::builder(name).limits(Limits::new().memory(256 << 20));
    let first = limited("first").entry(seven).build().expect("orbit");
    let second = limited("second").entry(function_loaded_now()).build().expect("orbit");
    if !second.limits_held().contains("control group") || second.limits_held().contains("no control group") {
        println!("SKIP: needs a control group that holds memory: {}", second.limits_held());
        return;
    }
    let (older, newer, pid) = (parent(first.pid()), parent(second.pid()), second.pid());
    assert_ne!(older, newer, "a template of its own");
    // SAFETY: numbers only; libc sets them for all threads.
    assert_eq!(unsafe { libc::setgid(65534) | libc::setuid(65534) }, 0);

    first.destroy().expect("destroy");
    assert!(eventually(|| !Path::new(&format!("/proc/{older}")).exists()), "the older template was let go of");
    let value = second.call_with(&[], &[], &CallOptions::new().function(seven)).expect("call");
    assert_eq!((value, second.pid()), (Outcome::Returned(7), pid));
    assert_eq!(second.stats().crashes, 0);

    // Main may remove no group any more; the last template does it.
    assert!(!groups_of(std::process::id()).is_empty());
    orbit::shutdown().expect("shutdown");
    assert!(eventually(|| groups_of(std::process::id()).is_empty()), "{:?}", groups_of(std::process::id()));
}
