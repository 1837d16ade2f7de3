//! No write is lost: threads write while harvests run, and an image kept by the harvests alone is
//! right whenever the writers stand still, with every engine.

use crate::area_common;
use area_common::{Image, PAGE, can_have, engines, read, write};
use orbit::area::track::Tracker;
use orbit::area::{Area, Engine};
use orbit::units::{Address, Bytes};
use orbit_linux::map::Mapping;
use orbit_testing::Random;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

const PAGES: usize = 96;
const WRITERS: usize = 3;
const ROUNDS: usize = 30;

fn storm(engine: Engine, random: &Random, zeroes: bool) {
    let memory = Mapping::anonymous(PAGES * PAGE, false).unwrap();
    let base = memory.addr();
    let make = |base, len| match zeroes {
        true => Tracker::over_zeroes(Address::new(base), Bytes::new(len), engine, Bytes::ZERO),
        false => Tracker::new(Address::new(base), Bytes::new(len), engine),
    };
    let mut tracker = make(base, PAGES * PAGE).unwrap();
    let mut image = Image::new(base, PAGES * PAGE);
    let (start, stop) = (Barrier::new(WRITERS + 1), Barrier::new(WRITERS + 1));
    let go_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for n in 0..WRITERS {
            let mut random = random.fork(n as u64);
            let (start, stop, go_on) = (&start, &stop, &go_on);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    start.wait();
                    let mut written = 0;
                    while written < 50 || go_on.load(Ordering::Relaxed) {
                        write(base, random.index(PAGES * PAGE / 8) * 8, random.draw());
                        written += 1;
                    }
                    stop.wait();
                }
            });
        }
        for round in 0..ROUNDS {
            go_on.store(true, Ordering::Relaxed);
            start.wait();
            for _ in 0..1 + round % 7 {
                // Pages come into use while all continues.
                image.update(&mut tracker, (round * 4 + 4).min(PAGES));
            }
            go_on.store(false, Ordering::Relaxed);
            stop.wait();
            let used = (round * 4 + 4).min(PAGES);
            image.update(&mut tracker, used);
            assert_eq!(image.wrong_page(used), None, "engine {engine}, round {round}");
        }
    });
}

/// Two words on different pages are changed under a lock; every snapshot taken inside the lock has
/// both.
fn locked(engine: Engine) {
    let memory = Mapping::anonymous(PAGES * PAGE, false).unwrap();
    let base = memory.addr();
    let mut tracker = Tracker::new(Address::new(base), Bytes::new(PAGES * PAGE), engine).unwrap();
    let mut image = Image::new(base, PAGES * PAGE);
    let lock = Mutex::new(());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (lock, done) = (&lock, &done);
            scope.spawn(move || {
                let mut turn = 0u64;
                while !done.load(Ordering::Relaxed) {
                    let _guard = lock.lock().unwrap();
                    let value = read(base, 8) + 1;
                    write(base, 8, value);
                    write(base, 57 * PAGE + 16, value);
                    // A neighbour of the guarded word that is not: the page is torn all the time.
                    drop(_guard);
                    turn += 1;
                    write(base, 57 * PAGE + 512 + n * 8, turn);
                    std::thread::yield_now();
                }
            });
        }
        for _ in 0..200 {
            let guard = lock.lock().unwrap();
            let value = read(base, 8);
            image.update(&mut tracker, PAGES);
            assert_eq!((image.word(8), image.word(57 * PAGE + 16)), (value, value), "engine {engine}");
            drop(guard);
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A large area with huge pages, growing, with objects freed and made, while threads write to those
/// that live.
fn huge(engine: Engine, random: &Random) {
    let size = 64 << 20;
    let area = Area::builder("huge").size(size).engine(engine).build().unwrap();
    let orbit = area.attach().unwrap();
    let mut image = Image::new(area.base(), size);
    let mut random = random.fork(99);
    let mut tables: Vec<usize> = Vec::new();
    for round in 0..25 {
        if tables.len() < 12 {
            tables.push(area.alloc(3 << 20, 4096).unwrap().addr().get());
        }
        if round % 5 == 4 {
            let table = tables.swap_remove(random.index(tables.len()));
            // SAFETY: no thread writes to it any more.
            unsafe { orbit::area::free(table as *mut u8) }.unwrap();
        }
        let running = AtomicUsize::new(WRITERS);
        std::thread::scope(|scope| {
            for n in 0..WRITERS {
                let (mut random, tables, running) = (random.fork(n as u64 * 1000 + round), &tables, &running);
                scope.spawn(move || {
                    for _ in 0..400 {
                        // Mostly one table, so that other huge pages stay whole.
                        let table = tables[if random.index(8) == 0 { random.index(tables.len()) } else { 0 }];
                        write(table, random.index((3 << 20) / 8) * 8, random.draw());
                    }
                    running.fetch_sub(1, Ordering::Release);
                });
            }
            while running.load(Ordering::Acquire) > 0 {
                image.update_from(&area, &orbit);
            }
        });
        image.update_from(&area, &orbit);
        assert_eq!(image.wrong_page(area.used_pages().get()), None, "engine {engine}, round {round}");
    }
}

#[test]
fn no_write_is_lost_in_huge_pages() {
    if can_have(Engine::Track) {
        huge(Engine::Track, &Random::from_environment());
    }
}

#[test]
fn no_write_is_lost() {
    let random = Random::from_environment();
    for engine in engines() {
        storm(engine, &random, false);
        if engine == Engine::Track {
            storm(engine, &random, true);
        }
        locked(engine);
    }
}
