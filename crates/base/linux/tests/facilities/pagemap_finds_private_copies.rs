//! In a private mapping of a file, the pages that the process wrote itself are distinguished from
//! those that still are the file's; by PAGEMAP_SCAN and by the entries of pagemap alike. Dropping
//! them brings the file's content back.

use orbit_linux::map::{self, Mapping, page_size};
use orbit_linux::memfd;
use orbit_linux::pagemap::Pagemap;
use std::os::fd::AsFd;

#[test]
fn written_pages_are_found_and_dropped() {
    const PAGES: usize = 1200;
    let page = page_size();
    let file = memfd::create("private-copies", PAGES * page, true).expect("memfd");
    let alias = Mapping::shared(file.as_fd(), PAGES * page, true, true).expect("alias");
    let at = Mapping::reserve(PAGES * page).expect("reserve");
    // SAFETY: the range was reserved for this.
    unsafe { map::fixed_private_file(at.addr(), at.len(), file.as_fd(), 0) }.expect("private mapping");
    let (start, end) = (at.addr(), at.addr() + at.len());
    let mut expected = Vec::new();
    for i in 0..PAGES {
        // SAFETY: both mappings have PAGES pages.
        unsafe {
            alias.as_ptr().add(i * page).write_volatile(7);
            match i % 3 {
                0 => {
                    at.as_ptr().add(i * page + 1).write_volatile(9);
                    expected.push((start + i * page, start + (i + 1) * page));
                }
                1 => assert_eq!(at.as_ptr().add(i * page).read_volatile(), 7, "reading leaves the page the file's"),
                _ => {}
            }
        }
    }
    let pagemap = Pagemap::own().expect("pagemap");
    let mut out = Vec::new();
    assert_eq!(pagemap.scan_anonymous(start, end, &mut out).expect("scan"), expected.len());
    assert_eq!(out, expected);
    out.clear();
    assert_eq!(pagemap.without_scan().scan_anonymous(start, end, &mut out).expect("entries"), expected.len());
    assert_eq!(out, expected);

    for &(s, e) in &out {
        // SAFETY: a range of the own mapping.
        unsafe { map::dont_need(s, e - s) }.expect("dontneed");
    }
    out.clear();
    let pagemap = Pagemap::own().expect("pagemap");
    assert_eq!(pagemap.scan_anonymous(start, end, &mut out).expect("scan"), 0);
    // SAFETY: the first page of the own mapping.
    let back = unsafe { (at.as_ptr().read_volatile(), at.as_ptr().add(1).read_volatile()) };
    assert_eq!(back, (7, 0), "the file's content is back");
}

#[test]
fn populated_pages_are_found() {
    let page = page_size();
    let m = Mapping::anonymous(1000 * page, false).expect("mmap");
    let (start, end) = (m.addr(), m.addr() + m.len());
    // SAFETY: says how the own mapping is to be populated: page by page. A kernel without huge
    // pages rejects, which is fine.
    let _ = unsafe { map::advise(start, m.len(), libc::MADV_NOHUGEPAGE) };
    for i in [0, 1, 2, 500, 999] {
        // SAFETY: inside the own mapping.
        unsafe { m.as_ptr().add(i * page).write_volatile(1) };
    }
    let expected = [(start, start + 3 * page), (start + 500 * page, start + 501 * page), (end - page, end)];
    let pagemap = Pagemap::own().expect("pagemap");
    let (mut scanned, mut read) = (Vec::new(), Vec::new());
    assert_eq!(pagemap.scan_populated(start, end, 0, &mut scanned).expect("scan"), 5);
    assert_eq!(pagemap.without_scan().scan_populated(start, end, 0, &mut read).expect("entries"), 5);
    assert_eq!(scanned, expected);
    assert_eq!(read, expected);
}
