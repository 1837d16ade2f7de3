//! How commands, replies and subscriptions travel between the core and a module's process: fixed little pieces, in the
//! machine's byte order, no pointers. Reading never trusts what it reads: anything that does not fit gives `None`.

/// A value that can be written to bytes and read back.
pub trait Wire: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes a value from the front of `bytes`; `None` if they are no such value.
    fn read(bytes: &mut &[u8]) -> Option<Self>;
}

fn split<'a>(bytes: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(n)?;
    *bytes = rest;
    Some(front)
}

macro_rules! wire_number {
    ($($number:ty),*) => { $(impl Wire for $number {
        fn put(&self, out: &mut Vec<u8>) {
            out.extend(self.to_ne_bytes());
        }
        fn read(bytes: &mut &[u8]) -> Option<Self> {
            split(bytes, size_of::<$number>())?.try_into().ok().map(<$number>::from_ne_bytes)
        }
    })* };
}
wire_number!(u8, u32, i32, u64, i64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        match u8::read(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for item in self {
            item.put(out);
        }
    }
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let n = usize::try_from(u64::read(bytes)?).ok()?;
        // No item is smaller than a byte, so a length beyond what is there is a lie.
        if n > bytes.len() {
            return None;
        }
        (0..n).map(|_| T::read(bytes)).collect()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        if bool::read(bytes)? { T::read(bytes).map(Some) } else { Some(None) }
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend(self.as_bytes());
    }
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let n = usize::try_from(u64::read(bytes)?).ok()?;
        String::from_utf8(split(bytes, n)?.to_vec()).ok()
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Some(if bool::read(bytes)? { Ok(T::read(bytes)?) } else { Err(E::read(bytes)?) })
    }
}

/// Declares a struct of public fields that is [`Wire`].
macro_rules! wire_struct {
    ($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_about])* pub $field: $type,)* }
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
            fn read(bytes: &mut &[u8]) -> Option<Self> {
                Some($name { $($field: <$type>::read(bytes)?,)* })
            }
        }
    };
}

/// Declares an enum whose variants have a number and named fields, and is [`Wire`].
macro_rules! wire_enum {
    ($(#[$about:meta])* $name:ident { $($(#[$variant_about:meta])* $number:literal $variant:ident { $($(#[$field_about:meta])* $field:ident: $type:ty,)* })* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_about])* $variant { $($(#[$field_about])* $field: $type,)* },)* }
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$variant { $($field,)* } => {
                        let number: u8 = $number;
                        number.put(out);
                        $($field.put(out);)*
                    })*
                }
            }
            fn read(bytes: &mut &[u8]) -> Option<Self> {
                match u8::read(bytes)? {
                    $($number => Some($name::$variant { $($field: <$type>::read(bytes)?,)* }),)*
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use {wire_enum, wire_struct};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_or_lies_gives_none() {
        let mut out = Vec::new();
        (Some(vec![1u32, 2]), String::from("x")).0.put(&mut out);
        for n in 0..out.len() {
            assert_eq!(Option::<Vec<u32>>::read(&mut &out[..n]), None);
        }
        assert_eq!(Option::<Vec<u32>>::read(&mut &out[..]), Some(Some(vec![1, 2])));
        let huge = u64::MAX.to_ne_bytes();
        assert_eq!(Vec::<u8>::read(&mut &huge[..]), None);
        assert_eq!(String::read(&mut &huge[..]), None);
    }
}
