//! Whichever system call of a harvest fails, no written page is lost: the next harvest that
//! succeeds reports it.

use crate::area_common;
use area_common::{Image, PAGE, engines, write};
use orbit::area::track::Tracker;
use orbit::area::{Area, PageRuns, fault};
use orbit::units::{Address, Bytes, Pages};
use orbit_linux::map::Mapping;

const PAGES: usize = 320;

#[test]
fn every_call_may_fail_once() {
    fault::set_step(64);
    for engine in engines() {
        let memory = Mapping::anonymous(PAGES * PAGE, false).unwrap();
        let base = memory.addr();
        let mut tracker = Tracker::new(Address::new(base), Bytes::new(PAGES * PAGE), engine).unwrap();
        let mut image = Image::new(base, PAGES * PAGE);
        image.update(&mut tracker, PAGES);
        let before = fault::calls();
        image.update(&mut tracker, PAGES);
        let calls = (fault::calls() - before) as u32;
        println!("engine {engine}: {calls} calls a harvest");
        for n in 0..calls {
            for page in (n as usize % 3..PAGES).step_by(3) {
                write(base, page * PAGE + 8, u64::from(n) + 1);
            }
            let mut runs = PageRuns::new();
            fault::fail_after(n);
            let error = tracker.harvest(&mut runs).unwrap_err();
            assert!(!fault::disarm() && runs.is_empty(), "engine {engine}: {error}");
            // Writes between the failed harvest and the next one count as well.
            write(base, (n as usize * 7 % PAGES) * PAGE + 16, u64::from(n) + 1);
            assert!(tracker.peek(Pages::new(PAGES)).unwrap().get() >= 1 + PAGES / 3 - 1, "engine {engine}, call {n}");
            image.update(&mut tracker, PAGES);
            assert_eq!(image.wrong_page(PAGES), None, "engine {engine}, call {n} failed");
        }
    }
    fault::set_step(0);
}

/// The same through an area with two orbits: the failed one is owed the pages, and so is the other.
#[test]
fn a_failed_snapshot_leaves_every_orbit_owed() {
    fault::set_step(16);
    for engine in engines() {
        let area = Area::builder("failing").limit(64 * PAGE).engine(engine).build().unwrap();
        let object = area.alloc(60 * PAGE, 16).unwrap().addr().get();
        let (one, two) = (area.attach().unwrap(), area.attach().unwrap());
        let (mut first, mut second) = (Image::new(area.base(), 64 * PAGE), Image::new(area.base(), 64 * PAGE));
        for turn in 0..12u32 {
            write(object, turn as usize * 5 * PAGE, 7 + u64::from(turn));
            let mut runs = PageRuns::new();
            fault::fail_after(turn % 5);
            let failed = area.snapshot_pages(&one, &mut runs).is_err();
            assert_eq!(failed, !fault::disarm());
            if !failed {
                first.take(&area, &runs);
            }
            second.update_from(&area, &two);
            first.update_from(&area, &one);
            assert_eq!(first.wrong_page(area.used_pages().get()), None, "engine {engine}, turn {turn}");
            assert_eq!(second.wrong_page(area.used_pages().get()), None, "engine {engine}, turn {turn}");
        }
    }
    fault::set_step(0);
}
