//! Why something could not be done: a kind to decide on, and a sentence that names the thing, the
//! value and the way out.

use std::fmt;
use std::io;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// An argument makes no sense.
    Invalid,
    /// A service's file is broken, or asks for what services may not have.
    BadObject,
    /// No slot, no handle, no CPU time left.
    Full,
    /// Nothing has this name or number.
    NotFound,
    /// The owner may not do this to the target.
    Denied,
    /// This machine or user cannot do it.
    Unsupported,
    /// The kernel rejected, with this `errno`.
    System(i32),
}

/// An error: its kind and its sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    text: String,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: Kind, text: impl Into<String>) -> Error {
        Error { kind, text: text.into() }
    }

    /// What the kernel answered when `what` was tried.
    pub fn system(what: impl fmt::Display, error: &io::Error) -> Error {
        Error::new(Kind::System(error.raw_os_error().unwrap_or(libc::EIO)), format!("{what}: {error}"))
    }

    /// What to decide on.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
