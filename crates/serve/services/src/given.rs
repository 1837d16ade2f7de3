//! Descriptors that an owner gives its service: the descriptor itself, passed on, never its number,
//! with the rights that the handler has to it and the rate at which it may use it.
//!
//! One that is *shared* stays the owner's too. One that is *moved* is not the owner's any more,
//! which is checked: only then the host may change what it does (a listener that does not wait).

use crate::error::{Error, Kind, Result};
use crate::spec::Dispatch;
use orbit_linux::stream;
use orbit_sandbox_lib::abi::{ACCEPT, FILES, READ, SEND, WRITE};
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::str::FromStr;

/// The largest rate, calls a second.
const MAX_RATE: u64 = 1_000_000;

/// What a service may do with a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    pub(crate) rights: u32,
    /// Nanoseconds between two calls, on average; 0: no rate.
    pub(crate) every_ns: u64,
    /// The owner has it no more.
    is_moved: bool,
}

impl FromStr for Terms {
    type Err = Error;

    /// `rs`, `rwa,1000/s,moved`: rights (`r` read, `w` write, `s` send to addresses, `a` accept), a
    /// rate of calls, and `moved` or `shared`, which is what is meant where neither is given.
    fn from_str(text: &str) -> Result<Terms> {
        let wrong = |why: &str| {
            let text = format!(
                "{text:?}: {why}: write rights of r (read), w (write), s (send to addresses) and a (accept), then a \
                 rate if there is one, then moved or shared: rs, or rwa,1000/s,moved"
            );
            Error::new(Kind::Invalid, text)
        };
        let mut parts = text.split(',');
        let mut terms = Terms::default();
        for letter in parts.next().unwrap_or_default().chars() {
            terms.rights |= match letter {
                'r' => READ,
                'w' => WRITE,
                's' => SEND,
                'a' => ACCEPT,
                _ => return Err(wrong("unknown right")),
            };
        }
        if terms.rights == 0 {
            return Err(wrong("no rights"));
        }
        for part in parts {
            match part.strip_suffix("/s") {
                Some(rate) => {
                    let rate = rate.parse().ok().filter(|rate| (1..=MAX_RATE).contains(rate));
                    let rate = rate.ok_or_else(|| wrong("a rate is 1/s to 1000000/s"))?;
                    terms.every_ns = 1_000_000_000 / rate;
                }
                None if part == "moved" => terms.is_moved = true,
                None if part == "shared" => terms.is_moved = false,
                None => return Err(wrong("unknown word")),
            }
        }
        Ok(terms)
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Given {
    pub(crate) descriptor: OwnedFd,
    pub(crate) terms: Terms,
}

impl Given {
    /// A descriptor on these terms: `rs`, or `rwa,1000/s,moved`.
    ///
    /// # Errors
    /// `Invalid` for other terms.
    pub fn new(descriptor: OwnedFd, terms: &str) -> Result<Given> {
        Ok(Given { descriptor, terms: terms.parse()? })
    }
}

/// Judges what a service of this owner is given.
pub(crate) fn check(name: &str, dispatch: Dispatch, owner: i32, given: &[Given]) -> Result<()> {
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
    let failed = |error: std::io::Error| Error::system("a descriptor", &error);
    for (place, given) in given.iter().enumerate() {
        let file = given.descriptor.try_clone().map(File::from).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.file_type().is_socket() && !about.file_type().is_fifo() {
            return invalid(format!("descriptor {place} is no socket or pipe: a call on another file can wait"));
        }
        if given.terms.is_moved && has_open(owner, &about)? {
            return invalid(format!(
                "descriptor {place} is to be moved, and the owner, process {owner}, has it open still: close it there, \
                 or share it"
            ));
        }
        if given.terms.rights & ACCEPT == 0 {
            continue;
        }
        if !about.file_type().is_socket() {
            return invalid(format!("descriptor {place} is no socket: nothing can be accepted from it"));
        }
        let flags = stream::flags(given.descriptor.as_fd()).map_err(failed)?;
        if given.terms.is_moved {
            stream::set_flags(given.descriptor.as_fd(), flags | libc::O_NONBLOCK).map_err(failed)?;
        } else if flags & libc::O_NONBLOCK == 0 {
            return invalid(format!(
                "accept on descriptor {place} would wait, and to change that would change it for its owner: set \
                 O_NONBLOCK there, or move it"
            ));
        }
    }
    Ok(())
}

/// Whether a process has this file open.
fn has_open(process: i32, about: &fs::Metadata) -> Result<bool> {
    let folder = format!("/proc/{process}/fd");
    let failed = |error: std::io::Error| Error::system(&folder, &error);
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        match fs::metadata(entry.path()) {
            Ok(other) if (other.dev(), other.ino()) == (about.dev(), about.ino()) => return Ok(true),
            // One that was closed meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(_) => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read() {
        let terms: Terms = "rwa,1000/s,moved".parse().expect("terms");
        assert_eq!(terms, Terms { rights: READ | WRITE | ACCEPT, every_ns: 1_000_000, is_moved: true });
        assert_eq!("rs,shared".parse(), Ok(Terms { rights: READ | SEND, ..Terms::default() }));
        for bad in ["", "x", "r,", "r,fast", "r,0/s", "r,1000001/s", "r,-1/s", ",moved", "r w"] {
            assert_eq!(bad.parse::<Terms>().map_err(|error| error.kind()), Err(Kind::Invalid), "{bad:?}");
        }
    }
}
