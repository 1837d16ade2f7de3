//! What travels between main and a typed task ([`crate::Task`]): arguments in, a value out.

use std::fmt;
use std::ptr::NonNull;

use crate::side::is_orbit;

/// What a call of a [`crate::Task`] takes. Implemented for numbers, `bool`, `char`, `()`, arrays,
/// tuples of up to six, `String`, `Vec`, `Option` and [`Shown`]; for structs of those use
/// `#[derive(orbit_derive::Value)]`.
///
/// # Safety
/// `read` reads what `write` wrote, and no more. If [`Value::BYTES`] is something, `write` writes
/// as many bytes.
pub unsafe trait Value: Sized + 'static {
    /// How many bytes each value takes, if all take as many.
    #[doc(hidden)]
    const BYTES: Option<usize>;

    #[doc(hidden)]
    fn write(&self, out: &mut Vec<u8>);

    /// Takes a value off the front. `None`: there is none.
    ///
    /// # Safety
    /// `write` of this type wrote the bytes, or the type is an [`Answer`].
    #[doc(hidden)]
    unsafe fn read(from: &mut &[u8]) -> Option<Self>;
}

/// What a [`crate::Task`] returns: a [`Value`] that main can make of any bytes an orbit may have
/// written. All of them but [`Shown`]; for structs use `#[derive(orbit_derive::Answer)]`.
///
/// # Safety
/// `read` is sound for any bytes.
pub unsafe trait Answer: Value {}

/// The sum of two sizes, if both are known.
#[doc(hidden)]
pub const fn both(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        _ => None,
    }
}

macro_rules! numbers {
    ($($t:ty)*) => { $(
        // SAFETY: the bytes of the number, all of which are read again.
        unsafe impl Value for $t {
            const BYTES: Option<usize> = Some(size_of::<$t>());

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_ne_bytes());
            }

            unsafe fn read(from: &mut &[u8]) -> Option<$t> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(<$t>::from_ne_bytes(*bytes))
            }
        }
        // SAFETY: any bytes are a number.
        unsafe impl Answer for $t {}
    )* };
}
numbers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

/// Types written as another one, from which they are checked when they are read.
macro_rules! through {
    ($($t:ty, $as:ty, $to:expr, $from:expr;)*) => { $(
        // SAFETY: writes and reads one value of the other type.
        unsafe impl Value for $t {
            const BYTES: Option<usize> = <$as as Value>::BYTES;

            fn write(&self, out: &mut Vec<u8>) {
                let to: fn(&$t) -> $as = $to;
                to(self).write(out);
            }

            unsafe fn read(from: &mut &[u8]) -> Option<$t> {
                // SAFETY: the other type is an `Answer`.
                let read = unsafe { <$as as Value>::read(from) }?;
                let make: fn($as) -> Option<$t> = $from;
                make(read)
            }
        }
        // SAFETY: the other type is one, and what is made of it is checked.
        unsafe impl Answer for $t {}
    )* };
}
through! {
    bool, u8, |value| u8::from(*value), |byte| match byte { 0 => Some(false), 1 => Some(true), _ => None };
    char, u32, |value| u32::from(*value), char::from_u32;
    String, Vec<u8>, |value| value.as_bytes().to_vec(), |bytes| String::from_utf8(bytes).ok();
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => { $(
        // SAFETY: writes and reads one value of each, in order.
        unsafe impl<$($name: Value),*> Value for ($($name,)*) {
            const BYTES: Option<usize> = {
                let bytes = Some(0);
                $( let bytes = both(bytes, $name::BYTES); )*
                bytes
            };

            #[allow(non_snake_case, unused_variables, reason = "one macro for all sizes, none too")]
            fn write(&self, out: &mut Vec<u8>) {
                let ($($name,)*) = self;
                $( $name.write(out); )*
            }

            #[allow(unused_variables, clippy::unused_unit, reason = "as above")]
            unsafe fn read(from: &mut &[u8]) -> Option<Self> {
                // SAFETY: the caller's promise holds for each.
                Some(($( unsafe { $name::read(from) }?, )*))
            }
        }
        // SAFETY: each is one.
        unsafe impl<$($name: Answer),*> Answer for ($($name,)*) {}
    )* };
}
tuples! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }

// SAFETY: writes and reads so many values.
unsafe impl<T: Value, const N: usize> Value for [T; N] {
    const BYTES: Option<usize> = match T::BYTES {
        Some(bytes) => Some(bytes * N),
        None if N == 0 => Some(0),
        None => None,
    };

    fn write(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|value| value.write(out));
    }

    unsafe fn read(from: &mut &[u8]) -> Option<[T; N]> {
        // SAFETY: the caller's promise holds for each.
        let values: Option<Vec<T>> = (0..N).map(|_| unsafe { T::read(from) }).collect();
        values?.try_into().ok()
    }
}
// SAFETY: each is one.
unsafe impl<T: Answer, const N: usize> Answer for [T; N] {}

