//! Event lines: appended to a file or a FIFO, or written to stdout.
//!
//! Promises:
//! - A write blocks until the reader has made room, even if another process has made the pipe
//!   non-blocking.
//! - Lines that cannot be written, as on a full disk, are counted and reported on stderr, once for
//!   all in a row.
//! - A line that was written in part is ended before the next one begins.
//! - A file that was renamed or removed, as logrotate does, is created again under its name. Where
//!   that fails, lines go to the file that had the name.

use crate::out::{self, WARN};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// See the module's head.
pub struct Events {
    to: File,
    /// `None` for stdout.
    path: Option<PathBuf>,
    /// The command that writes them, named in its warnings.
    command: &'static str,
    /// Whether only a part of the last line was written.
    torn: bool,
    /// Lines that could not be written since the last one that was.
    lost: u64,
    /// Whether the file has lost its name and could not be created again.
    nameless: bool,
}

impl Events {
    /// Opens this file for appending; `-` is stdout.
    ///
    /// # Errors
    /// A sentence that names the file and the reason.
    pub fn open(path: &Path, command: &'static str) -> Result<Events, String> {
        let (to, path) = if path.as_os_str() == "-" {
            let stdout = io::stdout().as_fd().try_clone_to_owned();
            (stdout.map_err(|e| format!("cannot write events to stdout: {e}"))?.into(), None)
        } else {
            (append(path)?, Some(path.to_owned()))
        };
        Ok(Events { to, path, command, torn: false, lost: 0, nameless: false })
    }

    /// Writes a line, its end included. If lines were lost before it, first writes the line that
    /// `left_out` makes of their number.
    pub fn write(&mut self, line: &[u8], left_out: impl FnOnce(u64) -> Vec<u8>) {
        self.reopen_if_renamed();
        let lost = self.lost;
        let written = if lost == 0 { Ok(()) } else { self.line(&left_out(lost)).map(|()| self.report_lost()) };
        if let Err(e) = written.and_then(|()| self.line(line)) {
            if self.lost == 0 {
                let what =
                    format!("cannot write events to {}: {e}: they are dropped until it can be written", self.name());
                self.warn(&what);
            }
            self.lost += 1;
        }
    }

    /// Reports lines that are still lost, at the end; `left_out` as for [`Events::write`].
    pub fn finish(&mut self, left_out: impl FnOnce(u64) -> Vec<u8>) {
        let lost = self.lost;
        if lost == 0 {
            return;
        }
        match self.line(&left_out(lost)) {
            Ok(()) => self.report_lost(),
            Err(_) => self.warn(&format!("{lost} events could not be written to {}", self.name())),
        }
    }

    /// Reports that lines can be written again.
    fn report_lost(&mut self) {
        self.warn(&format!("events are written to {} again; {} were dropped", self.name(), self.lost));
        self.lost = 0;
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            out::some(&mut self.to, b"\n")?;
            self.torn = false;
        }
        let mut left = line;
        while !left.is_empty() {
            let n = out::some(&mut self.to, left)?;
            self.torn = left[n - 1] != b'\n';
            left = &left[n..];
        }
        Ok(())
    }

    /// Creates the file again if its name is now another file's, or no file's.
    fn reopen_if_renamed(&mut self) {
        let Some(path) = &self.path else { return };
        let number = |of: std::fs::Metadata| (of.dev(), of.ino());
        let Some(own) = self.to.metadata().ok().filter(|of| of.is_file()).map(number) else { return };
        if std::fs::metadata(path).is_ok_and(|there| number(there) == own) {
            return;
        }
        match append(path) {
            Ok(to) => (self.to, self.torn, self.nameless) = (to, false, false),
            Err(e) if !self.nameless => {
                self.nameless = true;
                self.warn(&format!("{e}: they go to the file that had this name"));
            }
            Err(_) => {}
        }
    }

    /// Its name in messages.
    fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "stdout".to_owned(), |path| path.display().to_string())
    }

    fn warn(&self, what: &str) {
        // There is no other place to report it if stderr is closed.
        let _ = out::say(|to| writeln!(to, "{WARN}orbit {}:{WARN:#} {what}", self.command));
    }
}

/// Opens a file for appending and creates it if there is none. Does not block: a FIFO without a
/// reader is an error.
///
/// # Errors
/// A sentence that names the file and the reason.
pub fn append(path: &Path) -> Result<File, String> {
    let open = || {
        let file = File::options().create(true).append(true).mode(0o600).custom_flags(libc::O_NONBLOCK).open(path)?;
        // Only opening must not block: non-blocking writes would cut a line that does not fit into
        // a pipe at once.
        orbit_linux::stream::set_flags(file.as_fd(), libc::O_APPEND)?;
        Ok::<File, io::Error>(file)
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
