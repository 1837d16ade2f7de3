//! A part of a bench in a program of its own: a child of this one, made while that has one thread
//! and little memory. Its result comes back through a pipe.

use orbit_console::out::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// Runs `part` in a child and waits for its result. Only while this process has one thread.
pub fn run<T: Serialize + DeserializeOwned>(part: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let (reader, writer) = orbit_linux::stream::pipe(0)?;
    // SAFETY: this process has one thread, so the child finds every lock free.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            drop(reader);
            let _ = orbit_linux::process::set_parent_death_signal(libc::SIGKILL);
            let result = part().map_err(|failure| failure.to_string());
            let written = serde_json::to_vec(&result).map(|bytes| std::fs::File::from(writer).write_all(&bytes));
            // SAFETY: ends the child without the exit handlers of the program that it is a copy of.
            unsafe { libc::_exit(i32::from(!matches!(written, Ok(Ok(()))))) }
        }
        pid => {
            drop(writer);
            let mut bytes = Vec::new();
            let read = std::fs::File::from(reader).read_to_end(&mut bytes);
            let mut status = 0;
            // SAFETY: an own child that was not reaped yet.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            read?;
            if bytes.is_empty() {
                return Err(Failure::text(format!(
                    "a part of the bench ended without a result (wait status {status:#x})"
                )));
            }
            serde_json::from_slice::<Result<T, String>>(&bytes)?.map_err(Failure::Text)
        }
    }
}
