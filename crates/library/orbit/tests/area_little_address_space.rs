//! Where address space is scarce (`ulimit -v`) the window is as large as it can be, and if that is
//! too little the error says so and names the limit.

mod area_common;
use area_common::in_child;
use orbit::Kind;
use orbit::area::Area;

/// Lets this process have `more` bytes of address space beyond what it has.
fn limit_address_space(more: u64) {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    let limit = libc::rlimit { rlim_cur: pages * 4096 + more, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the struct outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

#[test]
fn the_window_is_as_large_as_it_can_be() {
    in_child(|| {
        limit_address_space(300 << 20);
        let area = Area::builder("modest").limit(16 << 20).build().unwrap();
        area.alloc(10 << 20, 16).unwrap();
        let error = Area::builder("large").limit(1 << 30).build().unwrap_err();
        assert_eq!(error.kind(), Kind::Full);
    });
    in_child(|| {
        limit_address_space(40 << 20);
        let error = Area::builder("none").limit(4096).build().unwrap_err();
        assert_eq!(error.kind(), Kind::Limit);
        assert!(error.to_string().contains("ulimit -v"), "{error}");
    });
}
