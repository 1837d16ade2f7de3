//! An area is destroyed while other threads begin to use it: an orbit that comes finds it there and
//! keeps it, or learns that it is gone; objects are filled and moved, or rejected.

use crate::area_common;
use area_common::{PAGE, engines};
use orbit::Kind;
use orbit::area::{Area, PageRuns};
use orbit::units::Page;
use std::sync::Barrier;

const PAGES: usize = 64;

/// Runs both at once, some moments apart that differ from round to round.
fn beside<A: Send, B>(round: usize, one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
    let both = Barrier::new(2);
    let pause = |count: usize| (0..count).for_each(|_| std::hint::spin_loop());
    std::thread::scope(|scope| {
        let one = scope.spawn(|| {
            both.wait();
            pause(round % 8 * 100);
            one()
        });
        both.wait();
        pause(round % 5 * 100);
        let other = other();
        (one.join().unwrap(), other)
    })
}

#[test]
fn a_new_orbit_keeps_the_area_or_gets_an_error() {
    for engine in engines() {
        for round in 0..100 {
            let area = Area::builder("short").limit(PAGES * PAGE).engine(engine).build().unwrap();
            area.alloc_zeroed(PAGES * PAGE, 16).unwrap();
            let used = || {
                let orbit = area.attach()?;
                let mut runs = PageRuns::new();
                area.snapshot_pages(&orbit, &mut runs)?;
                // SAFETY: a page of the snapshot.
                let read = area.with_source(|source| (0..PAGES).map(|page| unsafe { *source(Page::new(page)) }).max());
                read.map(|_| orbit)
            };
            let (destroyed, used) = beside(round, || area.destroy(), used);
            match used {
                Ok(_) => assert_eq!(destroyed.unwrap_err().kind(), Kind::Invalid, "engine {engine}, round {round}"),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Gone, "engine {engine}, round {round}: {error}");
                    assert_eq!(destroyed, Ok(()), "engine {engine}, round {round}");
                    assert_eq!(area.attach().unwrap_err().kind(), Kind::Gone, "engine {engine}, round {round}");
                    assert_eq!(area.with_source(|_| ()).unwrap_err().kind(), Kind::Gone);
                }
            }
        }
    }
}

#[test]
fn an_object_is_filled_and_moved_or_refused() {
    for round in 0..200 {
        let area = Area::builder("short").limit(8 * PAGES * PAGE).build().unwrap();
        let dirty = area.alloc(PAGES / 4 * PAGE, 16).unwrap();
        // SAFETY: the object was just made, has these bytes, and is freed once.
        unsafe {
            dirty.write_bytes(1, PAGES / 4 * PAGE);
            area.free(dirty).unwrap();
        }
        let fills = || -> orbit::Result<()> {
            loop {
                let object = area.alloc_zeroed(96 * PAGE, 16)?;
                // SAFETY: this thread alone uses the objects.
                let moved = unsafe { area.realloc(object, 160 * PAGE, 16)? };
                // SAFETY: as above.
                unsafe { area.free(moved)? };
                let value = area.place([round; 500])?;
                // SAFETY: as above.
                unsafe { area.free(value.cast())? };
            }
        };
        let (destroyed, filled) = beside(round, || area.destroy(), fills);
        assert_eq!(destroyed, Ok(()));
        assert_eq!(filled.unwrap_err().kind(), Kind::Gone);
    }
}
