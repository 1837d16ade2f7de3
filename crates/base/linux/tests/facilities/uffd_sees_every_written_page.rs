//! Write tracking: a random history of writes gives exactly the pages written, each once, touched
//! before or not.

use orbit_linux::map::{Mapping, page_size};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::uffd::{self, Uffd};
use orbit_testing::Random;
use std::collections::BTreeSet;

fn pages(ranges: &[(usize, usize)], base: usize) -> BTreeSet<usize> {
    ranges.iter().flat_map(|&(s, e)| (s..e).step_by(page_size())).map(|a| (a - base) / page_size()).collect()
}

#[test]
fn written_pages_are_found_exactly_once() {
    if let Some(why) = uffd::probe().reason() {
        println!("SKIP: needs asynchronous write tracking: {why}");
        return;
    }
    let mut random = Random::from_environment();
    const PAGES: usize = 3000;
    let page = page_size();
    // Half of the pages are touched before tracking begins, the rest never were: those need
    // WP_UNPOPULATED.
    let m = Mapping::anonymous(PAGES * page, false).expect("mmap");
    for i in 0..PAGES / 2 {
        // SAFETY: inside the own mapping.
        unsafe { m.as_ptr().add(i * page).write_volatile(1) };
    }
    let uffd = Uffd::open_wp_async().expect("userfaultfd");
    uffd.register_wp(m.addr(), m.len()).expect("register");
    let pagemap = Pagemap::own().expect("pagemap");
    let (start, end) = (m.addr(), m.addr() + m.len());
    let mut out = Vec::new();
    pagemap.scan_written(start, end, true, 0, &mut out).expect("first scan");

    for round in 0..60 {
        let writes = [0, 1, 7, 900, 2900][random.index(5)];
        let written: BTreeSet<usize> = (0..writes).map(|_| random.index(PAGES)).collect();
        for &i in &written {
            // SAFETY: inside the own mapping.
            unsafe { m.as_ptr().add(i * page + random.index(page)).write_volatile(round as u8) };
        }
        out.clear();
        let scanned = pagemap.scan_written(start, end, false, 0, &mut out).expect("scan");
        assert_eq!(pages(&out, start), written, "round {round}, scanned without a reset");
        out.clear();
        let found = pagemap.scan_written(start, end, true, 0, &mut out).expect("take");
        assert_eq!(pages(&out, start), written, "round {round}, taking");
        assert_eq!((scanned, found), (written.len(), written.len()), "round {round}");
        assert!(out.windows(2).all(|w| w[0].1 < w[1].0), "round {round}: ranges not ascending or not joined: {out:?}");
        out.clear();
        assert_eq!(pagemap.scan_written(start, end, true, 0, &mut out).expect("again"), 0, "round {round}");
    }
}
