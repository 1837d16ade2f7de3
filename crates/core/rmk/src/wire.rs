//! How commands, replies and subscriptions travel between the core and a module's process: the
//! postcard encoding of their serde derives. Decoding trusts no byte: what does not fit gives
//! `None`.

use serde::{Serialize, de::DeserializeOwned};

/// Encodes a value of this crate; their types have nothing that the encoding lacks.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("lists and strings of this crate's types know their lengths")
}

/// Decodes a value from the front of `bytes`; `None` if they are no such value.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

/// The length with which an encoded list begins, without decoding the list.
pub fn list_length(bytes: &[u8]) -> Option<u64> {
    decode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_bytes_and_lengths_beyond_the_end_are_no_value() {
        let bytes = encode(&Some(vec![1u32, 2]));
        for n in 0..bytes.len() {
            assert_eq!(decode::<Option<Vec<u32>>>(&bytes[..n]), None);
        }
        assert_eq!(decode(&bytes), Some(Some(vec![1u32, 2])));
        let longest = encode(&u64::MAX);
        assert_eq!(decode::<Vec<u8>>(&longest), None);
        assert_eq!(decode::<String>(&longest), None);
        assert_eq!(list_length(&encode(&vec![7u8; 300])), Some(300));
    }
}
