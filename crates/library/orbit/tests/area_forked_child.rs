//! A child forked by main on its own has main's descriptors: it must not touch main's tracking. It
//! gets a clear error, and main loses nothing.

mod area_common;
use area_common::{Image, PAGE, engines, write};
use orbit::Kind;
use orbit::area::{Area, PageRuns};
use orbit::units::Pages;

#[test]
fn a_child_leaves_mains_tracking_alone() {
    for engine in engines() {
        let area = Area::builder("parents").limit(64 * PAGE).engine(engine).build().unwrap();
        let object = area.alloc(60 * PAGE, 16).unwrap().addr().get();
        let orbit = area.attach().unwrap();
        let mut image = Image::new(area.base(), 64 * PAGE);
        image.update_from(&area, &orbit);
        for turn in 0..5usize {
            (0..10).for_each(|n| write(object, (turn * 11 + n) % 60 * PAGE, turn as u64 + 1));
            // SAFETY: the child uses what is said to work after fork, and leaves by _exit.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let mut runs = PageRuns::new();
                let refused = area.snapshot_pages(&orbit, &mut runs).is_err_and(|e| e.kind() == Kind::Forked);
                let peeked = area.peek_pages(&orbit, Pages::new(100)).is_err_and(|e| e.kind() == Kind::Forked);
                write(object, 8, 77);
                drop(orbit);
                drop(area);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if refused && peeked && runs.is_empty() { 0 } else { 1 }) };
            }
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for the child just made.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "engine {engine}: the child was not refused");
            image.update_from(&area, &orbit);
            assert_eq!(image.wrong_page(area.used_pages().get()), None, "engine {engine}: the child blinded main");
            // Still tracked after the child has dropped its handle.
            write(object, 30 * PAGE, 1000 + turn as u64);
            assert!(image.update_from(&area, &orbit).pages().get() >= 1);
            assert_eq!(image.wrong_page(area.used_pages().get()), None, "engine {engine}");
        }
    }
}

/// Another thread of main harvests all the time: the child finds its lock held, and must not wait
/// for it.
#[test]
fn a_child_does_not_wait_for_mains_threads() {
    let area = Area::builder("busy").limit(64 * PAGE).build().unwrap();
    area.alloc(60 * PAGE, 16).unwrap();
    let orbit = area.attach().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut runs = PageRuns::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                runs.clear();
                area.snapshot_pages(&orbit, &mut runs).unwrap();
            }
        });
        for _ in 0..50 {
            area_common::in_child(|| {
                let error = area.snapshot_pages(&orbit, &mut PageRuns::new()).unwrap_err();
                assert_eq!(error.kind(), Kind::Forked);
            });
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// The objects are memory of the child; the books are main's, and another thread may be writing in
/// them at the fork.
#[test]
fn a_child_reads_and_writes_objects_but_neither_makes_nor_frees_any() {
    let area = Area::builder("parents").limit(64 * PAGE).build().unwrap();
    let object = area.place(7u64).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let other = area.alloc(100, 16).unwrap();
                // SAFETY: just made, and not shared.
                unsafe { area.free(other).unwrap() };
            }
        });
        for _ in 0..50 {
            area_common::in_child(|| {
                let forked = |error: orbit::Error| {
                    assert_eq!(error.kind(), Kind::Forked, "{error}");
                    assert!(error.to_string().contains("\"parents\""), "{error}");
                };
                forked(area.alloc(8, 8).unwrap_err());
                forked(area.usable_size(object.cast()).unwrap_err());
                forked(area.destroy().unwrap_err());
                // SAFETY: the child's own copy of an object of 8 bytes, used here alone; it stays,
                // for all are rejected.
                unsafe {
                    forked(area.free(object.cast()).unwrap_err());
                    forked(orbit::area::free(object.as_ptr().cast()).unwrap_err());
                    forked(area.realloc(object.cast(), 100, 16).unwrap_err());
                    *object.as_ptr() += 1;
                    assert_eq!(*object.as_ptr(), 8);
                }
            });
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    // SAFETY: an object that lives.
    assert_eq!(unsafe { *object.as_ptr() }, 7, "and main's is as it was");
}
