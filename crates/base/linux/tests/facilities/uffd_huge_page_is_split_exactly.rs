//! A huge page that is protected as one: the first write splits it, and exactly the written small
//! page reads as written.

use orbit_linux::map::{self, Mapping, page_size};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::uffd::{self, Uffd};

const HUGE: usize = 2 << 20;

/// Kilobytes of huge pages that back `[addr, addr + HUGE)`.
fn huge_kilobytes(addr: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut inside = false;
    for line in smaps.lines() {
        if let Some((range, _)) = line.split_once(' ')
            && let Some((lo, hi)) = range.split_once('-')
            && let (Ok(lo), Ok(hi)) = (usize::from_str_radix(lo, 16), usize::from_str_radix(hi, 16))
        {
            inside = lo <= addr && addr < hi;
        } else if inside && let Some(n) = line.strip_prefix("AnonHugePages:") {
            return n.trim().trim_end_matches(" kB").parse().expect("a number");
        }
    }
    0
}

#[test]
fn one_small_page_of_a_huge_one_is_found() {
    if let Some(why) = uffd::probe().reason() {
        println!("SKIP: needs asynchronous write tracking: {why}");
        return;
    }
    let page = page_size();
    let m = Mapping::anonymous(3 * HUGE, false).expect("mmap");
    let start = m.addr().next_multiple_of(HUGE);
    // SAFETY: advice about a part of the own mapping, and a write into it.
    unsafe {
        let _ = map::advise(start, HUGE, libc::MADV_HUGEPAGE);
        m.as_ptr().add(start - m.addr()).write_volatile(1);
    }
    if huge_kilobytes(start) == 0 {
        println!("SKIP: needs transparent huge pages");
        return;
    }
    map::populate_write(start, HUGE).expect("populate");
    let uffd = Uffd::open_wp_async().expect("userfaultfd");
    uffd.register_wp(start, HUGE).expect("register");
    let pagemap = Pagemap::own().expect("pagemap");
    let mut out = Vec::new();
    assert_eq!(pagemap.scan_written(start, start + HUGE, true, 0, &mut out).expect("first"), HUGE / page);
    out.clear();
    assert_eq!(pagemap.scan_written(start, start + HUGE, true, 0, &mut out).expect("quiet"), 0);

    let at = start + 77 * page;
    // SAFETY: a byte inside the own mapping.
    unsafe { m.as_ptr().add(at + 5 - m.addr()).write_volatile(2) };
    assert_eq!(pagemap.scan_written(start, start + HUGE, true, 0, &mut out).expect("scan"), 1);
    assert_eq!(out, [(at, at + page)]);
}
