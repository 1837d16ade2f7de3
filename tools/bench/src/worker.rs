//! A part of a bench in a program of its own: a child of this one, made while that has one thread
//! and little memory. Its result comes back through a pipe.

use orbit_console::out::Failure;
use orbit_linux::process;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};

/// Runs `part` in a child and waits for its result. Only while this process has one thread.
pub fn run<T: Serialize + DeserializeOwned>(part: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let (reader, writer) = orbit_linux::stream::pipe(0)?;
    // SAFETY: this process has one thread, so the child finds every lock free.
    match unsafe { process::fork() }? {
        None => {
            drop(reader);
            let _ = process::set_parent_death_signal(libc::SIGKILL);
            let result = part().map_err(|failure| failure.to_string());
            let written = serde_json::to_vec(&result).map(|bytes| std::fs::File::from(writer).write_all(&bytes));
            process::end(i32::from(!matches!(written, Ok(Ok(())))))
        }
        Some(pid) => {
            drop(writer);
            let mut bytes = Vec::new();
            let read = std::fs::File::from(reader).read_to_end(&mut bytes);
            let status = process::exit_status(pid)?;
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
