//! How a failure reaches C: a negative `errno` or a null pointer, and a sentence that the thread
//! keeps.
//!
//! Every exported function runs its body inside [`code`], [`number`] or [`pointer()`]. They let no
//! panic out, hold back cancellation of the thread, and put the sentence where `orbit_last_error`
//! finds it.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_long};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use orbit_linux::cancel::Held;

/// What went wrong: an `errno` value (positive) and a sentence for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub errno: c_int,
    pub message: String,
}

/// What the body of an exported function gives.
pub(crate) type Answer<T> = Result<T, Failure>;

impl Failure {
    pub fn new(errno: c_int, message: impl Into<String>) -> Failure {
        Failure { errno, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, message)
    }
}

impl From<orbit::Error> for Failure {
    fn from(error: orbit::Error) -> Failure {
        Failure::new(error.errno(), error.to_string())
    }
}

/// Bytes of a sentence that are kept, the final zero included.
const MAX_MESSAGE_BYTES: usize = 2048;

thread_local! {
    /// The sentence of this thread's last failure. It never moves, so that a pointer to it is good
    /// as long as the thread is.
    static LAST: Cell<[u8; MAX_MESSAGE_BYTES]> = const { Cell::new([0; MAX_MESSAGE_BYTES]) };
}

/// Keeps the sentence for `orbit_last_error`.
pub(crate) fn remember(message: String) {
    let mut len = message.len().min(MAX_MESSAGE_BYTES - 1);
    while !message.is_char_boundary(len) {
        len -= 1;
    }
    LAST.with(|last| {
        let room = last.as_ptr().cast::<u8>();
        // SAFETY: the array is this thread's own, longer than `len`, and no reference to it exists.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), room, len);
            room.add(len).write(0);
        }
    });
}

/// The sentence of this thread's last failure.
pub(crate) fn last() -> *const c_char {
    LAST.with(|last| last.as_ptr().cast_const().cast())
}

/// A panic of the library is a fault of it: it becomes an error, is not printed, and does not reach
/// C.
fn run<T>(body: impl FnOnce() -> Answer<T>) -> Answer<T> {
    // A cancelled thread unwinds from within a system call, past code that cannot be unwound, and
    // leaves locks held.
    let _held = Held::new();
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|what| Err(panicked(&*what)))
}

fn panicked(what: &(dyn Any + Send)) -> Failure {
    let text = match (what.downcast_ref::<&str>(), what.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "no text",
    };
    Failure::new(libc::EIO, format!("a fault in liborbit itself, please report it: {text}"))
}

/// The answer as C gets it: the value, or `-errno` with a sentence.
pub(crate) fn code(body: impl FnOnce() -> Answer<c_int>) -> c_int {
    run(body).unwrap_or_else(|failure| {
        remember(failure.message);
        -failure.errno
    })
}

/// As [`code`], for counts and sizes.
pub(crate) fn number(body: impl FnOnce() -> Answer<c_long>) -> c_long {
    run(body).unwrap_or_else(|failure| {
        remember(failure.message);
        -c_long::from(failure.errno)
    })
}

/// As [`code`], for functions that give a pointer: null, with `errno` set.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Answer<*mut T>) -> *mut T {
    run(body).unwrap_or_else(|failure| {
        remember(failure.message);
        // SAFETY: the address is this thread's errno.
        unsafe { *libc::__errno_location() = failure.errno };
        std::ptr::null_mut()
    })
}
