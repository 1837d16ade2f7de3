//! What areas cost on this machine, as figures to choose thresholds by. Not run by default;
//! `cargo test --release --test area_costs -- --ignored --nocapture --test-threads 1` prints them.

use crate::area_common;
use area_common::{PAGE, can_have, write};
use orbit::area::track::{PageRuns, Tracker};
use orbit::area::{Area, Engine};
use orbit::units::{Address, Bytes, Pages};
use orbit_linux::map::Mapping;
use orbit_testing::Random;
use std::hint::black_box;
use std::time::Instant;

/// The median of some measurements, in nanoseconds.
fn median(times: usize, mut measured: impl FnMut() -> u128) -> f64 {
    let mut all: Vec<u128> = (0..times).map(|_| measured()).collect();
    all.sort_unstable();
    all[times / 2] as f64
}

fn timed(f: impl FnOnce()) -> u128 {
    let start = Instant::now();
    f();
    start.elapsed().as_nanos()
}

#[test]
#[ignore = "prints figures, proves nothing"]
fn allocator() {
    let area = Area::builder("timed").limit(256 << 20).build().unwrap();
    for size in [16, 64, 256, 1024, 4096, 20_000, 40_000] {
        const N: usize = 2000;
        let mut objects = Vec::with_capacity(N);
        let (mut alloc, mut free) = (Vec::new(), Vec::new());
        for _ in 0..15 {
            alloc.push(timed(|| objects.extend((0..N).map(|_| area.alloc(size, 8).unwrap()))));
            free.push(timed(|| {
                for object in objects.drain(..) {
                    // SAFETY: nobody uses it.
                    unsafe { orbit::area::free(object.as_ptr()) }.unwrap();
                }
            }));
        }
        alloc.sort_unstable();
        free.sort_unstable();
        let pair = median(15, || {
            timed(|| {
                for _ in 0..N {
                    let object = area.alloc(size, 8).unwrap();
                    // SAFETY: nobody uses it.
                    unsafe { area.free(object) }.unwrap();
                }
            })
        });
        let per = |ns: u128| ns / N as u128;
        println!(
            "{size:>6} bytes: alloc {:>4} ns, free {:>4} ns, alloc and free in turn {:>4.0} ns",
            per(alloc[7]),
            per(free[7]),
            pair / N as f64
        );
    }
}

#[test]
#[ignore = "prints figures, proves nothing"]
fn small_areas_by_engine() {
    for pages in [2, 4, 16, 64, 256, 1024] {
        for share in [0, 4, 25, 100] {
            let dirty = (pages * share / 100).max(usize::from(share > 0));
            print!("{:>5} KiB, {dirty:>4} pages written:", pages * 4);
            for engine in [Engine::Track, Engine::Compare, Engine::Copy].into_iter().filter(|&engine| can_have(engine))
            {
                let memory = Mapping::anonymous(pages * PAGE, true).unwrap();
                let mut to = vec![0u8; pages * PAGE];
                let mut tracker = Tracker::new(Address::new(memory.addr()), Bytes::new(pages * PAGE), engine).unwrap();
                tracker.grow(Pages::new(pages)).unwrap();
                let mut runs = PageRuns::new();
                let mut random = Random::new(7);
                let (mut writing, mut snapshot) = (Vec::new(), Vec::new());
                for turn in 1..=200 {
                    // Other pages each time, so that none is hot.
                    let first = random.index(pages);
                    writing.push(timed(|| {
                        (0..dirty).for_each(|n| write(memory.addr(), (first + n * 7919) % pages * PAGE, turn));
                    }));
                    snapshot.push(timed(|| {
                        runs.clear();
                        tracker.harvest(&mut runs).unwrap();
                        for (first, count) in runs.iter() {
                            for page in first.run(count) {
                                // SAFETY: a readable page, and room for one.
                                unsafe {
                                    libc::memcpy(
                                        to[page.get() * PAGE..].as_mut_ptr().cast(),
                                        tracker.source(page).cast(),
                                        PAGE,
                                    );
                                }
                            }
                        }
                    }));
                }
                writing.sort_unstable();
                snapshot.sort_unstable();
                print!("  {engine} {:>6} + {:>6} ns", writing[100], snapshot[100]);
                black_box(&to);
            }
            println!();
        }
    }
}

#[test]
#[ignore = "prints figures, proves nothing"]
fn clean_scans_and_dirty_pages() {
    if !can_have(Engine::Track) {
        return;
    }
    for (mib, stated) in [(1, false), (32, false), (256, false), (32, true), (256, true)] {
        let (len, pages) = (mib << 20, (mib << 20) / PAGE);
        let area = Area::builder("scanned").size(if stated { len } else { 0 }).limit(len).build().unwrap();
        let base = area.base();
        let orbit = area.attach().unwrap();
        let mut runs = PageRuns::new();
        let mut harvest = || {
            runs.clear();
            let time = timed(|| area.snapshot_pages(&orbit, &mut runs).unwrap());
            (time, runs.pages().get())
        };
        // Grows bit by bit, with snapshots in between.
        for _ in 0..64 {
            let part = area.alloc(len / 64, PAGE).unwrap().addr().get();
            (0..pages / 64).for_each(|page| write(part, page * PAGE, 1));
            harvest();
        }
        let clean = median(25, || harvest().0);
        println!(
            "{mib:>4} MiB{}: clean harvest {:>6.1} us ({:.2} ns a page)",
            if stated { ", size stated" } else { "" },
            clean / 1e3,
            clean / pages as f64
        );
        let mut random = Random::new(7);
        for (round, spread) in [(1, pages / 8), (2, pages / 8), (1, pages), (2, pages)] {
            let (mut first, mut found) = (0, 0);
            let mut times = Vec::new();
            for turn in 0..25 {
                let at: Vec<_> = (0..64).map(|_| random.index(spread)).collect();
                first += timed(|| at.iter().for_each(|page| write(base, page * PAGE, turn)));
                let (time, pages) = harvest();
                times.push(time);
                found += pages;
            }
            times.sort_unstable();
            println!(
                "          64 pages of {:>3} MiB, round {round}: first write {:>5} ns each, harvest {:>6.1} us, {} \
                 reported",
                (spread * PAGE) >> 20,
                first / 25 / 64,
                times[12] as f64 / 1e3,
                found / 25
            );
        }
    }
}

#[test]
#[ignore = "prints figures, proves nothing"]
fn hot_runs() {
    if !can_have(Engine::Track) {
        return;
    }
    const PAGES: usize = 1024;
    for length in [1, 2, 4, 16, 64] {
        let memory = Mapping::anonymous(PAGES * PAGE, true).unwrap();
        let mut tracker = Tracker::new(Address::new(memory.addr()), Bytes::new(PAGES * PAGE), Engine::Track).unwrap();
        tracker.grow(Pages::new(PAGES)).unwrap();
        let mut runs = PageRuns::new();
        let mut times = Vec::new();
        for turn in 0..100 {
            times.push(timed(|| {
                (0..length).for_each(|page| write(memory.addr(), (100 + page) * PAGE, turn));
                runs.clear();
                tracker.harvest(&mut runs).unwrap();
            }));
        }
        times[2..16].sort_unstable();
        times[20..100].sort_unstable();
        println!(
            "a hot run of {length:>2}: write and harvest {:>6} ns protected, {:>6} ns left out",
            times[9], times[60]
        );
    }
}
