//! Where events go: a file or a FIFO that lines are appended to, or stdout.
//!
//! Promises: a line waits for its reader, also where another process has made the pipe one that does not wait. What cannot be
//! written, on a disk that is full, is counted and told on stderr, once for all in a row; a line that was written in part ends
//! before the next one begins. A file that was renamed or removed meanwhile, as logrotate does, is made again under its name; where
//! that cannot be, lines go on into the one that had it.

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
    /// The command that writes them, for what it has to complain of.
    command: &'static str,
    /// Whether the last line was written in part.
    torn: bool,
    /// Lines that could not be written since one was.
    lost: u64,
    /// Whether the file has lost its name, and could not be made again.
    nameless: bool,
}

impl Events {
    /// To be appended to this file; `-` is stdout.
    pub fn open(path: &Path, command: &'static str) -> Result<Events, String> {
        let (to, path) = if path.as_os_str() == "-" {
            let stdout = io::stdout().as_fd().try_clone_to_owned();
            (stdout.map_err(|e| format!("cannot write events to stdout: {e}"))?.into(), None)
        } else {
            (append(path)?, Some(path.to_owned()))
        };
        Ok(Events { to, path, command, torn: false, lost: 0, nameless: false })
    }

    /// Writes a line, its end included; before it, where some were lost, the line that `left_out` makes of their number.
    pub fn write(&mut self, line: &[u8], left_out: impl FnOnce(u64) -> Vec<u8>) {
        self.keep_name();
        let lost = self.lost;
        let told = if lost == 0 { Ok(()) } else { self.line(&left_out(lost)).map(|()| self.tell_lost()) };
        if let Err(e) = told.and_then(|()| self.line(line)) {
            if self.lost == 0 {
                let what =
                    format!("cannot write events to {}: {e}: they are left out until it can be written", self.name());
                self.complain(&what);
            }
            self.lost += 1;
        }
    }

    /// Nothing more comes; `left_out` as for [`Events::write`].
    pub fn finish(&mut self, left_out: impl FnOnce(u64) -> Vec<u8>) {
        let lost = self.lost;
        if lost == 0 {
            return;
        }
        match self.line(&left_out(lost)) {
            Ok(()) => self.tell_lost(),
            Err(_) => self.complain(&format!("{lost} events could not be written to {}", self.name())),
        }
    }

    /// It can be written again.
    fn tell_lost(&mut self) {
        self.complain(&format!("events are written to {} again; {} were left out", self.name(), self.lost));
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

    /// Makes the file again where its name is no more its own.
    fn keep_name(&mut self) {
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
                self.complain(&format!("{e}: they go on into the file that had this name"));
            }
            Err(_) => {}
        }
    }

    /// For people.
    fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "stdout".to_owned(), |path| path.display().to_string())
    }

    fn complain(&self, what: &str) {
        // Nobody is left to tell if stderr is closed.
        let _ = out::say(|to| writeln!(to, "{WARN}orbit {}:{WARN:#} {what}", self.command));
    }
}

/// Opens it for writing at its end, and makes it if it is not there. Does not wait: where nobody reads a FIFO, that is an error.
pub fn append(path: &Path) -> Result<File, String> {
    let open = || {
        let file = File::options().create(true).append(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        // Only the start is not to wait: a line that does not fit into a pipe at once would be cut.
        orbit_linux::descriptor::set_flags(file.as_fd(), libc::O_APPEND)?;
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
