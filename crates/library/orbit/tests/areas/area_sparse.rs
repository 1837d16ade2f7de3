//! Pages that nobody has touched are not sent: a large table costs an orbit only what the program
//! has put into it.

use crate::area_common;
use area_common::{Image, PAGE, can_have, read, write};
use orbit::area::{Area, Engine};
use orbit::units::Page;

const PAGES: usize = (64 << 20) / PAGE;

#[test]
fn untouched_pages_are_not_sent() {
    if std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1) {
        println!("SKIP: needs a machine without swap, where untouched pages can be distinguished from swapped ones");
        return;
    }
    for engine in [Engine::Track, Engine::Compare, Engine::Auto].into_iter().filter(|&engine| can_have(engine)) {
        for size in [0, PAGES * PAGE] {
            let area = Area::builder("sparse").size(size).limit(PAGES * PAGE).engine(engine).build().unwrap();
            let table = area.alloc_zeroed(PAGES * PAGE, 4096).unwrap().addr().get();
            let orbit = area.attach().unwrap();
            let mut image = Image::new(area.base(), PAGES * PAGE);
            // Where the kernel gives huge pages, what is touched is 512 pages.
            let most = |touched: usize| if size > 0 { touched * 512 } else { touched };
            write(table, 1000 * PAGE, 1);
            write(table, 9000 * PAGE, 2);
            let runs = image.update_from(&area, &orbit);
            assert!(runs.pages().get() <= most(2), "engine {engine}: {} pages", runs.pages());
            for turn in 0..30usize {
                write(table, turn * 431 * PAGE, turn as u64);
                assert_eq!(read(table, (turn * 431 + 1) * PAGE), 0);
                let runs = image.update_from(&area, &orbit);
                assert!(runs.contains(Page::new(turn * 431)) || turn == 0, "engine {engine}");
                assert!(runs.pages().get() <= most(2), "engine {engine}: {} pages", runs.pages());
            }
            // An orbit that comes later is owed what is there, not what could be. Comparing touches
            // all by reading.
            if engine != Engine::Compare && area.engine() != Engine::Compare {
                let late = area.attach().unwrap();
                assert!(
                    late.pages().get() >= 30 && late.pages().get() <= most(70),
                    "engine {engine}: {} owed",
                    late.pages()
                );
                let mut image = Image::new(area.base(), PAGES * PAGE);
                image.update_from(&area, &late);
                assert_eq!(image.wrong_page(PAGES), None, "engine {engine}");
            }
            image.update_from(&area, &orbit);
            assert_eq!(image.wrong_page(PAGES), None, "engine {engine}");
        }
    }
}
