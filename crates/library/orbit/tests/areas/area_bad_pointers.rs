//! Pointers that are no living object of the area give an error that says what is wrong, and leave
//! the area unharmed.

use orbit::Kind;
use orbit::area::{Area, free, usable_size};
use std::ptr::NonNull;

fn shifted(object: NonNull<u8>, by: isize) -> NonNull<u8> {
    NonNull::new(object.as_ptr().wrapping_offset(by)).unwrap()
}

#[test]
fn bad_pointers_are_refused_and_harm_nothing() {
    let area = Area::builder("books").limit(1 << 20).build().unwrap();
    let other = Area::builder("other").limit(1 << 20).build().unwrap();
    let small: Vec<_> = (0..100).map(|_| area.alloc(40, 8).unwrap()).collect();
    let large = area.alloc(100_000, 8).unwrap();
    let (used, objects) = (area.used(), area.objects());
    let foreign = other.alloc(40, 8).unwrap();
    let mut on_stack = 0u64;

    // SAFETY: every pointer below is one that free has to reject.
    let refused = |object: NonNull<u8>| unsafe { area.free(object) }.unwrap_err();
    for by in [1, 8, 16, 47] {
        let error = refused(shifted(small[3], by));
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("area \"books\"") && error.to_string().contains("inside"), "{error}");
    }
    assert_eq!(refused(shifted(large, 16)).kind(), Kind::Invalid);
    assert_eq!(refused(shifted(large, 4096)).kind(), Kind::Invalid);
    assert_eq!(refused(foreign).kind(), Kind::Foreign);
    assert_eq!(refused(NonNull::from(&mut on_stack).cast()).kind(), Kind::Foreign);
    assert_eq!(refused(shifted(large, 500_000)).kind(), Kind::Invalid, "a page that was never used");
    // SAFETY: as above.
    assert_eq!(unsafe { free((&raw mut on_stack).cast()) }.unwrap_err().kind(), Kind::Foreign);
    // SAFETY: null is nothing to free.
    unsafe { free(std::ptr::null_mut()) }.unwrap();
    assert_eq!((area.used(), area.objects()), (used, objects));

    // Freed once is fine, twice is not, whatever the object's size and whether its pages were given
    // up.
    for object in [small[50], large] {
        // SAFETY: nobody uses the object any more.
        unsafe { area.free(object) }.unwrap();
        assert_eq!(refused(object).kind(), Kind::DoubleFree);
        assert_eq!(area.usable_size(object).unwrap_err().kind(), Kind::DoubleFree);
        // SAFETY: a pointer that has to be rejected.
        assert_eq!(unsafe { area.realloc(object, 10, 1) }.unwrap_err().kind(), Kind::DoubleFree);
    }
    assert_eq!(area.objects(), objects - 2);

    // The rest lives on, and new objects do not overlap it.
    for (index, object) in small.iter().enumerate().filter(|(index, _)| *index != 50) {
        assert_eq!(usable_size(object.as_ptr()).unwrap(), 48);
        // SAFETY: a living object of 48 bytes.
        unsafe { object.as_ptr().write_bytes(index as u8, 48) };
    }
    for _ in 0..50 {
        let new = area.alloc(40, 8).unwrap();
        // SAFETY: a living object of 48 bytes.
        unsafe { new.as_ptr().write_bytes(0xff, 48) };
    }
    for (index, object) in small.iter().enumerate().filter(|(index, _)| *index != 50) {
        // SAFETY: a living object of 48 bytes.
        let bytes = unsafe { std::slice::from_raw_parts(object.as_ptr(), 48) };
        assert!(bytes.iter().all(|&byte| byte == index as u8));
    }
}

/// Writes all over the area do not reach the allocator's books.
#[test]
fn scribbling_over_the_area_harms_no_bookkeeping() {
    let area = Area::builder("scribbled").limit(2 << 20).build().unwrap();
    let objects: Vec<_> = (0..500).map(|n| area.alloc(n * 7 + 1, 16).unwrap()).collect();
    // SAFETY: the range up to the high-water mark is mapped and writable, and holds bytes of this
    // test alone.
    unsafe { std::ptr::without_provenance_mut::<u8>(area.base()).write_bytes(0xa5, area.high_water()) };
    for object in objects {
        // SAFETY: nobody uses the object.
        unsafe { area.free(object) }.unwrap();
    }
    assert_eq!((area.used(), area.objects()), (0, 0));
    assert!(area.alloc(2 << 20, 1).is_ok(), "all of it is free again");
}

/// A full area says so, with its name, its figures and the way out.
#[test]
fn a_full_area_says_what_to_do() {
    let area = Area::builder("locks").limit(256 << 10).build().unwrap();
    while area.alloc(4000, 8).is_ok() {}
    let error = area.alloc(4000, 8).unwrap_err();
    assert_eq!(error.kind(), Kind::Full);
    let text = error.to_string();
    assert!(text.starts_with("area \"locks\" is full: 256 KiB of 256 KiB used"), "{text}");
    assert!(text.contains("make the area with a higher limit, or free objects"), "{text}");
    assert_eq!(area.alloc(1 << 20, 8).unwrap_err().kind(), Kind::TooLarge);
    assert_eq!(area.alloc(usize::MAX, 8).unwrap_err().kind(), Kind::TooLarge);
    assert_eq!(area.alloc(8, 3).unwrap_err().kind(), Kind::Invalid);
}
