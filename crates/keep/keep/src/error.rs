//! Why a checkpoint or a rollback was not made.

use std::fmt;
use std::io;

/// A failure, with what it means for the program.
#[derive(Debug)]
pub enum Error {
    /// The program could not be entered; nothing was changed.
    Graft(graft::Error),
    /// A system call of the keeper failed.
    Io(&'static str, io::Error),
    /// The program does something that cannot be kept.
    Unkept(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Graft(error) => error.fmt(f),
            Error::Io(what, error) => write!(f, "{what}: {error}"),
            Error::Unkept(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

impl From<graft::Error> for Error {
    fn from(error: graft::Error) -> Error {
        Error::Graft(error)
    }
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::Io(what, error)
    }
}
