//! A call that is kept over the end of its orbit's process runs on the snapshot of its submission, or ends as cancelled.

mod common;

use std::ffi::{c_long, c_void};

use orbit::{Area, CallOptions, Engine, Orbit, Outcome, Pending, Restart};

const PAGES: usize = 16 * 1024;

/// Counts the pages at `args[0]` that do not begin with `args[1]`.
unsafe extern "C" fn wrong_pages(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes the address of PAGES pages of an area, and a number.
    unsafe {
        let [base, wanted] = *args.cast::<[u64; 2]>();
        (0..PAGES).filter(|page| ((base as usize + page * 4096) as *const u64).read() != wanted).count() as c_long
    }
}

unsafe extern "C" fn wait_for_the_end(_: *mut c_void, _: *mut c_void) -> c_long {
    loop {
        // SAFETY: sleeps.
        unsafe { libc::pause() };
    }
}

fn keeping(name: &str) -> Orbit {
    Orbit::builder(name).entry(wrong_pages).restart(Restart::Always).pending(Pending::Keep).build().expect("orbit")
}

#[test]
fn a_call_behind_a_copier_that_was_cut_off_sees_no_torn_snapshot() {
    let orbit = keeping("torn");
    let bytes = (PAGES + 16) * 4096;
    let area = Area::builder("large").size(bytes).limit(bytes).engine(Engine::Fork).build().expect("area");
    let base = area.alloc(PAGES * 4096, 4096).expect("room").as_ptr();
    for round in 1..=6u64 {
        for page in 0..PAGES {
            // SAFETY: an object of the area.
            unsafe { base.add(page * 4096).cast::<u64>().write(round) };
        }
        assert!(common::eventually(|| orbit.pid() != 0), "it has a process again");
        let waits = CallOptions::new().function(wait_for_the_end);
        let held = orbit.call_async_with(&[&area], &[], &waits).expect("call");
        let args: Vec<u8> = [base as u64, round].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let behind = orbit.call_async(&[], &args).expect("call");
        orbit.kill().expect("kill");
        assert_eq!(held.wait().expect("wait"), Outcome::Killed(libc::SIGKILL));
        let outcome = behind.wait().expect("wait");
        assert!(matches!(outcome, Outcome::Returned(0) | Outcome::Cancelled), "round {round}: {outcome:?}");
    }
}
