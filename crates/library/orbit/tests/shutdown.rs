//! `shutdown` ends orbits and supervisor, handles and futures say so, and the library can be used
//! again.

mod common;

use std::ffi::{c_long, c_void};
use std::task::{Context, Waker};
use std::time::Duration;

use orbit::{Area, Kind, Orbit, Outcome};

unsafe extern "C" fn read_number(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the test passes the address of an i64 in the area.
    unsafe { **args.cast::<*const i64>() as c_long }
}

unsafe extern "C" fn sleep(_: *mut c_void, _: *mut c_void) -> c_long {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn supervisors() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.starts_with("orbit-super")).count()
}

#[test]
fn ends_all_and_begins_again() {
    orbit::shutdown().expect("nothing to do");
    let area = Area::new(4096).expect("area");
    let number = area.place(0i64).expect("room").as_ptr();
    let args = (number as usize).to_ne_bytes();
    for round in 0..5 {
        // SAFETY: an object of the area, this thread's.
        unsafe { *number = round };
        let orbit = Orbit::new("reader", read_number).expect("orbit");
        let busy = Orbit::new("busy", sleep).expect("orbit");
        assert_eq!(orbit.call(&[&area], &args), Ok(Outcome::Returned(round)));
        let waited = busy.call_async(&[&area], &[]).expect("call");
        let mut polled = busy.call_async(&[&area], &[]).expect("call");
        let mut context = Context::from_waker(Waker::noop());
        assert!(std::future::Future::poll(std::pin::Pin::new(&mut polled), &mut context).is_pending());
        // It gives itself its name when it first runs, which nobody has waited for.
        assert!(common::eventually(|| supervisors() == 1), "{} supervisors", supervisors());
        let waiter = std::thread::spawn(move || waited.wait());
        orbit::shutdown().expect("main may");
        // One that has been joined is listed for a moment yet.
        assert!(common::eventually(|| supervisors() == 0), "round {round}: {} supervisors", supervisors());
        assert_eq!(waiter.join().expect("the waiter"), Ok(Outcome::Cancelled));
        assert_eq!(polled.poll(), Some(Outcome::Cancelled));
        assert_eq!(orbit.call(&[&area], &args).map_err(|e| e.kind()), Err(Kind::Gone));
        assert_eq!(orbit.destroy(), Ok(()));
        assert_eq!(orbit.pid(), 0);
        let config = orbit::Config::new().spares(round as usize);
        orbit::init_with(config).expect("a configuration may be given anew");
    }
    orbit::shutdown().expect("main may");
}
