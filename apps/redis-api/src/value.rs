//! What commands answer: those of the server that a module calls, and the module's own.

use std::borrow::Cow;
use std::ffi::CStr;

use crate::{core, ffi};

/// An answer without an error.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A word such as `OK`. The module's own only: the server's words are [`Value::Bytes`].
    Status(&'static CStr),
    /// A number.
    Integer(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// Values in order.
    Array(Vec<Value>),
    /// Of the server: no value. Of the module: nothing is sent, for the answer is sent elsewhere.
    Nothing,
}

impl Value {
    /// The bytes of a string; of anything else none.
    pub fn bytes(&self) -> &[u8] {
        if let Value::Bytes(bytes) = self { bytes } else { b"" }
    }

    /// The number that a string is.
    pub fn number(&self) -> Option<i64> {
        std::str::from_utf8(self.bytes()).ok()?.parse().ok()
    }
}

/// Why a command does not answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// It takes another number of arguments. The server has the sentence.
    WrongArity,
    /// This sentence, which begins with the error's code.
    Text(Cow<'static, str>),
}

impl From<&'static str> for Error {
    fn from(text: &'static str) -> Error {
        Error::Text(text.into())
    }
}

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error::Text(text.into())
    }
}

/// What a command of a module answers.
pub type Answer = Result<Value, Error>;

/// What a command of the server has answered. Modules get answers in the protocol's second version
/// unless they ask otherwise: maps are arrays there.
///
/// # Safety
/// The reply is one that the server has given, and lives through the call.
pub(crate) unsafe fn from_reply(reply: *mut ffi::Reply) -> Result<Value, String> {
    // SAFETY: by contract; each function is asked of its type.
    unsafe {
        match (core().reply_type)(reply) {
            ffi::REPLY_STRING => Ok(Value::Bytes(bytes(reply).to_vec())),
            ffi::REPLY_ERROR => Err(String::from_utf8_lossy(bytes(reply)).into_owned()),
            ffi::REPLY_INTEGER => Ok(Value::Integer((core().reply_integer)(reply))),
            ffi::REPLY_ARRAY => {
                let count = (core().reply_length)(reply);
                let mut values = Vec::with_capacity(count);
                for at in 0..count {
                    let element = (core().reply_element)(reply, at);
                    values.push(if element.is_null() { Value::Nothing } else { from_reply(element)? });
                }
                Ok(Value::Array(values))
            }
            _ => Ok(Value::Nothing),
        }
    }
}

/// # Safety
/// The reply is a string or an error, and lives as long as the result.
unsafe fn bytes<'a>(reply: *mut ffi::Reply) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: by contract; it returns as many bytes as it says.
    unsafe {
        let start = (core().reply_bytes)(reply, &raw mut length);
        if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast(), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_string_of_digits() {
        assert_eq!(Value::Bytes(b"-12".to_vec()).number(), Some(-12));
        for other in [Value::Bytes(b"12k".to_vec()), Value::Integer(12), Value::Nothing, Value::Array(Vec::new())] {
            assert_eq!(other.number(), None, "{other:?}");
        }
    }
}
