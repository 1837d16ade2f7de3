//! Several orbits share an area, each at its own version: every one of them gets every change,
//! whoever harvested it.

use crate::area_common;
use area_common::{Image, PAGE, engines, write};
use orbit::Kind;
use orbit::area::{Area, PageRuns};
use orbit::units::Pages;
use orbit_testing::Random;

const PAGES: usize = 128;

#[test]
fn each_orbit_gets_every_change() {
    let mut random = Random::from_environment();
    for engine in engines() {
        let area = Area::builder("versions").limit(PAGES * PAGE).engine(engine).build().unwrap();
        let object = area.alloc(PAGES * PAGE, 16).unwrap().addr().get();
        let mut orbits = Vec::new();
        for turn in 0..400u64 {
            // Orbits come and go.
            if orbits.len() < 4 && random.index(20) == 0 {
                orbits.push((area.attach().unwrap(), Image::new(area.base(), PAGES * PAGE)));
            }
            if random.index(60) == 0 && !orbits.is_empty() {
                orbits.swap_remove(random.index(orbits.len()));
            }
            for _ in 0..random.index(6) {
                write(object, random.index(PAGES * PAGE / 8) * 8, turn + 1);
            }
            if orbits.is_empty() {
                continue;
            }
            let which = random.index(orbits.len());
            let (owed, image) = &mut orbits[which];
            if random.index(4) == 0 {
                // Taken and never delivered: it is put back.
                let mut runs = PageRuns::new();
                area.snapshot_pages(owed, &mut runs).unwrap();
                owed.owe(&runs);
            } else {
                let most = area.peek_pages(owed, Pages::MAX).unwrap();
                let runs = image.update_from(&area, owed);
                assert!(runs.pages() <= most, "engine {engine}: {} pages, {most} expected", runs.pages());
                assert_eq!(owed.pages().get(), 0);
                assert_eq!(image.wrong_page(PAGES), None, "engine {engine}, turn {turn}");
            }
        }
        let error = (!orbits.is_empty()).then(|| area.destroy().unwrap_err());
        assert!(error.is_none_or(|error| error.kind() == Kind::Invalid));
        orbits.clear();
        area.destroy().unwrap();
        assert_eq!(area.alloc(1, 1).unwrap_err().kind(), Kind::Gone);
        assert!(orbit::area::find(object).is_none());
    }
}
