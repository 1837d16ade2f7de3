//! The agent's socket: a file with a mode, at which `orbit agent status` asks.
//!
//! Promises: the file is as [`crate::socket`] makes it; a connection carries one line each way
//! within two seconds; at most [`MAX_CONNECTIONS`] at a time; the threads have no capabilities.
//! Refuses: to change anything; a reload is SIGHUP.

use crate::plain;
use crate::socket::GROUP;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MAX_CONNECTIONS: usize = 16;
const MAX_REQUEST_BYTES: u64 = 256;
const MAX_ANSWER_BYTES: u64 = 16 << 20;
const TIMEOUT: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The only request.
const STATUS: &str = "status\n";

/// Answers at a socket of [`crate::socket::listen`], in a thread that lives as long as the process.
///
/// # Errors
/// Those of making the thread.
pub fn serve(listener: UnixListener, status: impl Fn() -> Value + Send + Sync + 'static) -> io::Result<()> {
    let status = Arc::new(status);
    plain::spawn("orbit-control", move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            // Each connection holds a clone; beyond the bound it is closed at once.
            if Arc::strong_count(&status) > MAX_CONNECTIONS {
                continue;
            }
            let status = status.clone();
            let _ = std::thread::Builder::new().name("orbit-answer".into()).spawn(move || {
                // A peer that has left has no reader for an error.
                let _ = answer(&stream, &*status);
            });
        }
    })?;
    Ok(())
}

fn answer(stream: &UnixStream, status: &impl Fn() -> Value) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REQUEST_BYTES)).read_line(&mut line)?;
    if line != STATUS {
        return Ok(());
    }
    let mut bytes = serde_json::to_vec(&status())?;
    bytes.push(b'\n');
    (&mut &*stream).write_all(&bytes)
}

/// Asks the agent there for its status.
///
/// # Errors
/// A sentence: none answers, or what it answers is not understood.
pub fn ask(path: &Path) -> Result<Value, String> {
    let asked = || {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        (&mut &stream).write_all(STATUS.as_bytes())?;
        let mut line = String::new();
        BufReader::new((&stream).take(MAX_ANSWER_BYTES)).read_line(&mut line)?;
        Ok::<String, io::Error>(line)
    };
    let path = path.display();
    let line = asked().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no agent answers at {path}: is orbit-agent.service running? (--socket names another)")
        }
        io::ErrorKind::PermissionDenied => format!("{path}: {e}: needs root or the group {GROUP}"),
        io::ErrorKind::WouldBlock => format!("{path}: no answer within {TIMEOUT:?}"),
        _ => format!("{path}: {e}"),
    })?;
    serde_json::from_str(&line).map_err(|e| format!("{path}: its answer is not understood: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::listen;
    use serde_json::json;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_socket_is_a_file_with_a_mode_and_answers_status_alone() {
        let folder = std::env::temp_dir().join(format!("orbit-control-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("made");
        let path = folder.join("agent.sock");
        assert!(ask(&path).is_err_and(|why| why.contains("no agent answers")));
        serve(listen(&path).expect("a socket"), || json!({ "x": 1 })).expect("served");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o660);
        assert_eq!(ask(&path), Ok(json!({ "x": 1 })));
        let mut stream = UnixStream::connect(&path).expect("connected");
        stream.write_all(b"reload\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("closed");
        assert_eq!(answer, "");
        assert!(listen(&path).is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse));
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "nothing else is left");
        fs::remove_dir_all(folder).expect("removed");
    }
}
