//! A program that forks does not share its orbits with the child: calls there fail clearly, main's
//! continue, the child may make orbits of its own; and main's own `wait` never sees an orbit.

mod common;

use std::ffi::{c_long, c_void};

use orbit::{Area, Kind, Orbit, Outcome};

unsafe extern "C" fn read_number(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of an i64 in an area it names.
    unsafe { **args.cast::<*const i64>() as c_long }
}

/// One test, since it forks: no other test's threads must hold locks then.
#[test]
fn a_forked_child_does_not_share_orbits() {
    let area = Area::new(64 << 10).expect("area");
    let number = area.place(5i64).expect("room").as_ptr();
    let args = (number as usize).to_ne_bytes();
    let orbit = Orbit::new("parents", read_number).expect("orbit");
    assert_eq!(orbit.call(&[&area], &args).expect("call"), Outcome::Returned(5));
    // SAFETY: waits for any child; there must be none that it sees.
    let seen = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert!(seen <= 0, "wait saw process {seen}");
    let pending = orbit.call_async(&[&area], &args).expect("call");
    // SAFETY: the child makes checks and exits by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let error = orbit.call(&[&area], &args).err().map(|e| e.kind());
        let destroy = orbit.destroy().err().map(|e| e.kind());
        let own = Area::new(4096).and_then(|area| {
            let number = area.place(6i64)?.as_ptr();
            let orbit = Orbit::new("childs", read_number)?;
            orbit.call(&[&area], &(number as usize).to_ne_bytes())
        });
        let fine = error == Some(Kind::Forked) && destroy == Some(Kind::Forked) && own == Ok(Outcome::Returned(6));
        if !fine {
            println!("{error:?} {destroy:?} {own:?}");
        }
        // SAFETY: ends the child without running what main's exit would.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw what it must");
    assert_eq!(pending.wait().expect("wait"), Outcome::Returned(5));
    // SAFETY: an object of the area.
    unsafe { *number = 9 };
    assert_eq!(orbit.call(&[&area], &args).expect("call"), Outcome::Returned(9), "main's orbit is unharmed");
}
