//! Existing memory becomes an area: its changes are found with every engine, it keeps its content
//! when the area goes, and what cannot be tracked is rejected with the reason.

use crate::area_common;
use area_common::{Image, PAGE, engines, write};
use orbit::Kind;
use orbit::area::{Area, free};
use orbit_linux::map::Mapping;
use std::os::fd::AsFd;

/// A page-aligned table in the program's data segment, as a program's globals are.
#[repr(C, align(4096))]
struct Table([u64; 4096]);
static mut TABLE: Table = Table([1; 4096]);

#[test]
fn a_table_of_globals_is_followed() {
    let base = &raw mut TABLE as usize;
    let len = size_of::<Table>();
    for engine in engines() {
        // SAFETY: a static is mapped for ever.
        let area = unsafe { Area::builder("table").engine(engine).adopt(base as *mut u8, len) }.unwrap();
        assert_eq!((area.base(), area.limit(), area.used()), (base, len, len));
        assert_eq!(area.alloc(8, 8).unwrap_err().kind(), Kind::Unsupported);
        // SAFETY: has to be rejected.
        assert_eq!(unsafe { free(base as *mut u8) }.unwrap_err().kind(), Kind::Unsupported);
        let orbit = area.attach().unwrap();
        let mut image = Image::new(base, len);
        for turn in 0..50 {
            write(base, (turn * 37 % 512) * 64, turn as u64);
            image.update_from(&area, &orbit);
            assert_eq!(image.wrong_page(len / PAGE), None, "engine {engine}, turn {turn}");
        }
        // SAFETY: as above; it is an area already.
        let twice = unsafe { Area::adopt((base + PAGE) as *mut u8, PAGE) }.unwrap_err();
        assert!(twice.to_string().contains("overlaps area \"table\""), "{twice}");
        drop((orbit, area));
        write(base, 8, 99);
        assert_eq!(area_common::read(base, 8), 99);
    }
}

#[test]
fn memory_that_cannot_be_followed_is_refused() {
    let memory = Mapping::anonymous(8 * PAGE, false).unwrap();
    let at = memory.addr();
    // SAFETY: every range below has to be rejected.
    let refused = |addr: usize, len| unsafe { Area::adopt(addr as *mut u8, len) }.unwrap_err();
    assert_eq!(refused(at + 8, PAGE).kind(), Kind::Invalid);
    assert_eq!(refused(at, 100).kind(), Kind::Invalid);
    assert_eq!(refused(at, 0).kind(), Kind::Invalid);
    assert_eq!(refused(0, PAGE).kind(), Kind::Invalid);
    assert_eq!(refused(usize::MAX - PAGE + 1, 2 * PAGE).kind(), Kind::Invalid);
    // SAFETY: pages of this test's own mapping that nobody uses.
    unsafe {
        orbit_linux::map::protect(at + 2 * PAGE, PAGE, libc::PROT_READ).unwrap();
        libc::munmap((at + 5 * PAGE) as *mut _, PAGE);
    }
    let error = refused(at, 4 * PAGE);
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("not both readable and writable"), "{error}");
    let error = refused(at + 3 * PAGE, 4 * PAGE);
    assert!(error.to_string().contains("is not mapped"), "{error}");
    let file = orbit_linux::memfd::create("shared", PAGE, false).unwrap();
    let shared = Mapping::shared(file.as_fd(), PAGE, true, false).unwrap();
    let error = refused(shared.addr(), PAGE);
    assert!(error.to_string().contains("is shared memory"), "{error}");
    let area = Area::builder("inside").limit(PAGE).build().unwrap();
    let error = refused(area.base(), PAGE);
    assert!(error.to_string().contains("an area has that memory already"), "{error}");
}