// SAFETY: writes and reads a count and so many values, of at least a byte each: else bytes that
// are no value could claim any number of them.
unsafe impl<T: Value> Value for Vec<T> {
    const BYTES: Option<usize> = None;

    fn write(&self, out: &mut Vec<u8>) {
        self.len().write(out);
        for value in self {
            let before = out.len();
            value.write(out);
            if out.len() == before {
                out.push(0);
            }
        }
    }

    unsafe fn read(from: &mut &[u8]) -> Option<Vec<T>> {
        // SAFETY: a number is an `Answer`.
        let count = unsafe { usize::read(from) }?;
        let least = T::BYTES.unwrap_or(1).max(1);
        if count > from.len() / least {
            return None;
        }
        let mut values = Vec::new();
        for _ in 0..count {
            let before = from.len();
            // SAFETY: the caller's promise holds for each.
            values.push(unsafe { T::read(from) }?);
            if from.len() == before {
                *from = from.get(1..)?;
            }
        }
        Some(values)
    }
}
// SAFETY: each is one.
unsafe impl<T: Answer> Answer for Vec<T> {}

// SAFETY: writes and reads whether there is one, and it.
unsafe impl<T: Value> Value for Option<T> {
    const BYTES: Option<usize> = None;

    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }

    unsafe fn read(from: &mut &[u8]) -> Option<Option<T>> {
        // SAFETY: `bool` is an `Answer`; the caller's promise holds for the value.
        unsafe { if bool::read(from)? { T::read(from).map(Some) } else { Some(None) } }
    }
}
// SAFETY: the value is one.
unsafe impl<T: Answer> Answer for Option<T> {}

/// An object in an area that a task is shown: it reads it where main has it.
pub struct Shown<T: 'static>(NonNull<T>);

impl<T: 'static> Shown<T> {
    /// Shows an object to the tasks that are called with this.
    ///
    /// # Safety
    /// In each call with it, the object lives in an area that the call names, and does not change
    /// while the snapshot is taken.
    pub unsafe fn new(object: NonNull<T>) -> Shown<T> {
        Shown(object)
    }

    /// The object, as it was when the call was made.
    ///
    /// # Panics
    /// In main, where others may be changing it.
    pub fn get(&self) -> &T {
        assert!(is_orbit(), "Shown::get is for tasks: in main use the pointer that it was made of");
        // SAFETY: the maker's promise; in an orbit nothing else changes the copy, and a task has it
        // by a shared reference.
        unsafe { self.0.as_ref() }
    }
}

impl<T> fmt::Debug for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shown({:p})", self.0)
    }
}

// SAFETY: the address.
unsafe impl<T: 'static> Value for Shown<T> {
    const BYTES: Option<usize> = usize::BYTES;

    fn write(&self, out: &mut Vec<u8>) {
        (self.0.as_ptr() as usize).write(out);
    }

    unsafe fn read(from: &mut &[u8]) -> Option<Shown<T>> {
        // SAFETY: a number is an `Answer`.
        let address = unsafe { usize::read(from) }?;
        NonNull::new(std::ptr::with_exposed_provenance_mut(address)).map(Shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returns<T: Answer + PartialEq + fmt::Debug>(value: T) {
        let mut bytes = Vec::new();
        value.write(&mut bytes);
        assert!(T::BYTES.is_none_or(|known| known == bytes.len()));
        // SAFETY: an `Answer`.
        let (mut whole, mut short) = (&bytes[..], &bytes[..bytes.len().saturating_sub(1)]);
        // SAFETY: as above.
        assert_eq!(unsafe { T::read(&mut whole) }.as_ref(), Some(&value));
        assert!(whole.is_empty());
        // SAFETY: as above.
        assert!(bytes.is_empty() || unsafe { T::read(&mut short) }.is_none(), "read from less than was written");
    }

    #[test]
    fn values_come_back_as_they_were_and_not_from_less() {
        returns(());
        returns((1u8, -2i64, 3.5f64, true, 'ü', u128::MAX));
        returns([[1u16, 2], [3, 4]]);
        returns("text with ü".to_owned());
        returns(vec![Some(vec!["a".to_owned()]), None]);
        returns(vec![(), ()]);
        returns(vec![vec![(); 3], vec![]]);
        returns((vec![[(); 2]], 7u8));
        let no_texts: Vec<[String; 0]> = vec![[], []];
        returns((no_texts, 7u8));
    }

    #[test]
    fn bytes_that_are_no_value_are_none() {
        let read = |bytes: &[u8]| {
            // SAFETY: all three are `Answer`s.
            unsafe { (bool::read(&mut &bytes[..]), char::read(&mut &bytes[..]), Vec::<u64>::read(&mut &bytes[..])) }
        };
        assert_eq!(read(&[2, 0xdc, 0, 0]).0, None);
        assert_eq!(read(&0xd800u32.to_ne_bytes()).1, None);
        assert_eq!(read(&usize::MAX.to_ne_bytes()).2, None);
        // SAFETY: an `Answer`.
        assert_eq!(unsafe { Vec::<()>::read(&mut &usize::MAX.to_ne_bytes()[..]) }, None);
    }
}
