//! A call sees the state of its own moment, at the same addresses, and its answer comes back.

mod common;

use std::ffi::{c_long, c_void};
use std::time::Duration;

use common::{Gate, begun_then_held};
use orbit::{Area, CallOptions, Coalesce, Engine, Kind, Orbit, Outcome};

/// `args` holds the address of an `i64` in an area.
unsafe extern "C" fn read_number(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the tests pass the address of a number in an area they name.
    unsafe { **args.cast::<*const i64>() as c_long }
}

unsafe extern "C" fn read_slowly(store: *mut c_void, args: *mut c_void) -> c_long {
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: as above.
    unsafe { read_number(store, args) }
}

unsafe extern "C" fn write_then_read(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: as above; the write stays in this process.
    unsafe {
        let at = *args.cast::<*mut i64>();
        let before = *at;
        *at = -1;
        before as c_long
    }
}

unsafe extern "C" fn sum_args(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the test passes 64 KiB.
    let bytes = unsafe { std::slice::from_raw_parts(args.cast::<u8>(), 65536) };
    bytes.iter().map(|b| i64::from(*b)).sum::<i64>() as c_long
}

fn address(of: *mut i64) -> [u8; 8] {
    (of as usize).to_ne_bytes()
}

#[test]
fn sees_the_latest_state_with_every_engine() {
    for engine in [Engine::Auto, Engine::Compare, Engine::Copy, Engine::Fork, Engine::Track, Engine::Share] {
        let area = match Area::builder("numbers").size(64 << 10).engine(engine).build() {
            Ok(area) => area,
            Err(e) if e.kind() == Kind::Unsupported => {
                println!("SKIP: {e}");
                continue;
            }
            Err(e) => panic!("{e}"),
        };
        let number = area.place(0i64).expect("room").as_ptr();
        let orbit = Orbit::new("reader", read_number).expect("orbit");
        for round in 0..500 {
            // SAFETY: an object of the area, used by this thread only.
            unsafe { *number = round };
            let outcome = orbit.call(&[&area], &address(number)).expect("call");
            assert_eq!(outcome, Outcome::Returned(round), "engine {engine:?}");
        }
    }
}

#[test]
fn queued_calls_see_each_its_own_moment() {
    for engine in [Engine::Auto, Engine::Compare, Engine::Copy, Engine::Fork, Engine::Track, Engine::Share] {
        let area = match Area::builder("numbers").size(64 << 10).engine(engine).build() {
            Ok(area) => area,
            Err(e) => {
                println!("SKIP: {e}");
                continue;
            }
        };
        let number = area.place(0i64).expect("room").as_ptr();
        let orbit = Orbit::new("slow", read_slowly).expect("orbit");
        let futures: Vec<_> = (0..30)
            .map(|round| {
                // SAFETY: as above.
                unsafe { *number = round };
                orbit.call_async(&[&area], &address(number)).expect("call")
            })
            .collect();
        for (round, future) in futures.iter().enumerate() {
            assert_eq!(future.wait().expect("wait"), Outcome::Returned(round as i64), "engine {engine:?}");
        }
    }
}

#[test]
fn what_the_task_writes_is_gone_at_the_next_call() {
    let area = Area::new(4096).expect("area");
    let number = area.place(7i64).expect("room").as_ptr();
    let orbit = Orbit::new("writer", write_then_read).expect("orbit");
    for _ in 0..20 {
        assert_eq!(orbit.call(&[&area], &address(number)).expect("call"), Outcome::Returned(7));
    }
    // SAFETY: an object of the area.
    assert_eq!(unsafe { *number }, 7, "main's own number is untouched");
}

#[test]
fn two_orbits_on_one_area_are_each_up_to_date() {
    let area = Area::new(1 << 20).expect("area");
    let number = area.place(0i64).expect("room").as_ptr();
    let (one, two) = (Orbit::new("one", read_number).expect("orbit"), Orbit::new("two", read_number).expect("orbit"));
    for round in 0..200 {
        // SAFETY: an object of the area.
        unsafe { *number = round };
        assert_eq!(one.call(&[&area], &address(number)).expect("call"), Outcome::Returned(round));
        if round % 3 == 0 {
            assert_eq!(two.call(&[&area], &address(number)).expect("call"), Outcome::Returned(round));
        }
    }
}

#[test]
fn arguments_up_to_64_kib_and_no_more() {
    let orbit = Orbit::new("sums", sum_args).expect("orbit");
    let args = vec![3u8; 65536];
    assert_eq!(orbit.call(&[], &args).expect("call"), Outcome::Returned(3 * 65536));
    let error = orbit.call(&[], &vec![0u8; 65537]).expect_err("too large");
    assert_eq!(error.kind(), Kind::TooLarge);
    assert!(error.to_string().contains("65536"), "{error}");
}

#[test]
fn waiting_calls_can_be_cancelled_skipped_and_replaced() {
    let area = Area::new(4096).expect("area");
    let number = area.place(1i64).expect("room").as_ptr();
    let orbit = Orbit::new("slow", read_slowly).expect("orbit");
    // However long this thread is blocked meanwhile, the first call runs until the last one waits.
    let gate = Gate::closed("calls");
    let held = CallOptions::new().function(begun_then_held);
    let running = orbit.call_async_with(&[], &gate.args(), &held).expect("call");
    let begun = running.pull().expect("pull").expect("an update");
    assert_eq!(begun.first_data(), Some(&b"begun"[..]));
    assert!(!running.cancel(), "it runs");
    let waiting = orbit.call_async(&[&area], &address(number)).expect("call");
    let skip = CallOptions::new().coalesce(Coalesce::SkipIfSame);
    let same = orbit.call_async_with(&[&area], &address(number), &skip).expect("call");
    assert!(waiting.cancel(), "it had not begun");
    assert_eq!(waiting.wait().expect("wait"), Outcome::Cancelled);
    let third = orbit.call_async(&[&area], &address(number)).expect("call");
    let replacing = CallOptions::new().coalesce(Coalesce::Replace);
    let fourth = orbit.call_async_with(&[&area], &address(number), &replacing).expect("call");
    gate.open();
    assert_eq!(third.wait().expect("wait"), Outcome::Cancelled);
    assert_eq!(fourth.wait().expect("wait"), Outcome::Returned(1));
    assert_eq!(running.wait().expect("wait"), Outcome::Returned(1));
    assert!(same.wait().is_ok());
    assert_eq!(orbit.stats().pending, 0);
}
