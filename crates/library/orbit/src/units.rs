//! What is counted in areas, each a type: bytes, addresses, pages, and the numbers of pages.
//!
//! A sum or a difference exists only where it means something: an address and bytes make an
//! address, two addresses are bytes apart, the page number 7 plus 3 pages is the page number 10.
//! Code that multiplies pages by the size of a page says which size. All of it is `usize` at run
//! time.
//!
//! Arithmetic on what comes from outside (addresses and lengths that the program passes) is
//! checked: [`Address::checked_add`], [`Address::offset_from`]. The rest is on what was checked
//! before, and overflow there is a bug that debug builds stop at.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// Defines a number of one kind.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(usize);

        impl $name {
            /// 0.
            pub const ZERO: $name = $name(0);

            /// This many.
            #[inline]
            pub const fn new(number: usize) -> $name {
                $name(number)
            }

            /// The bare number.
            #[inline]
            pub const fn get(self) -> usize {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// Defines an amount: amounts of one kind can be added, subtracted and summed.
macro_rules! amount {
    ($name:ident) => {
        impl $name {
            /// More than any that there is.
            pub const MAX: $name = $name(usize::MAX);

            /// The difference, 0 where `other` is more.
            #[inline]
            pub const fn saturating_sub(self, other: $name) -> $name {
                $name(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = $name;

            #[inline]
            fn add(self, other: $name) -> $name {
                $name(self.0 + other.0)
            }
        }

        impl Sub for $name {
            type Output = $name;

            #[inline]
            fn sub(self, other: $name) -> $name {
                $name(self.0 - other.0)
            }
        }

        impl AddAssign for $name {
            #[inline]
            fn add_assign(&mut self, other: $name) {
                self.0 += other.0;
            }
        }

        impl SubAssign for $name {
            #[inline]
            fn sub_assign(&mut self, other: $name) {
                self.0 -= other.0;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = $name>>(all: I) -> $name {
                $name(all.map(|one| one.0).sum())
            }
        }
    };
}

/// Defines a place: amounts can be added to it, and two places are an amount apart.
macro_rules! place {
    ($name:ident, $amount:ident) => {
        impl Add<$amount> for $name {
            type Output = $name;

            #[inline]
            fn add(self, amount: $amount) -> $name {
                $name(self.0 + amount.0)
            }
        }

        impl AddAssign<$amount> for $name {
            #[inline]
            fn add_assign(&mut self, amount: $amount) {
                self.0 += amount.0;
            }
        }

        impl Sub<$amount> for $name {
            type Output = $name;

            #[inline]
            fn sub(self, amount: $amount) -> $name {
                $name(self.0 - amount.0)
            }
        }

        impl Sub for $name {
            type Output = $amount;

            #[inline]
            fn sub(self, other: $name) -> $amount {
                $amount(self.0 - other.0)
            }
        }
    };
}

number! {
    /// Bytes: a length, or how far something lies from where an area begins.
    Bytes
}
amount!(Bytes);

number! {
    /// An address of this process' memory.
    Address
}
place!(Address, Bytes);

number! {
    /// How many pages.
    Pages
}
amount!(Pages);

number! {
    /// The number of a page, from 0 at an area's base.
    Page
}
place!(Page, Pages);

impl Bytes {
    /// How many whole pages of `page` bytes they are.
    #[inline]
    pub const fn whole_pages(self, page: Bytes) -> Pages {
        Pages(self.0 / page.0)
    }

    /// How many pages of `page` bytes hold them.
    #[inline]
    pub const fn pages(self, page: Bytes) -> Pages {
        Pages(self.0.div_ceil(page.0))
    }

    /// The page, of `page` bytes each, in which the byte at this offset lies.
    #[inline]
    pub const fn page(self, page: Bytes) -> Page {
        Page(self.0 / page.0)
    }

    /// The first page, of `page` bytes each, that begins at this offset or after it.
    #[inline]
    pub const fn next_page(self, page: Bytes) -> Page {
        Page(self.0.div_ceil(page.0))
    }

    /// The least multiple of `unit` that is no less.
    #[inline]
    pub const fn up_to(self, unit: Bytes) -> Bytes {
        Bytes(self.0.next_multiple_of(unit.0))
    }

    /// The greatest multiple of `unit` that is no more.
    #[inline]
    pub const fn down_to(self, unit: Bytes) -> Bytes {
        Bytes(self.0 / unit.0 * unit.0)
    }
}

impl Address {
    /// Where a pointer points.
    #[inline]
    pub fn of<T: ?Sized>(pointer: *const T) -> Address {
        Address(pointer.addr())
    }

    /// The address so many bytes on, unless that is beyond the address space.
    #[inline]
    pub const fn checked_add(self, bytes: Bytes) -> Option<Address> {
        match self.0.checked_add(bytes.0) {
            Some(sum) => Some(Address(sum)),
            None => None,
        }
    }

    /// The address so many bytes on, or the last one that there is.
    #[inline]
    pub const fn saturating_add(self, bytes: Bytes) -> Address {
        Address(self.0.saturating_add(bytes.0))
    }

    /// How far it lies from `base`; `None` before it.
    #[inline]
    pub const fn offset_from(self, base: Address) -> Option<Bytes> {
        match self.0.checked_sub(base.0) {
            Some(offset) => Some(Bytes(offset)),
            None => None,
        }
    }

    /// The least address that is a multiple of `unit` and no less.
    #[inline]
    pub const fn up_to(self, unit: Bytes) -> Address {
        Address(self.0.next_multiple_of(unit.0))
    }

    /// Whether it is a multiple of `unit`.
    #[inline]
    pub const fn is_multiple_of(self, unit: Bytes) -> bool {
        self.0.is_multiple_of(unit.0)
    }

    /// A pointer there, to memory of which a pointer was exposed.
    #[inline]
    pub fn pointer(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

impl Pages {
    /// One.
    pub const ONE: Pages = Pages(1);

    /// How many bytes they have at `page` bytes each.
    #[inline]
    pub const fn bytes(self, page: Bytes) -> Bytes {
        Bytes(self.0 * page.0)
    }
}

impl Page {
    /// Where it begins, from the area's base, at `page` bytes each.
    #[inline]
    pub const fn offset(self, page: Bytes) -> Bytes {
        Bytes(self.0 * page.0)
    }

    /// The pages from this one on, up to but without `end`.
    #[inline]
    pub fn until(self, end: Page) -> impl DoubleEndedIterator<Item = Page> + Clone {
        (self.0..end.0).map(Page)
    }

    /// So many pages, from this one on.
    #[inline]
    pub fn run(self, count: Pages) -> impl DoubleEndedIterator<Item = Page> + Clone {
        self.until(self + count)
    }

    /// How many pages lie from this one to `end`; none where `end` is before it.
    #[inline]
    pub const fn pages_to(self, end: Page) -> Pages {
        Pages(end.0.saturating_sub(self.0))
    }

    /// The least number that is a multiple of `unit` and no less.
    #[inline]
    pub const fn up_to(self, unit: Pages) -> Page {
        Page(self.0.next_multiple_of(unit.0))
    }

    /// The greatest number that is a multiple of `unit` and no more.
    #[inline]
    pub const fn down_to(self, unit: Pages) -> Page {
        Page(self.0 / unit.0 * unit.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_pages_is_rounded_as_its_name_says() {
        let page = Bytes::new(4096);
        assert_eq!((Bytes::new(8191).whole_pages(page), Bytes::new(8191).pages(page)), (Pages(1), Pages(2)));
        assert_eq!((Bytes::new(8191).page(page), Bytes::new(8191).next_page(page)), (Page(1), Page(2)));
        assert_eq!((Page(3).offset(page), Pages(3).bytes(page)), (Bytes(12288), Bytes(12288)));
        assert_eq!((Page(5).up_to(Pages(4)), Page(5).down_to(Pages(4))), (Page(8), Page(4)));
        assert_eq!(Page(2).until(Page(5)).map(Page::get).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!((Page(2).pages_to(Page(5)), Page(5).pages_to(Page(2))), (Pages(3), Pages(0)));
    }

    #[test]
    fn what_lies_outside_is_none_and_not_a_wrapped_number() {
        assert_eq!(Address(16).offset_from(Address(32)), None);
        assert_eq!(Address(48).offset_from(Address(32)), Some(Bytes(16)));
        assert_eq!(Address(usize::MAX).checked_add(Bytes(1)), None);
        assert_eq!(Address(usize::MAX).saturating_add(Bytes(1)), Address(usize::MAX));
    }
}
