//! Pages dropped by MADV_DONTNEED in a tracked range lose their protection with their content: the
//! next scan reports them as written, so the loss is not missed.
use orbit_linux::map::{self, Mapping, page_size};
use orbit_linux::pagemap::Pagemap;
use orbit_linux::uffd::{self, Uffd};

#[test]
fn dropped_pages_are_reported() {
    if let Some(why) = uffd::probe().reason() {
        println!("SKIP: needs asynchronous write tracking: {why}");
        return;
    }
    let page = page_size();
    let m = Mapping::anonymous(8 * page, true).expect("mmap");
    let uffd = Uffd::open_wp_async().expect("userfaultfd");
    uffd.register_wp(m.addr(), m.len()).expect("register");
    uffd.write_protect(m.addr(), m.len(), true).expect("protect");
    // SAFETY: two pages of the own mapping.
    unsafe { map::dont_need(m.addr() + 2 * page, 2 * page) }.expect("dontneed");
    let mut out = Vec::new();
    let found = Pagemap::own().expect("pagemap").scan_written(m.addr(), m.addr() + m.len(), true, 0, &mut out);
    println!("{found:?} {out:?}");
    assert_eq!(out, [(m.addr() + 2 * page, m.addr() + 4 * page)]);
}
