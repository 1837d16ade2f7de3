//! Memory of hugetlb, whose scanning could hang, is rejected before the kernel sees it, and
//! ordinary memory beside it is not.

use orbit_linux::map::Mapping;
use orbit_linux::uffd::Uffd;
use std::io::ErrorKind;

const HUGE: usize = 2 << 20;

#[test]
fn a_hugetlb_range_is_refused() {
    let uffd = match Uffd::open_wp_async() {
        Ok(u) => u,
        Err(e) => {
            println!("SKIP: needs asynchronous write tracking: {e}");
            return;
        }
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address the kernel picks; it is never touched, so needs no huge
    // page.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), HUGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        println!("SKIP: needs hugetlb: {}", std::io::Error::last_os_error());
        return;
    }
    let refused = uffd.register_wp(p as usize, HUGE);
    // SAFETY: the own mapping, which nobody refers to.
    unsafe { libc::munmap(p, HUGE) };
    let e = refused.expect_err("must be refused");
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    assert!(e.to_string().contains("hugetlb"), "{e}");

    let plain = Mapping::anonymous(HUGE, false).expect("mmap");
    uffd.register_wp(plain.addr(), plain.len()).expect("ordinary memory");
}
