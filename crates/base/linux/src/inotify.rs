//! Files that the kernel reports as closed after writing.
//!
//! Owns the descriptor. Promises: nothing here blocks; a queue that has overflowed is reported as
//! such, never as silence.

use crate::{Support, check_int};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Of an event: four words, and a name whose length is the last of them.
const HEAD: usize = 16;
const ROOM: usize = 16 << 10;

/// Watched files. May be used from several threads.
#[derive(Debug)]
pub struct Inotify(OwnedFd);

/// Something that was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The file with this number, as [`Inotify::watch_writers`] gave it.
    File(i32),
    /// Events were lost: any of the files may have been closed.
    Lost,
}

impl Inotify {
    /// One that watches nothing yet.
    ///
    /// # Errors
    /// `EMFILE`: the user has as many as `fs.inotify.max_user_instances` allows.
    pub fn new() -> io::Result<Inotify> {
        // SAFETY: an integer.
        let fd = check_int(unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) })?;
        // SAFETY: the kernel just made this descriptor for us.
        Ok(Inotify(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches a file, which a symbolic link of `/proc` may name; gives its number, that of before
    /// if it is watched already.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES`; `ENOSPC`: the user watches as many as `fs.inotify.max_user_watches`
    /// allows; `EINVAL`: the path has a zero byte.
    pub fn watch_writers(&self, path: &str) -> io::Result<i32> {
        let path = CString::new(path).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: a string that lives through the call.
        check_int(unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), libc::IN_CLOSE_WRITE) })
    }

    /// Watches the file with this number no more.
    ///
    /// # Errors
    /// `EINVAL`: it is not watched, or is gone.
    pub fn forget(&self, number: i32) -> io::Result<()> {
        // SAFETY: integers.
        check_int(unsafe { libc::inotify_rm_watch(self.0.as_raw_fd(), number) }).map(|_| ())
    }

    /// Takes what has been reported since the last time.
    pub fn take(&self) -> Vec<Closed> {
        let (mut all, mut room) = (Vec::new(), [0u8; ROOM]);
        loop {
            // SAFETY: room for as many bytes as are asked for.
            let n = unsafe { libc::read(self.0.as_raw_fd(), room.as_mut_ptr().cast(), ROOM) };
            let Some(mut left) = usize::try_from(n).ok().filter(|n| *n > 0).and_then(|n| room.get(..n)) else {
                return all;
            };
            while left.len() >= HEAD {
                let word = |at: usize| u32::from_ne_bytes(left[at..at + 4].try_into().unwrap_or_default());
                let (mask, name) = (word(4), word(12) as usize);
                match mask {
                    _ if mask & libc::IN_Q_OVERFLOW != 0 => all.push(Closed::Lost),
                    _ if mask & libc::IN_CLOSE_WRITE != 0 => all.push(Closed::File(word(0) as i32)),
                    _ => {}
                }
                left = left.get(HEAD + name..).unwrap_or_default();
            }
        }
    }
}

/// Makes one.
pub fn probe() -> Support {
    Support::from_result("inotify", Inotify::new().map(drop), |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_closes_is_reported_and_a_reader_is_not() {
        let path = std::env::temp_dir().join(format!("orbit-inotify-{}", std::process::id()));
        std::fs::write(&path, "x").expect("written");
        let inotify = Inotify::new().expect("an instance");
        let number = inotify.watch_writers(path.to_str().expect("a name")).expect("watched");
        std::fs::read(&path).expect("read");
        assert_eq!(inotify.take(), []);
        std::fs::OpenOptions::new().append(true).open(&path).expect("opened");
        assert_eq!(inotify.take(), [Closed::File(number)]);
        assert_eq!(inotify.take(), []);
        inotify.forget(number).expect("it was watched");
        std::fs::OpenOptions::new().append(true).open(&path).expect("opened");
        assert_eq!(inotify.take(), []);
        std::fs::remove_file(path).expect("removed");
    }
}
