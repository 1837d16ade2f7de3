//! The allocator against a plain model: random sizes, alignments, resizing and freeing; objects
//! keep their content, do not overlap, are aligned, read as zero when asked for so, and all memory
//! comes back.

mod area_common;
use orbit::area::Area;
use orbit_testing::Random;
use std::collections::BTreeMap;
use std::ptr::NonNull;

struct Object {
    size: usize,
    align: usize,
    fill: u8,
}

fn fill(at: usize, size: usize, byte: u8) {
    // SAFETY: the model passes living objects only, with the size they were asked for.
    unsafe { (at as *mut u8).write_bytes(byte, size) };
}

fn check(at: usize, size: usize, byte: u8) {
    // SAFETY: as for `fill`.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, size) };
    assert!(bytes.iter().all(|&b| b == byte), "object of {size} bytes at {at:#x} was overwritten");
}

fn size(random: &mut Random) -> usize {
    match random.index(12) {
        0 => random.index(400_000),
        1 => random.index(40_000),
        2 => 0,
        _ => {
            let most = 1 << (3 + random.index(10));
            random.index(most)
        }
    }
}

fn history(area: &Area, random: &mut Random, steps: usize) {
    let mut living: BTreeMap<usize, Object> = BTreeMap::new();
    let pointer = |at: usize| NonNull::new(at as *mut u8).unwrap();
    for _ in 0..steps {
        let picked = area.base() + random.index(area.limit());
        let picked = living.range(picked..).next().map(|(&at, _)| at);
        let byte = random.draw() as u8;
        match (random.index(10), picked) {
            (0..5, _) => {
                let size = size(random);
                let shifts = if random.index(10) == 0 { 17 } else { 7 };
                let align = 1 << random.index(shifts);
                let zeroed = random.index(3) == 0;
                let made = if zeroed { area.alloc_zeroed(size, align) } else { area.alloc(size, align) };
                let Ok(object) = made else { continue };
                let at = object.addr().get();
                assert!(at.is_multiple_of(align) && area.contains(at, size));
                if zeroed {
                    check(at, size, 0);
                }
                let real = area.usable_size(object).unwrap();
                assert!(real >= size && (size < 144 || align > 16 || (real - size) * 8 <= real), "{size} took {real}");
                let next = living.range(at..).next();
                assert!(next.is_none_or(|(&next, _)| at + size.max(1) <= next), "objects overlap");
                fill(at, size, byte);
                living.insert(at, Object { size, align, fill: byte });
            }
            (5..8, Some(at)) => {
                let Object { size, fill, .. } = living.remove(&at).unwrap();
                check(at, size, fill);
                // SAFETY: the model forgets it.
                unsafe { area.free(pointer(at)) }.unwrap();
            }
            (_, Some(at)) => {
                let old = &living[&at];
                let new_size = size(random);
                // SAFETY: the model uses the answer from here on.
                match unsafe { area.realloc(pointer(at), new_size, old.align) } {
                    Ok(object) => {
                        let old = living.remove(&at).unwrap();
                        let at = object.addr().get();
                        assert!(at.is_multiple_of(old.align));
                        check(at, old.size.min(new_size), old.fill);
                        fill(at, new_size, byte);
                        living.insert(at, Object { size: new_size, fill: byte, ..old });
                    }
                    Err(_) => check(at, old.size, old.fill),
                }
            }
            _ => {}
        }
    }
    for (at, Object { size, fill, .. }) in living {
        check(at, size, fill);
        // SAFETY: nobody uses it any more.
        unsafe { area.free(pointer(at)) }.unwrap();
    }
}

#[test]
fn random_histories_agree_with_a_model() {
    let mut random = Random::from_environment();
    for limit in [64 << 10, 1 << 20, 8 << 20] {
        let area = Area::builder("model").limit(limit).build().unwrap();
        for _ in 0..3 {
            history(&area, &mut random, 8_000);
            assert_eq!((area.used(), area.objects()), (0, 0));
            let whole = area.alloc_zeroed(limit, 4096).expect("all of it is free again");
            check(whole.addr().get(), limit, 0);
            // SAFETY: just made, used by nobody.
            unsafe { area.free(whole) }.unwrap();
        }
    }
}

#[test]
fn threads_share_an_area() {
    let random = Random::from_environment();
    let area = Area::builder("shared").limit(64 << 20).build().unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (area, mut random) = (&area, random.fork(n));
            scope.spawn(move || {
                let mut mine: Vec<(NonNull<u8>, usize, u8)> = Vec::new();
                for _ in 0..10_000 {
                    if random.index(5) < 3 || mine.is_empty() {
                        let size = 1 + size(&mut random) / 8;
                        let object = area.alloc(size, 16).unwrap();
                        fill(object.addr().get(), size, n as u8 + 1);
                        mine.push((object, size, n as u8 + 1));
                    } else {
                        let (object, size, byte) = mine.swap_remove(random.index(mine.len()));
                        check(object.addr().get(), size, byte);
                        // SAFETY: nobody uses it any more.
                        unsafe { orbit::area::free(object.as_ptr()) }.unwrap();
                    }
                    if mine.len() > 200 {
                        for (object, size, byte) in mine.drain(..) {
                            check(object.addr().get(), size, byte);
                            // SAFETY: nobody uses it any more.
                            unsafe { area.free(object) }.unwrap();
                        }
                    }
                }
            });
        }
    });
}
