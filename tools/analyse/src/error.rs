//! Why a program could not be analysed.

use orbit_inspect::functions::{Missing, Wanted};
use std::path::PathBuf;
use std::{fmt, io};

/// Why a program could not be analysed.
#[derive(Debug)]
pub enum Error {
    /// It could not be started.
    Start {
        /// Its name.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The recorder did not come up in it.
    NoRecorder {
        /// Its name.
        program: String,
    },
    /// It has no such function.
    Missing {
        /// What was searched for.
        entry: Wanted,
        /// Where, and what is near.
        why: Missing,
    },
    /// A source could not be read.
    Source {
        /// The file.
        source: PathBuf,
        /// The compiler's reason.
        why: String,
    },
    /// No source has the function.
    NotInSources {
        /// What was searched for.
        entry: String,
    },
    /// An operation on it failed.
    Trace {
        /// Which one.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Looking into it failed.
    Inspect(orbit_inspect::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Start { program, source } => write!(f, "cannot start {program}: {source}"),
            Error::NoRecorder { program } => write!(
                f,
                "the recorder of allocations did not come up in {program}: it works by LD_PRELOAD, so the \
                 program must be linked dynamically with glibc and must not be setuid"
            ),
            Error::Source { source, why } => write!(f, "{}: {why}", source.display()),
            Error::NotInSources { entry } => {
                write!(f, "no source has the function {entry}: name the file with --source")
            }
            Error::Missing { entry, why } => write!(f, "function {entry} {why}"),
            Error::Trace { what, source } => {
                write!(f, "{what} failed: {source}; analysing needs the right to trace the program (ptrace)")
            }
            Error::Inspect(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<orbit_inspect::Error> for Error {
    fn from(error: orbit_inspect::Error) -> Error {
        Error::Inspect(error)
    }
}
