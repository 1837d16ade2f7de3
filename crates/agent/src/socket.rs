//! Sockets that are files.
//!
//! Promises: such a file has mode 0660 from its first moment, and the group `orbit` where there is
//! one and the agent may give it away; a file at which another process answers is not replaced, nor
//! one that is no socket.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// The group that may connect.
pub const GROUP: &str = "orbit";

/// Listens there.
///
/// # Errors
/// `AddrInUse`: another process answers there; `AlreadyExists`: there is a file that is no socket;
/// those of making the file.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent answers there"));
    }
    if fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    // Under a name of its own until it has its mode: nobody connects before.
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let _ = fs::remove_file(&partial);
    let listener = UnixListener::bind(&partial)?;
    let moved = fs::set_permissions(&partial, fs::Permissions::from_mode(0o660)).and_then(|()| {
        if let Some(group) = group() {
            // An ordinary user may not be in it: then the file has the user's own group.
            let _ = std::os::unix::fs::chown(&partial, None, Some(group));
        }
        fs::rename(&partial, path)
    });
    if let Err(e) = moved {
        let _ = fs::remove_file(&partial);
        return Err(e);
    }
    Ok(listener)
}

fn group() -> Option<u32> {
    let text = fs::read_to_string("/etc/group").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(GROUP)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_socket_stays_and_one_that_is_left_over_does_not() {
        let path = std::env::temp_dir().join(format!("orbit-socket-{}", std::process::id()));
        fs::write(&path, "mine").expect("written");
        assert!(listen(&path).is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists));
        assert_eq!(fs::read_to_string(&path).expect("a file"), "mine");
        fs::remove_file(&path).expect("removed");
        drop(listen(&path).expect("a socket"));
        let second = listen(&path).expect("the first one listens no more");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o660);
        assert!(listen(&path).is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse));
        drop(second);
        fs::remove_file(path).expect("removed");
    }
}
