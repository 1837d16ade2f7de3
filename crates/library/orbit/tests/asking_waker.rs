//! A waker may ask the library anything, about its own orbit too: it is woken with none of the
//! library's locks held.

mod common;

use std::ffi::{c_long, c_void};
use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use orbit::{CallOptions, Future, Orbit, Outcome, Pending, Restart, Update};

unsafe extern "C" fn sleep_ms(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes one u64.
    let ms = unsafe { *args.cast::<u64>() };
    std::thread::sleep(Duration::from_millis(ms));
    ms as c_long
}

unsafe extern "C" fn push_then_sleep(store: *mut c_void, args: *mut c_void) -> c_long {
    orbit::push(Update::new().data(b"begun")).expect("push");
    // SAFETY: as above.
    unsafe { sleep_ms(store, args) }
}

/// Asks its orbit for its counters, and cancels what waits there for another, before it counts
/// itself woken.
struct Asks {
    orbit: Orbit,
    woken: AtomicUsize,
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        assert!(self.orbit.stats().calls > 0);
        self.orbit.cancel_args(b"no such call");
        self.woken.fetch_add(1, Ordering::SeqCst);
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the program's");
    }
}

fn polled(future: &Future, waker: &Waker) -> Future {
    let mut polled = future.clone();
    assert_eq!(Pin::new(&mut polled).poll(&mut Context::from_waker(waker)), Poll::Pending);
    polled
}

/// Runs `end` in a thread of its own, so that a freeze is a failure and no hang; true if the waker
/// was woken and the orbit answers.
fn wakes(orbit: &Orbit, asks: &Arc<Asks>, end: impl FnOnce() + Send + 'static) -> bool {
    std::thread::spawn(end);
    let orbit = orbit.clone();
    let answers = std::thread::spawn(move || orbit.stats());
    common::eventually(|| asks.woken.swap(0, Ordering::SeqCst) == 1) && common::eventually(|| answers.is_finished())
}

#[test]
fn a_waker_asks_about_its_orbit_however_the_call_ends() {
    let long = 600_000_u64.to_ne_bytes();
    let options = || Orbit::builder("asked").entry(sleep_ms).restart(Restart::Always).pending(Pending::Keep);
    let orbit = options().build().expect("orbit");
    let asks = Arc::new(Asks { orbit: orbit.clone(), woken: AtomicUsize::new(0) });
    let waker = Waker::from(asks.clone());

    // The supervisor sees the end.
    let future = orbit.call_async(&[], &1_000_u64.to_ne_bytes()).expect("call");
    let _polled = polled(&future, &waker);
    assert!(wakes(&orbit, &asks, || {}), "at an end");

    // An update arrives.
    let pushing = CallOptions::new().function(push_then_sleep);
    let held_up = orbit.call_async(&[], &1_000_u64.to_ne_bytes()).expect("call");
    let future = orbit.call_async_with(&[], &500_u64.to_ne_bytes(), &pushing).expect("call");
    let _polled = polled(&future, &waker);
    assert_eq!(held_up.wait().expect("wait"), Outcome::Returned(1_000));
    assert!(wakes(&orbit, &asks, || {}), "at an update");
    assert_eq!(future.wait().expect("wait"), Outcome::Returned(500));

    // A waiting call is cancelled, and one passes its deadline; then the running one does, and its
    // process ends.
    let soon = CallOptions::new().deadline(Duration::from_millis(1_000));
    let running = orbit.call_async_with(&[], &long, &pushing).expect("call");
    assert!(running.pull().expect("pull").is_some(), "it runs");
    let waiting = orbit.call_async(&[], &long).expect("call");
    let _polled = polled(&waiting, &waker);
    assert!(wakes(&orbit, &asks, move || assert!(waiting.cancel())), "at a cancellation");
    let late = orbit.call_async_with(&[], &long, &soon).expect("call");
    let _polled = polled(&late, &waker);
    assert!(wakes(&orbit, &asks, || {}), "at a deadline");
    let _polled = polled(&running, &waker);
    let killed = orbit.clone();
    assert!(wakes(&orbit, &asks, move || killed.kill().expect("kill")), "at the end of a process");
    assert!(common::eventually(|| orbit.pid() != 0), "it is started again");

    // One that is replaced; and the orbit is destroyed.
    let running = orbit.call_async_with(&[], &long, &pushing).expect("call");
    assert!(running.pull().expect("pull").is_some(), "it runs");
    let replaced = orbit.call_async(&[], &long).expect("call");
    let _polled = polled(&replaced, &waker);
    let caller = orbit.clone();
    let replace = CallOptions::new().coalesce(orbit::Coalesce::Replace);
    let again = move || drop(caller.call_async_with(&[], &1_u64.to_ne_bytes(), &replace).expect("call"));
    assert!(wakes(&orbit, &asks, again), "at a replacement");
    let _polled = polled(&running, &waker);
    let destroyed = orbit.clone();
    assert!(wakes(&orbit, &asks, move || destroyed.destroy().expect("destroy")), "at the end of the orbit");

    // The supervisor is well: another orbit's deadline is kept.
    let other = options().build().expect("orbit");
    let late = other.call_async_with(&[], &long, &soon).expect("call");
    let ended = late.wait_timeout(Duration::from_secs(30)).expect("in time");
    assert!(matches!(ended, Outcome::TimedOut(Some(_))), "{ended}");
}

#[test]
fn a_waker_that_panics_keeps_no_other_of_the_same_orbit_from_being_woken() {
    let orbit = Orbit::new("both", sleep_ms).expect("orbit");
    let asks = Arc::new(Asks { orbit: orbit.clone(), woken: AtomicUsize::new(0) });
    let (panics, waker) = (Waker::from(Arc::new(Panics)), Waker::from(asks.clone()));
    let future = orbit.call_async(&[], &1_000_u64.to_ne_bytes()).expect("call");
    let _both = [polled(&future, &panics), polled(&future, &waker)];
    assert!(wakes(&orbit, &asks, || {}));
    assert_eq!(orbit.call(&[], &1_u64.to_ne_bytes()).expect("call"), Outcome::Returned(1), "the orbit is as it was");
}
