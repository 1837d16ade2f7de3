//! The ways to wait for a call: timed, by descriptor, as a Rust future; and deadlines of running
//! and waiting calls.

mod common;

use std::ffi::{c_long, c_void};
use std::future::Future as _;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::{Gate, begun_then_held};
use orbit::{CallOptions, Kind, Orbit, Outcome, Restart};

unsafe extern "C" fn sleep_ms(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main passes one u64.
    let ms = unsafe { *args.cast::<u64>() };
    std::thread::sleep(Duration::from_millis(ms));
    ms as c_long
}

fn ms(n: u64) -> [u8; 8] {
    n.to_ne_bytes()
}

#[test]
fn a_timed_wait_ends_in_time_and_the_call_goes_on() {
    let orbit = Orbit::new("held", begun_then_held).expect("orbit");
    let gate = Gate::closed("futures");
    let future = orbit.call_async(&[], &gate.args()).expect("call");
    let began = Instant::now();
    let error = future.wait_timeout(Duration::from_millis(20)).expect_err("too early");
    assert_eq!(error.kind(), Kind::TimedOut);
    assert!(began.elapsed() >= Duration::from_millis(20));
    assert_eq!(future.poll(), None);
    gate.open();
    assert_eq!(future.wait().expect("wait"), Outcome::Returned(1));
    assert_eq!(future.poll(), Some(Outcome::Returned(1)), "the outcome stays");
}

#[test]
fn a_descriptor_becomes_readable_when_the_call_ends() {
    let orbit = Orbit::new("sleeper", sleep_ms).expect("orbit");
    for n in [0, 30] {
        let future = orbit.call_async(&[], &ms(n)).expect("call");
        let fd = future.fd().expect("fd");
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that lives through the call.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 30_000) }, 1, "readable");
        assert_eq!(future.poll(), Some(Outcome::Returned(n as i64)));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 1, "and stays so");
    }
}

struct Count(AtomicUsize, std::thread::Thread);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.unpark();
    }
}

#[test]
fn it_is_a_rust_future() {
    let orbit = Orbit::new("sleeper", sleep_ms).expect("orbit");
    for n in [0, 20] {
        let count = Arc::new(Count(AtomicUsize::new(0), std::thread::current()));
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(orbit.call_async(&[], &ms(n)).expect("call"));
        let until = Instant::now() + Duration::from_secs(30);
        let outcome = loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(outcome) => break outcome,
                Poll::Pending => {
                    assert!(Instant::now() < until, "woken");
                    std::thread::park_timeout(Duration::from_secs(30));
                }
            }
        };
        assert_eq!(outcome, Outcome::Returned(n as i64));
    }
}

#[test]
fn a_future_keeps_the_last_waker_only() {
    let orbit = Orbit::new("sleeper", sleep_ms).expect("orbit");
    let mut future = pin!(orbit.call_async(&[], &ms(3_000)).expect("call"));
    let mut other = pin!(future.clone());
    let wakers: Vec<_> = (0..100).map(|_| Arc::new(Count(AtomicUsize::new(0), std::thread::current()))).collect();
    let poll = |future: std::pin::Pin<&mut orbit::Future>, count: &Arc<Count>| {
        let waker = Waker::from(count.clone());
        assert_eq!(future.poll(&mut Context::from_waker(&waker)), Poll::Pending);
    };
    poll(other.as_mut(), &wakers[0]);
    for count in &wakers[1..] {
        poll(future.as_mut(), count);
        // One that is polled and dropped.
        poll(pin!(future.clone()), count);
    }
    // Those of futures that were dropped go at the next poll.
    let held = wakers.iter().filter(|count| Arc::strong_count(count) > 1).count();
    assert!(held <= 3, "{held} of {} wakers are held", wakers.len());
    let woken = |at: usize| wakers[at].0.load(Ordering::SeqCst);
    assert!(common::eventually(|| woken(0) == 1 && woken(99) == 1), "both futures are woken");
    assert_eq!((1..99).map(woken).sum::<usize>(), 0, "nobody else is");
}

#[test]
fn deadlines_end_what_runs_and_skip_what_waits() {
    let orbit = Orbit::builder("sleeper").entry(sleep_ms).restart(Restart::Always).build().expect("orbit");
    let time = Duration::from_millis(400);
    let began = Instant::now();
    let long = orbit.call_async_with(&[], &ms(60_000), &CallOptions::new().deadline(time)).expect("call");
    let behind =
        orbit.call_async_with(&[], &ms(0), &CallOptions::new().deadline(Duration::from_millis(50))).expect("call");
    assert_eq!(behind.wait().expect("wait"), Outcome::TimedOut(None));
    let running = long.poll();
    assert!(running.is_none() || began.elapsed() >= time, "the running call has time left: {running:?}");
    let ended = long.wait().expect("wait");
    assert!(matches!(ended, Outcome::TimedOut(Some(_))), "{ended}");
    assert!(began.elapsed() >= time, "after {:?}", began.elapsed());
    assert!(common::eventually(|| orbit.call(&[], &ms(1)).ok() == Some(Outcome::Returned(1))), "it is back");
    assert_eq!(orbit.stats().crashes, 1);
}

#[test]
fn many_threads_call_one_orbit() {
    let orbit = Orbit::new("busy", sleep_ms).expect("orbit");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    assert_eq!(orbit.call(&[], &ms(0)).expect("call"), Outcome::Returned(0));
                }
            });
        }
    });
    assert_eq!(orbit.stats().calls, 4000);
}
