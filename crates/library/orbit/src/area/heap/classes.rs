//! The sizes that small objects are rounded up to, and how many pages a span of each takes.
//!
//! Up to 128 bytes in steps of 16, then eight classes to each doubling up to 32 KiB: rounding up
//! wastes at most an eighth of an object above 128 bytes, and a span's unused tail at most an
//! eighth of the span.

use crate::units::Bytes;

/// The heap's own page, whatever the kernel's: spans and whole-page objects are counted in it.
pub(in crate::area) const PAGE: Bytes = Bytes::new(4096);
/// How many classes there are.
pub(super) const CLASSES: usize = 72;
/// The largest size that has a class; above it an object takes whole pages.
pub(in crate::area) const LARGEST: usize = 32 << 10;
/// A span's free objects are bits of four words.
pub(super) const MOST_OBJECTS: usize = 256;

/// The layout of one class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Bytes of one object.
    pub size: u32,
    /// Pages of one span.
    pub pages: u32,
    /// Objects in one span.
    pub objects: u32,
    /// `2^32 / size`, rounded up: the high half of `offset * reciprocal` is the index of an object
    /// that starts at `offset`.
    pub reciprocal: u32,
}

const fn size_of_class(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * 16;
    }
    let doubling = (class - 8) / 8;
    (128 << doubling) + ((class - 8) % 8 + 1) * (16 << doubling)
}

const fn describe(size: usize) -> Class {
    let mut pages = 1;
    loop {
        let bytes = pages * PAGE.get();
        let objects = bytes / size;
        if objects >= 1 && (bytes - objects * size) * 8 <= bytes {
            assert!(objects <= MOST_OBJECTS);
            return Class {
                size: size as u32,
                pages: pages as u32,
                objects: objects as u32,
                reciprocal: (1u64 << 32).div_ceil(size as u64) as u32,
            };
        }
        pages += 1;
    }
}

/// All classes, ascending by size.
pub(super) static TABLE: [Class; CLASSES] = {
    let mut table = [describe(16); CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = describe(size_of_class(class));
        class += 1;
    }
    table
};

/// The smallest class of at least `size` bytes, `1 <= size <= LARGEST`.
fn of_size(size: usize) -> usize {
    if size <= 128 {
        return (size - 1) / 16;
    }
    let doubling = (size - 1).ilog2() as usize - 7;
    8 + doubling * 8 + (size - 1 - (128 << doubling)) / (16 << doubling)
}

/// The smallest class whose objects hold `size` bytes and all start at multiples of `align`, or
/// `None` when the object takes whole pages. Spans start on a page, so an object size that is a
/// multiple of `align` is enough.
pub(super) fn class_for(size: usize, align: usize) -> Option<usize> {
    let size = size.max(1);
    if align <= 16 {
        return (size <= LARGEST).then(|| of_size(size));
    }
    if align > PAGE.get() || size > LARGEST {
        return None;
    }
    let size = size.next_multiple_of(align);
    if size > LARGEST {
        return None;
    }
    (of_size(size)..CLASSES).find(|&class| (TABLE[class].size as usize).is_multiple_of(align))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every size gets the smallest class that holds it, within the stated waste.
    #[test]
    fn classes_are_tight() {
        assert_eq!(TABLE[CLASSES - 1].size as usize, LARGEST);
        for size in 1..=LARGEST {
            let class = class_for(size, 1).unwrap();
            let got = TABLE[class].size as usize;
            assert!(got >= size && (class == 0 || (TABLE[class - 1].size as usize) < size), "{size} -> {got}");
            assert!(got - size < 16 || (got - size) * 8 <= got, "{size} -> {got}");
        }
        for class in TABLE {
            for index in 0..class.objects {
                let offset = u64::from(index * class.size);
                assert_eq!((offset * u64::from(class.reciprocal)) >> 32, u64::from(index));
            }
        }
        for shift in 5..=12 {
            let align = 1 << shift;
            for size in (1..LARGEST).step_by(7) {
                if let Some(class) = class_for(size, align) {
                    assert!(TABLE[class].size as usize >= size && (TABLE[class].size as usize).is_multiple_of(align));
                }
            }
        }
    }
}
