//! Writes that were announced are seen by the next snapshot like any others, cost no fault, and an
//! announcement that nothing follows changes nothing.

use orbit::area::PageRuns;
use orbit::units::Page;
use orbit::{Area, Engine, Kind};

const PAGE: usize = 4096;
const PAGES: usize = 600;

fn harvest(area: &Area, owed: &orbit::area::OwedSet) -> Vec<usize> {
    let mut runs = PageRuns::new();
    area.snapshot_pages(owed, &mut runs).unwrap();
    runs.iter().flat_map(|(first, count)| first.run(count)).map(Page::get).collect()
}

fn faults() -> i64 {
    // SAFETY: fills a local.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_minflt
    }
}

#[test]
fn announced_writes_are_seen_and_cost_no_fault() {
    for engine in [Engine::Track, Engine::Compare, Engine::Copy] {
        let built = Area::builder("announced").size(PAGES * PAGE).limit(PAGES * PAGE).engine(engine).build();
        let area = match built {
            Err(error) if error.kind() == Kind::Unsupported => {
                println!("SKIP: needs engine {engine}: {error}");
                continue;
            }
            built => built.unwrap(),
        };
        let object = area.alloc(PAGES * PAGE, PAGE).unwrap();
        let write = |page: usize, value: u64| {
            // SAFETY: a page of the object, which only this thread uses.
            unsafe { object.as_ptr().add(page * PAGE).cast::<u64>().write_volatile(value) };
        };
        (0..PAGES).for_each(|page| write(page, 1));
        let owed = area.attach().unwrap();
        assert_eq!(harvest(&area, &owed).len(), PAGES);
        harvest(&area, &owed);

        area.will_write(object.as_ptr().wrapping_add(100 * PAGE + 5), 50 * PAGE).unwrap();
        let before = faults();
        (100..151).for_each(|page| write(page, 2));
        let taken = faults() - before;
        write(300, 2);
        let found = harvest(&area, &owed);
        assert!((100..151).all(|page| found.contains(&page)), "{engine}: {found:?}");
        assert!(found.contains(&300), "{engine}: {found:?}");
        if engine == Engine::Track {
            assert!(taken < 5, "{taken} faults for 51 announced pages");
            assert!(found.len() < 60, "more was reported than announced and written: {found:?}");
        }

        // After the next harvest they are watched again.
        harvest(&area, &owed);
        write(120, 3);
        assert!(harvest(&area, &owed).contains(&120), "{engine}");
    }
}

#[test]
fn what_is_in_no_area_cannot_be_announced() {
    let area = Area::new(1 << 20).unwrap();
    let object = area.alloc(100, 16).unwrap();
    area.will_write(object.as_ptr(), 0).unwrap();
    assert_eq!(area.will_write(object.as_ptr(), usize::MAX).unwrap_err().kind(), Kind::Foreign);
    assert_eq!(area.will_write(std::ptr::null(), 1).unwrap_err().kind(), Kind::Foreign);
    assert_eq!(orbit::area::will_write(std::ptr::null(), 1).unwrap_err().kind(), Kind::Foreign);
    let at = object.as_ptr();
    area.destroy().unwrap();
    assert_eq!(area.will_write(at, 1).unwrap_err().kind(), Kind::Gone);
}
