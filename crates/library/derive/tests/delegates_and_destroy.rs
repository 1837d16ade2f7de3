//! An area in which delegates live is not destroyed under them, whatever safe code tries; and a
//! change that panics leaves no stale delegate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;

use orbit::{Area, Delegated, Kind};
use orbit_derive::Delegate;

#[derive(Delegate)]
struct Entry {
    #[delegate]
    version: u64,
    #[delegate]
    flag: u8,
    _rest: [u8; 4000],
}

fn entry() -> Entry {
    Entry { version: 1, flag: 0, _rest: [0; 4000] }
}

fn version_there(one: &Delegated<Entry>) -> u64 {
    // SAFETY: the delegate lives as long as what has it, and nobody changes it meanwhile.
    unsafe { one.object().as_ref() }.version
}

#[test]
fn an_area_with_delegates_refuses_to_be_destroyed() {
    let area = Area::builder("entries").size(1 << 16).build().expect("area");
    let mut one = Delegated::new(&area, entry()).expect("room");
    let two = Delegated::new(&area, entry()).expect("room");
    let error = area.destroy().expect_err("delegates live in it");
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("2 delegates"), "{error}");
    one.change(|entry| entry.version += 1);
    assert_eq!((one.version, version_there(&one)), (2, 2));
    drop(two);
    let error = area.destroy().expect_err("a delegate lives in it");
    assert!(error.to_string().contains("\"entries\"") && error.to_string().contains("a delegate"), "{error}");
    drop(one);
    area.destroy().expect("nothing lives in it");
    assert_eq!(Delegated::new(&area, entry()).err().map(|error| error.kind()), Some(Kind::Gone));
    area.destroy().expect("what could not be placed keeps nothing");
}

#[test]
fn one_that_comes_beside_the_destroying_lives_or_is_refused() {
    for round in 0..300 {
        let area = Area::new(1 << 16).expect("area");
        let both = Barrier::new(2);
        let pause = |count: usize| (0..count).for_each(|_| std::hint::spin_loop());
        std::thread::scope(|scope| {
            let destroys = scope.spawn(|| {
                both.wait();
                pause(round % 8 * 50);
                area.destroy()
            });
            both.wait();
            pause(round % 5 * 50);
            let mut made = Delegated::new(&area, entry());
            let destroyed = destroys.join().expect("no panic");
            match &mut made {
                Ok(one) => {
                    assert_eq!(destroyed.map_err(|error| error.kind()), Err(Kind::Invalid), "round {round}");
                    one.change(|entry| entry.version += 1);
                    assert_eq!(version_there(one), 2);
                }
                Err(error) => assert_eq!((error.kind(), destroyed), (Kind::Gone, Ok(())), "round {round}"),
            }
        });
    }
}

#[test]
fn a_forked_child_changes_its_copy() {
    let area = Area::new(1 << 16).expect("area");
    let mut one = Delegated::new(&area, entry()).expect("room");
    // SAFETY: the child only changes and drops the copy, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        one.change(|entry| entry.version = 7);
        let there = version_there(&one);
        let refused = area.destroy().is_err();
        drop(one);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if there == 7 && refused { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended well");
    assert_eq!((one.version, version_there(&one)), (1, 1));
}

#[test]
fn a_change_that_panics_leaves_no_stale_delegate() {
    let area = Area::new(1 << 16).expect("area");
    let mut one = Delegated::new(&area, entry()).expect("room");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        one.change(|entry| {
            entry.version = 5;
            std::panic::panic_any("in the middle");
        });
    }));
    assert_eq!(panicked.expect_err("the panic continues").downcast_ref(), Some(&"in the middle"));
    assert_eq!((one.version, one.flag), (5, 0));
    assert_eq!(version_there(&one), 5, "the delegate is what the value is");
}
