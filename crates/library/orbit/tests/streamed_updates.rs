//! A task may push as much as it likes in a call: to a main that pulls it flows, to one that does
//! not it waits, and what nobody can pull is let go of.

mod common;

use std::ffi::{c_long, c_void};

use common::eventually;
use orbit::{MAX_KEPT_BYTES, MAX_WAITING_BYTES, Orbit, Outcome, Update};

const MIB: usize = 1 << 20;
/// More than may wait.
const COUNT: usize = MAX_WAITING_BYTES / MIB + 44;

/// Pushes updates of a MiB, numbered, as many as the arguments say.
unsafe extern "C" fn stream(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the tests pass a number.
    let count = unsafe { *args.cast::<usize>() };
    let mut bytes = vec![0; MIB];
    for number in 0..count {
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        let mut update = Update::new();
        update.data(&bytes);
        if orbit::push(&update).is_err() {
            return -1;
        }
    }
    count as c_long
}

fn number(update: &Update) -> usize {
    let bytes = update.first_data().expect("data");
    usize::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"))
}

#[test]
fn what_is_pulled_flows_and_what_is_not_waits() {
    let orbit = Orbit::new("streamer", stream).expect("orbit");
    let future = orbit.call_async_value(&[], &COUNT).expect("call");
    for expected in 0..COUNT {
        assert_eq!(future.pull().expect("pull").as_ref().map(number), Some(expected));
    }
    assert_eq!(future.wait(), Ok(Outcome::Returned(COUNT as i64)));

    // Main takes what comes, but pulls none of it.
    let future = orbit.call_async_value(&[], &COUNT).expect("call");
    let most = (COUNT + MAX_WAITING_BYTES / MIB) as u64;
    assert!(eventually(|| orbit.stats().updates >= most - 1), "as much as may wait comes");
    for _ in 0..100 {
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(orbit.stats().updates <= most, "and no more");
    }
    assert!(future.poll().is_none(), "the task waits");
    for expected in 0..COUNT {
        assert_eq!(future.pull().expect("pull").as_ref().map(number), Some(expected));
    }
    assert_eq!(future.wait(), Ok(Outcome::Returned(COUNT as i64)));
    assert_eq!(orbit.stats().crashes, 0);
}

#[test]
fn what_nobody_can_pull_holds_nobody_up() {
    let orbit = Orbit::new("streamer", stream).expect("orbit");
    drop(orbit.call_async_value(&[], &COUNT).expect("call"));
    assert_eq!(orbit.call_value(&[], &COUNT), Ok(Outcome::Returned(COUNT as i64)));
    let left: Vec<usize> = std::iter::from_fn(|| orbit.pull()).map(|update| number(&update)).collect();
    assert_eq!(left, [COUNT - 1], "the newest one, which is more than {MAX_KEPT_BYTES} bytes as it is encoded");
    assert_eq!(orbit.stats().crashes, 0);
}
