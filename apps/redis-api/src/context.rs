//! What the server calls a module with, and what the module may do then.

use std::ffi::{CStr, CString, c_int, c_long};
use std::slice;

use crate::value::{Answer, Error, Value, from_reply};
use crate::{Command, api, core, ffi};

/// A context of the server.
pub struct Context {
    /// Good as long as this is borrowed.
    pub(crate) raw: *mut ffi::Ctx,
}

/// An argument of a command, or of the module.
#[repr(transparent)]
pub struct Argument(*mut ffi::Text);

impl Argument {
    /// All arguments of a callback.
    ///
    /// # Safety
    /// The server has called with these, and the result is used in that callback only.
    pub(crate) unsafe fn all<'a>(argv: *mut *mut ffi::Text, argc: c_int) -> &'a [Argument] {
        match usize::try_from(argc) {
            // SAFETY: by contract; an argument is a pointer.
            Ok(count) if !argv.is_null() => unsafe { slice::from_raw_parts(argv.cast::<Argument>(), count) },
            _ => &[],
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: whoever has made it says that the string lives as long as it is borrowed.
        unsafe { bytes(self.0) }
    }
}

/// The bytes of a string of the server.
///
/// # Safety
/// The string lives, and is not written, as long as the result is used.
pub(crate) unsafe fn bytes<'a>(text: *const ffi::Text) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: by contract; what it returns are as many bytes as it says.
    unsafe {
        let start = (core().bytes_of)(text, &raw mut length);
        if start.is_null() { &[] } else { slice::from_raw_parts(start.cast(), length) }
    }
}

/// Strings of the server that a module has made. They belong to no context, so the thread that has
/// made them frees them when it likes.
pub(crate) struct Texts(Vec<*mut ffi::Text>);

impl Texts {
    pub(crate) fn new(words: &[&[u8]]) -> Texts {
        let make = |word: &&[u8]| {
            // SAFETY: the server copies the bytes; strings may be made without a context.
            unsafe { (core().create_text)(std::ptr::null_mut(), word.as_ptr().cast(), word.len()) }
        };
        Texts(words.iter().map(make).collect())
    }

    pub(crate) fn pointers(&mut self) -> &mut [*mut ffi::Text] {
        &mut self.0
    }
}

impl Drop for Texts {
    fn drop(&mut self) {
        for text in &self.0 {
            // SAFETY: made here, and freed once.
            unsafe { (core().free_text)(std::ptr::null_mut(), *text) };
        }
    }
}

impl Context {
    /// The context that the server calls with.
    ///
    /// # Safety
    /// The context is the server's, and the result is used in this callback only.
    pub unsafe fn new(raw: *mut ffi::Ctx) -> Context {
        Context { raw }
    }

    /// Writes a line to the server's log, as a warning.
    pub fn log_warning(&self, line: &str) {
        let line = without_ends(line.as_bytes());
        // SAFETY: the context is good; the format takes one string.
        unsafe { (api().log.log)(self.raw, c"warning".as_ptr(), c"%s".as_ptr(), line.as_ptr()) };
    }

    /// Adds a command of the module. The context is that of the module's load.
    pub(crate) fn add(&self, command: &Command) -> Result<(), String> {
        let (name, flags) = (command.name.as_ptr(), command.flags.as_ptr());
        let shown = command.name.to_string_lossy();
        // SAFETY: the context is good; the server copies the texts. No command has keys.
        if unsafe { (core().create_command)(self.raw, name, command.run, flags, 0, 0, 0) } != ffi::OK {
            return Err(format!("the server did not take the command {shown}"));
        }
        if let Some(categories) = &api().categories {
            // SAFETY: the same; the command was added just now.
            let is_set = unsafe {
                let entry = (categories.command)(self.raw, name);
                !entry.is_null() && (categories.set)(entry, command.categories.as_ptr()) == ffi::OK
            };
            if !is_set {
                let categories = command.categories.to_string_lossy();
                return Err(format!("the server did not put the command {shown} into the categories {categories}"));
            }
        }
        Ok(())
    }

    /// Calls a command of the server. An error is the server's; [`Value::Nothing`] where it has no
    /// such command.
    pub fn call(&self, command: &CStr, args: &[&[u8]]) -> Result<Value, String> {
        let mut texts = Texts::new(args);
        let args = texts.pointers();
        // SAFETY: the context is good. The format takes an array of strings and its length; they
        // live through the call, and the reply until it is freed, once.
        unsafe {
            let reply = (core().call)(self.raw, command.as_ptr(), c"v".as_ptr(), args.as_mut_ptr(), args.len());
            if reply.is_null() {
                return Ok(Value::Nothing);
            }
            let value = from_reply(reply);
            (core().free_reply)(reply);
            value
        }
    }

    /// Calls a command of the server and answers with what that answers, errors too, letter for
    /// letter. False where it did not answer: then nothing was sent.
    pub fn pass_on(&self, command: &CStr, args: &[Argument]) -> bool {
        // SAFETY: the context is good. The format takes an array of strings and its length, and
        // errors as replies; an argument is a pointer to a string. The reply is freed once.
        unsafe {
            let args = (args.as_ptr().cast::<*mut ffi::Text>(), args.len());
            let reply = (core().call)(self.raw, command.as_ptr(), c"vE".as_ptr(), args.0, args.1);
            if reply.is_null() {
                return false;
            }
            (core().send_reply)(self.raw, reply);
            (core().free_reply)(reply);
        }
        true
    }

    /// Sends an answer.
    pub fn reply(&self, answer: Answer) {
        let text = match answer {
            Ok(value) => return self.send(&value),
            Err(Error::WrongArity) => None,
            Err(Error::Text(text)) => Some(without_ends(text.as_bytes())),
        };
        // SAFETY: the context is good; the server copies the text.
        unsafe {
            match text {
                None => (core().send_wrong_arity)(self.raw),
                Some(text) => (core().send_error)(self.raw, text.as_ptr()),
            }
        };
    }

    /// Begins an answer of so many values, each of which is sent as an answer.
    pub fn begin_array(&self, count: u64) {
        // SAFETY: the context is good.
        unsafe { (core().send_array)(self.raw, count as c_long) };
    }

    fn send(&self, value: &Value) {
        // SAFETY: the context is good; the server copies what it sends, of bytes as many as it is
        // given.
        unsafe {
            match value {
                Value::Status(word) => {
                    (core().send_status)(self.raw, word.as_ptr());
                }
                Value::Integer(number) => {
                    (core().send_integer)(self.raw, *number);
                }
                Value::Bytes(bytes) => {
                    (core().send_bytes)(self.raw, bytes.as_ptr().cast(), bytes.len());
                }
                Value::Array(values) => {
                    self.begin_array(values.len() as u64);
                    values.iter().for_each(|value| self.send(value));
                }
                Value::Nothing => {}
            }
        }
    }
}

/// The text in one line and without an end, as errors and lines of the log are.
fn without_ends(text: &[u8]) -> CString {
    let line: Vec<u8> = text.iter().map(|&byte| if matches!(byte, b'\r' | b'\n' | 0) { b' ' } else { byte }).collect();
    CString::new(line).expect("no byte is 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(without_ends(b"a\r\nb\0\xc3\xa9").as_bytes(), b"a  b \xc3\xa9");
    }
}
