//! A waker that panics in the supervisor delays no orbit: all are managed as
//! before.

mod common;

use std::ffi::{c_long, c_void};
use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use orbit::{Orbit, Outcome, Restart};

unsafe extern "C" fn sleep_ms(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes one u64.
    let ms = unsafe { *args.cast::<u64>() };
    std::thread::sleep(Duration::from_millis(ms));
    ms as c_long
}

struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("a waker of the program's");
    }
}

#[test]
fn a_waker_that_panics_costs_no_orbit_anything() {
    let other = Orbit::builder("other").entry(sleep_ms).restart(Restart::Always).build().expect("orbit");
    let orbit = Orbit::new("sleeper", sleep_ms).expect("orbit");
    let panics = Arc::new(Panics(AtomicUsize::new(0)));
    let waker = Waker::from(panics.clone());
    let mut future = pin!(orbit.call_async(&[], &2_000_u64.to_ne_bytes()).expect("call"));
    assert_eq!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
    assert!(common::eventually(|| panics.0.load(Ordering::SeqCst) == 1), "woken by the supervisor");
    assert_eq!(future.get_mut().wait().expect("wait"), Outcome::Returned(2_000));
    // What needs the supervisor: to be started again.
    let pid = other.pid();
    other.kill().expect("kill");
    assert!(common::eventually(|| ![0, pid].contains(&other.pid())), "the other orbit is started again");
    assert!(common::eventually(|| other.call(&[], &1_u64.to_ne_bytes()).ok() == Some(Outcome::Returned(1))));
}
