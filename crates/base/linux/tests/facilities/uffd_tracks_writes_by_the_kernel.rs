//! A `read(2)` into a tracked range is a write like any other: it succeeds and is seen.

use orbit_linux::map::{Mapping, page_size};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::uffd::{self, Uffd};
use std::fs::File;
use std::os::fd::AsRawFd;

#[test]
fn read_into_a_protected_page_is_seen() {
    if let Some(why) = uffd::probe().reason() {
        println!("SKIP: needs asynchronous write tracking: {why}");
        return;
    }
    let page = page_size();
    let m = Mapping::anonymous(4 * page, true).expect("mmap");
    let uffd = Uffd::open_wp_async().expect("userfaultfd");
    uffd.register_wp(m.addr(), m.len()).expect("register");
    uffd.write_protect(m.addr(), m.len(), true).expect("protect");
    let zero = File::open("/dev/zero").expect("/dev/zero");
    // SAFETY: 16 bytes inside the third page of the own mapping.
    let n = unsafe { libc::read(zero.as_raw_fd(), m.as_ptr().add(2 * page).cast(), 16) };
    assert_eq!(n, 16, "{}", std::io::Error::last_os_error());
    let mut out = Vec::new();
    let found = Pagemap::own().expect("pagemap").scan_written(m.addr(), m.addr() + m.len(), true, 0, &mut out);
    assert_eq!(found.expect("scan"), 1);
    assert_eq!(out, [(m.addr() + 2 * page, m.addr() + 3 * page)]);
}
