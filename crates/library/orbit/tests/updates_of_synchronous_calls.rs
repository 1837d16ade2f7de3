//! Updates that a synchronous call brings wait at its orbit, however the call ended; those of a
//! future do not.

use std::ffi::{c_long, c_void};

use orbit::{CallOptions, Coalesce, Orbit, Outcome, Pending, Restart, Update};

/// Pushes the argument's first byte as often as the second says, then crashes if the third is not
/// 0.
unsafe extern "C" fn push(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the tests pass three bytes.
    let [byte, count, crash] = unsafe { *args.cast::<[u8; 3]>() };
    for _ in 0..count {
        let mut update = Update::new();
        update.data(&[byte]);
        if orbit::push(&update).is_err() {
            return -1;
        }
    }
    if crash != 0 {
        std::process::abort();
    }
    c_long::from(count)
}

fn pulled(orbit: &Orbit) -> Vec<u8> {
    std::iter::from_fn(|| orbit.pull()).map(|u| u.first_data().expect("data")[0]).collect()
}

#[test]
fn they_wait_at_the_orbit() {
    let orbit =
        Orbit::builder("pusher").entry(push).restart(Restart::Always).pending(Pending::Keep).build().expect("orbit");
    assert_eq!(orbit.call(&[], &[7, 3, 0]), Ok(Outcome::Returned(3)));
    assert!(orbit.call(&[], &[8, 2, 1]).expect("call").is_failure());
    assert_eq!(orbit.call(&[], &[9, 1, 0]), Ok(Outcome::Returned(1)));
    assert_eq!(pulled(&orbit), [7, 7, 7, 8, 8, 9]);

    let future = orbit.call_async(&[], &[1, 2, 0]).expect("call");
    assert_eq!(future.wait(), Ok(Outcome::Returned(2)));
    assert!(orbit.pull().is_none(), "a future keeps its own");
    assert_eq!(std::iter::from_fn(|| future.try_pull()).count(), 2);
    assert_eq!(orbit.stats().dropped_updates, 0);
}

/// A synchronous call that stands for another one's: whoever is last finds the updates, nobody
/// finds them twice.
#[test]
fn none_is_lost_or_doubled_where_calls_are_one() {
    let orbit = Orbit::new("pusher", push).expect("orbit");
    let options = CallOptions::new().coalesce(Coalesce::SkipIfSame);
    for round in 0..300 {
        let before = orbit.stats().calls;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| orbit.call_with(&[], &[round as u8, 1, 0], &options).expect("call"));
            }
        });
        let made = orbit.stats().calls - before;
        assert_eq!(pulled(&orbit), vec![round as u8; made as usize], "round {round}: {made} calls");
    }
}
