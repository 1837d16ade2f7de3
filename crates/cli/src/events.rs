//! Opening the file that events are written to.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens it for writing at its end, and makes it if it is not there. Does not wait: where nobody reads a FIFO, that is an error.
pub fn append(path: &Path) -> Result<File, String> {
    let open = || {
        let file = File::options().create(true).append(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        // Only the start is not to wait: a line that does not fit into a pipe at once would be cut.
        // SAFETY: plain call on a descriptor of our own.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(file),
        }
    };
    open().map_err(|error| {
        let fifo = || std::fs::metadata(path).is_ok_and(|m| m.file_type().is_fifo());
        let why = match error.raw_os_error() {
            Some(libc::ENXIO) if fifo() => "it is a FIFO that nobody reads: start the reader first".to_owned(),
            _ => error.to_string(),
        };
        format!("cannot write events to {}: {why}", path.display())
    })
}
