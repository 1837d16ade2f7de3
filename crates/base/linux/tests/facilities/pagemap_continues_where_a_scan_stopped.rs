//! A scan with more ranges than the kernel hands over at once continues from where it stopped; a
//! bound on pages holds.

use orbit_linux::map::{Mapping, page_size};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::uffd::{self, Uffd};

const PAGES: usize = 4096;

fn tracked() -> Option<(Mapping, Uffd, Pagemap)> {
    if let Some(why) = uffd::probe().reason() {
        println!("SKIP: needs asynchronous write tracking: {why}");
        return None;
    }
    let m = Mapping::anonymous(PAGES * page_size(), true).expect("mmap");
    let uffd = Uffd::open_wp_async().expect("userfaultfd");
    uffd.register_wp(m.addr(), m.len()).expect("register");
    uffd.write_protect(m.addr(), m.len(), true).expect("protect");
    for i in (0..PAGES).step_by(2) {
        // SAFETY: inside the own mapping.
        unsafe { m.as_ptr().add(i * page_size()).write_volatile(1) };
    }
    Some((m, uffd, Pagemap::own().expect("pagemap")))
}

#[test]
fn every_second_page_is_found() {
    let Some((m, _uffd, pagemap)) = tracked() else { return };
    let mut out = vec![(1, 2)];
    let found = pagemap.scan_written(m.addr(), m.addr() + m.len(), true, 0, &mut out).expect("scan");
    assert_eq!((found, out.len()), (PAGES / 2, PAGES / 2 + 1), "what was there before stays");
    for (i, &(s, e)) in out[1..].iter().enumerate() {
        assert_eq!((s, e - s), (m.addr() + 2 * i * page_size(), page_size()));
    }
}

#[test]
fn a_bound_on_pages_stops_the_scan_and_loses_nothing() {
    let Some((m, _uffd, pagemap)) = tracked() else { return };
    let (start, end) = (m.addr(), m.addr() + m.len());
    let mut out = Vec::new();
    assert_eq!(pagemap.scan_written(start, end, true, 700, &mut out).expect("scan"), 700);
    assert_eq!(out.len(), 700);
    assert_eq!(
        pagemap.scan_written(start, end, true, 0, &mut out).expect("scan"),
        PAGES / 2 - 700,
        "the rest is still there"
    );
    assert_eq!(out.len(), PAGES / 2);
}

#[test]
fn ranges_that_are_not_whole_pages_are_refused() {
    let pagemap = Pagemap::own().expect("pagemap");
    for (start, end) in [(1, page_size()), (0, 5), (2 * page_size(), page_size())] {
        let e = pagemap.scan_populated(start, end, 0, &mut Vec::new()).expect_err("must be refused");
        assert_eq!(e.kind(), std::io::ErrorKind::InvalidInput, "{e}");
    }
}
