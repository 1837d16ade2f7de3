//! Hot pages: a run written between all harvests is no longer protected, is still always reported,
//! and is protected again some time after it fell quiet; cold pages beside it are reported exactly
//! when written, all the while.

use crate::area_common;
use area_common::{Image, PAGE, can_have, write};
use orbit::area::Engine;
use orbit::area::track::Tracker;
use orbit::units::{Address, Bytes, Page, Pages};
use orbit_linux::map::Mapping;
use orbit_testing::Random;

const PAGES: usize = 256;
const HOT: std::ops::Range<usize> = 40..72;

#[test]
fn hot_pages_come_and_go_and_nothing_is_lost() {
    if !can_have(Engine::Track) {
        return;
    }
    let mut random = Random::from_environment();
    let memory = Mapping::anonymous(PAGES * PAGE, false).unwrap();
    let base = memory.addr();
    let mut tracker = Tracker::new(Address::new(base), Bytes::new(PAGES * PAGE), Engine::Track).unwrap();
    let mut image = Image::new(base, PAGES * PAGE);
    image.update(&mut tracker, PAGES);
    for turn in 0..600u64 {
        // Hot for 300 turns, then quiet.
        if turn < 300 {
            HOT.for_each(|page| write(base, page * PAGE, turn));
        }
        let cold = random.index(PAGES);
        write(base, cold * PAGE + 8, turn);
        let reported = image.update(&mut tracker, PAGES);
        assert_eq!(image.wrong_page(PAGES), None, "turn {turn}");
        assert!(reported.contains(Page::new(cold)));
        let others = reported.iter().flat_map(|(first, count)| first.run(count)).map(Page::get);
        let others = others.filter(|page| !HOT.contains(page) && *page != cold).count();
        assert_eq!(others, 0, "turn {turn}: cold pages reported that nobody wrote");
        if turn == 250 {
            // Unprotected: a write makes no fault that a peek without one would not count as well.
            assert!(tracker.peek(Pages::new(PAGES)).unwrap().get() >= HOT.len(), "the run is not hot");
        }
    }
    assert_eq!(tracker.peek(Pages::new(PAGES)).unwrap().get(), 0, "the run is still hot long after it fell quiet");
}

/// Random pages with all rates of writing, over many harvests.
#[test]
fn any_mixture_of_rates_is_right() {
    if !can_have(Engine::Track) {
        return;
    }
    let mut random = Random::from_environment();
    let memory = Mapping::anonymous(PAGES * PAGE, false).unwrap();
    let base = memory.addr();
    let mut tracker = Tracker::new(Address::new(base), Bytes::new(PAGES * PAGE), Engine::Track).unwrap();
    let mut image = Image::new(base, PAGES * PAGE);
    let mut rates: Vec<usize> = (0..PAGES).map(|page| page / 16 % 9 * 12).collect();
    for turn in 0..800u64 {
        if turn % 150 == 149 {
            rates.rotate_right(random.index(PAGES));
        }
        for (page, &rate) in rates.iter().enumerate() {
            if random.index(100) < rate {
                write(base, page * PAGE + random.index(512) * 8, turn);
            }
        }
        let used = if turn < 100 { PAGES / 2 } else { PAGES };
        image.update(&mut tracker, used);
        assert_eq!(image.wrong_page(used), None, "turn {turn}");
    }
}
