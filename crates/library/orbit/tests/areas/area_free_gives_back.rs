//! Free really frees: pages are used again, long free runs go back to the kernel, and an orbit sees
//! them as changed.

use crate::area_common;
use area_common::{Image, PAGE, engines, write};
use orbit::area::{Area, Engine};

/// Resident pages of a range.
fn resident(base: usize, pages: usize) -> usize {
    let mut map = vec![0u8; pages];
    // SAFETY: the range is mapped, and the vector has a byte for each page of it.
    let status = unsafe { libc::mincore(base as *mut _, pages * PAGE, map.as_mut_ptr()) };
    assert_eq!(status, 0);
    map.iter().filter(|&&byte| byte & 1 == 1).count()
}

#[test]
fn pages_are_used_again() {
    let area = Area::builder("recycled").limit(1 << 20).build().unwrap();
    for size in [16, 100, 3000, 30_000, 200_000, 900_000] {
        for _ in 0..2000 {
            let objects: Vec<_> = (0..3).map_while(|_| area.alloc(size, 8).ok()).collect();
            for object in objects {
                // SAFETY: nobody uses it.
                unsafe { area.free(object) }.unwrap();
            }
        }
    }
    assert_eq!(area.objects(), 0);
}

#[test]
fn long_free_runs_go_back_and_count_as_changed() {
    for engine in engines() {
        let limit = 2 << 20;
        let area = Area::builder("returned").limit(limit).engine(engine).build().unwrap();
        let orbit = area.attach().unwrap();
        let mut image = Image::new(area.base(), limit);
        // Small objects and a large one: both ways of becoming a long run.
        let objects: Vec<_> = (0..2000).map(|_| area.alloc(256, 8).unwrap()).collect();
        let large = area.alloc(1 << 20, 8).unwrap();
        for object in objects.iter().chain([&large]) {
            write(object.addr().get(), 0, 7);
        }
        // SAFETY: a living object of a MiB.
        unsafe { large.as_ptr().write_bytes(9, 1 << 20) };
        image.update_from(&area, &orbit);
        let pages = area.used_pages().get();
        assert!(resident(area.base(), pages) > 370);
        for object in objects.into_iter().chain([large]) {
            // SAFETY: nobody uses it any more.
            unsafe { area.free(object) }.unwrap();
        }
        assert!(resident(area.base(), pages) < 20, "engine {engine}: memory is still held");
        image.update_from(&area, &orbit);
        assert_eq!(image.wrong_page(pages), None, "engine {engine}: the orbit holds what is gone");
        // What comes from there again reads as zero, in the area and in the image.
        let again = area.alloc_zeroed(1 << 20, 8).unwrap().addr().get();
        write(again, 100 * PAGE, 5);
        image.update_from(&area, &orbit);
        assert_eq!(image.wrong_page(area.used_pages().get()), None, "engine {engine}");
        if engine != Engine::Copy {
            let runs = image.update_from(&area, &orbit);
            assert!(runs.pages().get() < 10, "engine {engine}: {runs:?}");
        }
    }
}
