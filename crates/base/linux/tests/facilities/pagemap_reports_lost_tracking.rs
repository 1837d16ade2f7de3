//! A range whose tracking was lost (mapped anew, never registered) gives an error, not an empty
//! answer.

use orbit_linux::map::{self, Mapping, page_size};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::uffd::{self, Uffd};

#[test]
fn scanning_unregistered_memory_fails() {
    if let Some(why) = uffd::probe().reason() {
        println!("SKIP: needs asynchronous write tracking: {why}");
        return;
    }
    let page = page_size();
    let m = Mapping::anonymous(4 * page, true).expect("mmap");
    let (start, end) = (m.addr(), m.addr() + m.len());
    let pagemap = Pagemap::own().expect("pagemap");
    let mut out = Vec::new();
    let scan = |out: &mut Vec<_>| pagemap.scan_written(start, end, true, 0, out);
    assert_eq!(scan(&mut out).expect_err("never registered").raw_os_error(), Some(libc::EPERM));

    let uffd = Uffd::open_wp_async().expect("userfaultfd");
    uffd.register_wp(start, m.len()).expect("register");
    assert_eq!(scan(&mut out).expect("registered"), 4);
    // SAFETY: the second page of the own mapping, which nobody refers to.
    unsafe { map::fixed_anonymous(start + page, page) }.expect("map anew");
    assert_eq!(scan(&mut out).expect_err("partly lost").raw_os_error(), Some(libc::EPERM));

    uffd.register_wp(start, m.len()).expect("register anew");
    assert_eq!(scan(&mut out).expect("registered again"), 1, "the new page reads as written, the others are protected");
    uffd.unregister(start, m.len()).expect("unregister");
    assert_eq!(scan(&mut out).expect_err("unregistered").raw_os_error(), Some(libc::EPERM));
}
