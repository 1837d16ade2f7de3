//! Descriptors that an owner gives its service: the descriptor itself, passed on, never its number,
//! with the rights that the handler has to it.

use crate::error::{Error, Kind, Result};
use crate::source::Opened;
use crate::spec::Dispatch;
use orbit_sandbox_lib::abi::{FILES, READ, WRITE};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;

/// See the module's head.
#[derive(Debug)]
pub struct Given {
    pub(crate) descriptor: OwnedFd,
    pub(crate) rights: u32,
}

impl Given {
    /// A descriptor with the rights `r`, `w` or `rw`.
    ///
    /// # Errors
    /// `Invalid` for other rights.
    pub fn new(descriptor: OwnedFd, rights: &str) -> Result<Given> {
        let rights = match rights {
            "r" => READ,
            "w" => WRITE,
            "rw" => READ | WRITE,
            _ => return Err(Error::new(Kind::Invalid, format!("rights {rights:?}: write r, w or rw"))),
        };
        Ok(Given { descriptor, rights })
    }

    /// What starts the service when there is something to read.
    pub(crate) fn source(&self) -> Result<Opened> {
        let copy = self.descriptor.try_clone().map_err(|error| Error::system("a copy of a descriptor", &error))?;
        Ok(Opened::readable(copy))
    }
}

/// Judges what a service is given.
pub(crate) fn check(name: &str, dispatch: Dispatch, given: &[Given]) -> Result<()> {
    let invalid = |text: String| Err(Error::new(Kind::Invalid, format!("service {name:?}: {text}")));
    if given.is_empty() {
        return Ok(());
    }
    if dispatch != Dispatch::Thread {
        return invalid("descriptors are for services with a thread: give --class thread".to_owned());
    }
    if given.len() > FILES {
        return invalid(format!("{} descriptors, of at most {FILES}", given.len()));
    }
    for (place, given) in given.iter().enumerate() {
        let copy = given.descriptor.try_clone().map(File::from);
        let kind = copy.and_then(|file| file.metadata()).map_err(|error| Error::system("a descriptor", &error))?;
        if !kind.file_type().is_socket() && !kind.file_type().is_fifo() {
            return invalid(format!("descriptor {place} is no socket or pipe: a call on another file can wait"));
        }
    }
    Ok(())
}
