//! Recording what a program reads from outside, and feeding it the same bytes again: a policy
//! object of this crate's.
//!
//! It sees `read`, `recvfrom` and `getrandom` of all threads, of static programs too, on pipes,
//! sockets, terminals and devices. The order is kept for each descriptor of a program, which is
//! known by its name (15 bytes): of a program that forks, or runs twice at once, the processes are
//! not distinguished.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use orbit_hijack::{Options, Session, inputs};
//! let mut options = Options::default();
//! inputs::record(&mut options, "/tmp/inputs.log".as_ref())?;
//! Session::start(&options, &["./server".into()])?.follow(|_| Ok(()))?;
//! inputs::replay(&mut options, "/tmp/inputs.log".as_ref())?;
//! Session::start(&options, &["./server".into()])?.follow(|_| Ok(()))
//! # }
//! ```

use crate::object::Object;
use crate::session::Options;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inputs.so"));
const RECORD: u64 = 1;
const REPLAY: u64 = 2;
const PATH_LIMIT: usize = 4096;
/// Of `struct input` in `objects/inputs.c`.
const HEADER_BYTES: usize = 32;

/// Has guests append what they read to `log`, which is made anew, for its owner alone. Takes the
/// place of another policy object.
///
/// # Errors
/// Those of making the file; `InvalidInput` for a path beyond 4,095 bytes.
pub fn record(options: &mut Options, log: &Path) -> io::Result<()> {
    std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(log)?;
    set(options, RECORD, log)
}

/// Has guests read what `log` recorded. A descriptor whose record is used up reads from the kernel
/// again.
///
/// # Errors
/// `NotFound`; `InvalidData` for a file that does not begin as a record; `InvalidInput` for a path
/// beyond 4,095 bytes.
pub fn replay(options: &mut Options, log: &Path) -> io::Result<()> {
    let mut begin = Vec::new();
    std::fs::File::open(log)?.take(HEADER_BYTES as u64).read_to_end(&mut begin)?;
    if !is_log(&begin) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no record of inputs (--record-inputs)"));
    }
    set(options, REPLAY, log)
}

/// Whether a log begins so. A program that read nothing left an empty one.
fn is_log(begin: &[u8]) -> bool {
    let Some((name, rest)) = begin.split_at_checked(16) else { return begin.is_empty() };
    let is_name = name[0] != 0 && name[15] == 0 && !name.iter().any(|byte| (1..b' ').contains(byte) || *byte == 127);
    let fd = rest.first_chunk().map_or(-1, |fd| i32::from_ne_bytes(*fd));
    begin.len() == HEADER_BYTES && is_name && (0..=1024).contains(&fd)
}

fn set(options: &mut Options, mode: u64, log: &Path) -> io::Result<()> {
    let path = log.canonicalize()?;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= PATH_LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the log's path has more than 4,095 bytes"));
    }
    options.share = [&mode.to_ne_bytes()[..], bytes, &[0]].concat();
    options.object = Some(Object::link(OBJECT).map_err(io::Error::other)?);
    Ok(())
}
