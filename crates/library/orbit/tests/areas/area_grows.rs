//! An area grows in place up to its limit: new pages are tracked as soon as they are used, `Auto`
//! changes its engine on the way, and a large limit costs no memory.

use crate::area_common;
use area_common::{Image, PAGE, can_have, engines, write};
use orbit::area::{Area, Engine};

#[test]
fn new_pages_are_in_the_next_snapshot() {
    for engine in engines() {
        let limit = 4 << 20;
        let area = Area::builder("growing").limit(limit).engine(engine).build().unwrap();
        let base = area.base();
        let orbit = area.attach().unwrap();
        let mut image = Image::new(base, limit);
        assert_eq!(area.used_pages().get(), 0);
        let mut objects = Vec::new();
        let mut turn = 0u64;
        while let Ok(object) = area.alloc(50_000, 16) {
            turn += 1;
            assert_eq!(area.base(), base);
            write(object.addr().get(), 49_000, turn);
            objects.push(object.addr().get());
            write(objects[turn as usize / 2], 8, turn);
            image.update_from(&area, &orbit);
            assert_eq!(image.wrong_page(area.used_pages().get()), None, "engine {engine}, turn {turn}");
        }
        assert!(area.high_water() > limit - 60_000 && turn > 70);
    }
}

#[test]
fn auto_goes_from_copying_to_tracking() {
    let area = Area::builder("auto").limit(1 << 20).build().unwrap();
    let orbit = area.attach().unwrap();
    let mut image = Image::new(area.base(), 1 << 20);
    area.place(1u64).unwrap();
    image.update_from(&area, &orbit);
    assert_eq!(area.engine(), Engine::Copy);
    let object = area.alloc(100_000, 16).unwrap().addr().get();
    image.update_from(&area, &orbit);
    let expected = if can_have(Engine::Track) { Engine::Track } else { Engine::Compare };
    assert_eq!(area.engine(), expected);
    assert_eq!(area.engine_note().is_some(), expected == Engine::Compare);
    for turn in 0..20 {
        write(object, turn * PAGE, 1 + turn as u64);
        let runs = image.update_from(&area, &orbit);
        assert_eq!(runs.pages().get(), 1);
        assert_eq!(image.wrong_page(area.used_pages().get()), None);
    }
    assert_eq!(image.update_from(&area, &orbit).pages().get(), 0);
}

#[test]
fn a_large_limit_costs_nothing() {
    let areas: Vec<_> = (0..3).map(|n| Area::builder(format!("wide {n}")).limit(4 << 30).build().unwrap()).collect();
    for area in &areas {
        let object = area.alloc(3 << 30, 1 << 21).unwrap();
        assert!(object.addr().get().is_multiple_of(1 << 21));
        write(object.addr().get(), (3 << 30) - 8, 1);
    }
    // Their ranges come back to the window: far more than it holds is handed out one after another.
    drop(areas);
    for _ in 0..100 {
        Area::builder("again").limit(16 << 30).build().unwrap().alloc(1, 1).unwrap();
    }
}
